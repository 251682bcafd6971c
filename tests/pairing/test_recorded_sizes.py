"""Recorded sizes match the bytes that reached the namespaces."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.pairing.paired import KINDS, Pair, Stage
from tests.pairing.sdk_messages import typed, written_size

from twinbus.emulator import NamespaceThread
from twinbus.envelope.wrapping import wrap
from twinbus.ledger.recorder import MemoryRecorder, OperationKind, Outcome

pytestmark = pytest.mark.slow

# Around the length at which a body takes its long form, and beyond one frame.
BODIES = [b"", b"x" * 200, b"x" * 256, b"x" * 70_000]
# Its size is measured by the SDK.
ARRAY = typed("ARRAY", [typed("STRING", "a"), typed("STRING", "b")])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as running:
        yield running


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, stage: Stage, recorder: MemoryRecorder) -> Iterator[Pair]:
    with stage.pair(str(request.param), recorder=recorder, failover_interval=60) as made:
        yield made
        stage.clear()


def messages() -> list[ServiceBusMessage]:
    """Messages of which all bytes are stored: without a header and annotations, which a namespace writes itself."""
    properties = {"text": "grün", b"bytes": b"b", "number": 7, "flag": True, "id": UUID(int=7), "array": ARRAY}
    plain = [ServiceBusMessage(body, message_id=f"m-{len(body)}", content_type="text/plain") for body in BODIES]
    return [*plain, ServiceBusMessage("rich", message_id="rich", application_properties=dict(properties))]  # type: ignore[arg-type]


def sizes(recorder: MemoryRecorder) -> list[tuple[str | None, int]]:
    return [(row.message_id, row.bytes) for row in recorder.operations if row.outcome is Outcome.DONE]


def stored(pair: Pair, is_diverted: bool = False) -> list[int]:
    """Return the size of each message that arrived, in a backlog queue or the primary entity."""
    side = pair.secondary if is_diverted else pair.primary
    paths = [pair.pairing.queue_path(index) for index in range(3)] if is_diverted else [pair.path]
    return [size for path in paths for size in _stored(side, path)]


def _stored(side: NamespaceThread, path: str) -> list[int]:
    entity = side.namespace.find(path)
    assert entity is not None
    return [len(message.bare) for message in side.call(entity.queue.peek, 0, 100)]


def one_by_one(sender: Any, given: list[ServiceBusMessage]) -> None:
    for message in given:
        sender.send_messages(message)


def as_annotated(sender: Any, given: list[ServiceBusMessage]) -> None:
    for message in given:
        sender.send_messages(message.raw_amqp_message)


def as_a_list(sender: Any, given: list[ServiceBusMessage]) -> None:
    sender.send_messages(given)


def as_a_batch(sender: Any, given: list[ServiceBusMessage]) -> None:
    batch = sender.create_message_batch()
    for message in given:
        batch.add_message(message)
    sender.send_messages(batch)


def as_a_batch_of_the_sdk(sender: Any, given: list[ServiceBusMessage]) -> None:
    batch = ServiceBusMessageBatch(256 * 1024)
    for message in given:
        batch.add_message(message)
    sender.send_messages(batch)


WAYS = [one_by_one, as_annotated, as_a_list, as_a_batch, as_a_batch_of_the_sdk]


@pytest.mark.parametrize("send", WAYS)
def test_recorded_size_is_that_of_the_bytes_at_the_primary(pair: Pair, recorder: MemoryRecorder, send: Any) -> None:
    given = messages()
    expected = [(message.message_id, written_size(message.raw_amqp_message)) for message in given]
    send(pair.sender(), given)
    assert sizes(recorder) == expected
    assert stored(pair) == [size for _, size in expected]


@pytest.mark.parametrize("send", WAYS)
def test_recorded_size_of_a_diverted_message_includes_its_envelope(
    pair: Pair, recorder: MemoryRecorder, send: Any
) -> None:
    given = messages()
    expected = [(message.message_id, written_size(wrap(message, pair.path))) for message in given]
    pair.pairing.fail_over(pair.path)
    send(pair.sender(), given)
    assert sizes(recorder) == expected
    assert stored(pair, is_diverted=True) == [size for _, size in expected]


def test_header_and_annotations_are_counted(pair: Pair, recorder: MemoryRecorder) -> None:
    message = ServiceBusMessage("hello", message_id="m", time_to_live=timedelta(hours=1), partition_key="p")
    pair.sender().send_messages(message)
    assert sizes(recorder) == [("m", written_size(message.raw_amqp_message))]


def test_each_scheduled_message_has_its_own_size(pair: Pair, recorder: MemoryRecorder) -> None:
    given = messages()
    pair.sender().schedule_messages(given, datetime.now(UTC) + timedelta(hours=1))
    assert {row.operation for row in recorder.operations} == {OperationKind.SCHEDULE}
    assert sizes(recorder) == [(one.message_id, written_size(one.raw_amqp_message)) for one in given]


def test_message_that_cannot_be_encoded_has_size_0(
    pair: Pair, recorder: MemoryRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    secret = type("Secret", (), {"__str__": lambda self: "hush"})()
    broken = AmqpAnnotatedMessage(data_body=b"x", application_properties={"odd": secret})
    with caplog.at_level(logging.WARNING, "twinbus.pairing"), pytest.raises(ServiceBusError, match="Unable to encode"):
        pair.sender().send_messages(broken)
    (row,) = recorder.operations
    assert (row.bytes, row.error) == (0, "ServiceBusError")
    measured = [record.getMessage() for record in caplog.records if "Measuring" in record.getMessage()]
    assert measured == [f"Measuring a message to {pair.path} failed: TypeError"]
