"""Tests operations and the recorders in memory."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import threading
import time
from enum import IntEnum

import pytest

from twinbus.ledger import (
    MemoryRecorder,
    NamespaceRole,
    NullRecorder,
    Operation,
    OperationKind,
    Outcome,
    Recorder,
    Stage,
    send_operation,
)
from twinbus.ledger.recorder import op_id_of

# Stored in files: these numbers must never change; new ones may be added.
CODES = {
    NamespaceRole: {"PRIMARY": 1, "SECONDARY": 2, "NEITHER": 3},
    OperationKind: {
        "SEND": 1,
        "RECEIVE": 2,
        "COMPLETE": 3,
        "ABANDON": 4,
        "DEFER": 5,
        "DEAD_LETTER": 6,
        "RENEW": 7,
        "PING": 8,
        "POLL": 9,
        "PEEK": 10,
        "SCHEDULE": 11,
        "CANCEL": 12,
        "CREATE": 13,
        "GET": 14,
        "LIST": 15,
        "DROPPED": 16,
        "GET_STATE": 17,
        "SET_STATE": 18,
    },
    Stage: {
        "DIRECT": 1,
        "BACKLOG_SEND": 2,
        "BACKLOG_RECEIVE": 3,
        "PRIMARY_SEND": 4,
        "PRIMARY_RECEIVE": 5,
        "PING": 6,
        "POLL": 7,
        "MANAGE": 8,
        "LEDGER": 9,
    },
    Outcome: {"DONE": 1, "FAILED": 2, "UNKNOWN": 3, "EMPTY": 4, "PLANNED": 5},
}

COLUMNS = {
    "op_id",
    "ts",
    "pairing",
    "client",
    "namespace",
    "entity",
    "operation",
    "stage",
    "message_id",
    "destination",
    "backlog_queue",
    "sequence_number",
    "delivery_count",
    "attempt",
    "bytes",
    "count",
    "outcome",
    "error",
    "latency_us",
}


def a_send(message_id: str | None = None) -> Operation:
    return Operation(
        pairing="contoso",
        client="client-1",
        namespace=NamespaceRole.PRIMARY,
        entity="orders",
        operation=OperationKind.SEND,
        stage=Stage.DIRECT,
        outcome=Outcome.DONE,
        message_id=message_id,
    )


@pytest.mark.parametrize("enum", CODES, ids=lambda enum: enum.__name__)
def test_stored_codes_keep_their_numbers(enum: type[IntEnum]) -> None:
    assert {code.name: code.value for code in enum} == CODES[enum]


def test_operation_fields_are_ledger_columns() -> None:
    assert set(Operation._fields) == COLUMNS


def test_send_operation_equals_operation() -> None:
    primary, kind, stage, outcome = NamespaceRole.PRIMARY, OperationKind.SEND, Stage.DIRECT, Outcome.FAILED
    operation = send_operation("p", "c", primary, "e", kind, stage, outcome, "m", "d", "q", 2, 1200, "Busy", 300)
    assert operation == Operation(
        op_id=operation.op_id,
        ts=operation.ts,
        pairing="p",
        client="c",
        namespace=primary,
        entity="e",
        operation=kind,
        stage=stage,
        outcome=outcome,
        message_id="m",
        destination="d",
        backlog_queue="q",
        attempt=2,
        bytes=1200,
        error="Busy",
        latency_us=300,
    )
    assert type(operation) is Operation
    assert operation.op_id >> 64 == a_send().op_id >> 64
    assert operation.op_id < a_send().op_id < 2**128


def test_operation_is_immutable() -> None:
    with pytest.raises(AttributeError):
        a_send().entity = "other"  # type: ignore[misc]


def test_operations_get_unique_ids() -> None:
    assert len({a_send("m").op_id for _ in range(1000)}) == 1000


def test_operation_equals_its_copy_and_pickle() -> None:
    send = a_send("m")
    assert copy.copy(send) == pickle.loads(pickle.dumps(send)) == send


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_uses_different_ids() -> None:
    before = a_send().op_id
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, str(a_send().op_id).encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_child = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    assert in_child >> 64 != before >> 64 == a_send().op_id >> 64


@pytest.mark.parametrize("op_id", ["", "short", "z" * 32, "ab " * 10 + "ab", "0" * 31, "0" * 33])
def test_op_id_of_other_text_is_its_digest(op_id: str) -> None:
    assert op_id_of(op_id).to_bytes(16, "big") == hashlib.blake2b(op_id.encode(), digest_size=16).digest()


def test_op_id_of_hexadecimal_digits_is_their_number() -> None:
    assert op_id_of("00ff" * 8) == int("00ff" * 8, 16)


def test_operation_time_defaults_to_now_in_microseconds() -> None:
    before = time.time_ns() // 1000
    assert before <= a_send().ts <= time.time_ns() // 1000


def test_null_recorder_accepts_operations() -> None:
    recorder: Recorder = NullRecorder()
    recorder.record(a_send())


def test_memory_recorder_keeps_operations_in_order() -> None:
    recorder = MemoryRecorder()
    protocol: Recorder = recorder  # also checks that the type fits
    sends = [a_send(str(number)) for number in range(3)]
    for send in sends:
        protocol.record(send)
    assert recorder.operations == sends
    assert recorder.forgotten == 0


def test_memory_recorder_is_bounded_and_counts_forgotten_operations() -> None:
    recorder = MemoryRecorder(capacity=2)
    for number in range(5):
        recorder.record(a_send(str(number)))
    assert [operation.message_id for operation in recorder.operations] == ["3", "4"]
    assert recorder.forgotten == 3


def test_memory_recorder_rejects_zero_capacity() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        MemoryRecorder(capacity=0)


def test_memory_recorder_is_thread_safe() -> None:
    recorder = MemoryRecorder(capacity=100)

    def record_many() -> None:
        for _ in range(500):
            recorder.record(a_send())

    threads = [threading.Thread(target=record_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorder.operations) + recorder.forgotten == 2000
