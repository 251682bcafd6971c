"""Creates operations for tests, and counts them in ledgers."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from twinbus.ledger.layout import END_OF_TIME_US
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage

NOON = 1_794_830_400_000_000  # 2026-11-16 12:00 UTC, in microseconds
DAY = 86_400_000_000
HOUR = 3_600_000_000


def a_send(message_id: str | None = "m", **changes: Any) -> Operation:
    """Return a send to the primary, with changed fields."""
    fields: dict[str, Any] = {
        "pairing": "contoso",
        "client": "client-1",
        "namespace": NamespaceRole.PRIMARY,
        "entity": "orders",
        "operation": OperationKind.SEND,
        "stage": Stage.DIRECT,
        "outcome": Outcome.DONE,
        "ts": NOON,
        "message_id": message_id,
        "destination": "orders",
        "bytes": 1200,
        "latency_us": 300,
    }
    return Operation(**{**fields, **changes})


def sends(count: int, **changes: Any) -> list[Operation]:
    """Return sends with the message ids m-0, m-1, and so on."""
    return [a_send(f"m-{number}", **changes) for number in range(count)]


def message_ids(url: str | os.PathLike[str]) -> Counter[str | None]:
    """Return how often each message id is in a ledger; fail if a file is unreadable."""
    contents = read_ledger(url)
    assert contents.unreadable == []
    return Counter(contents.table["message_id"].to_pylist())


_names = st.text(max_size=20)
_int64 = st.integers(-(2**63), 2**63 - 1)

operations = st.builds(
    Operation,
    op_id=st.integers(0, 2**128 - 1),
    ts=st.integers(0, END_OF_TIME_US - 1),
    pairing=_names,
    client=_names,
    namespace=st.sampled_from(NamespaceRole),
    entity=_names,
    operation=st.sampled_from(OperationKind),
    stage=st.sampled_from(Stage),
    outcome=st.sampled_from(Outcome),
    message_id=st.none() | st.text(max_size=128),
    destination=st.none() | _names,
    backlog_queue=st.none() | _names,
    sequence_number=st.none() | _int64,
    delivery_count=st.none() | _int64,
    attempt=st.integers(-(2**31), 2**31 - 1),
    bytes=_int64,
    count=_int64,
    error=st.none() | _names,
    latency_us=st.none() | _int64,
)
