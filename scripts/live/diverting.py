"""Checks a diverted message in the backlog and at its destination."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus import Route
from twinbus.aio import PairedServiceBusClient
from twinbus.amqp.codec.types import Described, Long, Symbol, Timestamp
from twinbus.envelope import aliases
from twinbus.envelope.wrapping import Message
from twinbus.pairing.backlog.provisioning import LOCK_DURATION
from twinbus.syphon.drain_report import DrainReport
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

from .administration import options_for
from .checks import Findings, check
from .drill import Drill, Site
from .messages import Raw

TIME_TO_LIVE = timedelta(minutes=10)
DELAY = timedelta(seconds=10)
SLACK_MS = 60_000  # for two sends of the same message and the time in the backlog
_TIME_PROPERTIES = (8, 9)  # expiry and creation time, which differ between two sends


@asynccontextmanager
async def failed_over(drill: Drill, name: str, *entities: str) -> AsyncIterator[tuple[PairedServiceBusClient, str]]:
    """A paired client with these entities failed over, and the path of its only backlog queue."""
    primary_name = f"{drill.prefix}-{name}"
    [path] = drill.at_secondary.backlog(primary_name, 1)
    async with PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, primary_name)) as client:
        for entity in entities:
            client.fail_over(entity)
        yield client, path


async def drain(drill: Drill, path: str) -> DrainReport:
    terms = Terms(lock_seconds=LOCK_DURATION.total_seconds())  # created by the drill
    return await SyphonHost(drill.at_primary.side, drill.at_secondary.side, [path], terms).drain()


def full_message(scheduled: datetime | None = None) -> ServiceBusMessage:
    """A message with a value in every field."""
    application_properties: dict[Any, Any] = {
        "text": "ü",
        "number": 7,
        "large": {"TYPE": "LONG", "VALUE": 2**40},
        "float": 1.5,
        "yes": True,
        "id": uuid.UUID(int=5),
        "bytes": {"TYPE": "BINARY", "VALUE": b"\x00"},
        "time": {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_000},
        "x-ms-path": "the sender's own",
    }
    return ServiceBusMessage(
        b"\x00body\xff",
        message_id=str(uuid.uuid4()),
        session_id="a session",
        time_to_live=TIME_TO_LIVE,
        scheduled_enqueue_time_utc=scheduled,
        subject="subject",
        content_type="text/plain",
        correlation_id="correlation",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply session",
        application_properties=application_properties,
    )


@check(
    "a diverted message in the backlog",
    "session, time to live, expiry, creation and scheduled time are cleared, and kept under the aliases and in the"
    " types of docs/reference/envelope.md",
)
async def in_the_backlog(drill: Drill, findings: Findings) -> None:
    destination = await drill.at_primary.queue("divert-look")
    scheduled = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    async with failed_over(drill, "look", destination) as (client, path):
        receipt = await client.get_queue_sender(destination).send_messages(full_message(scheduled))
        findings.expect_equal("accepted by", (receipt.route, receipt.queue), (Route.BACKLOG, path))
    async with drill.at_secondary.exchange(path) as exchange:
        [raw] = await exchange.peek()
    findings.expect_equal("state", raw.state, 0)
    cleared = {"session": raw.session, "ttl": raw.ttl, "expiry": raw.expiry, "creation": raw.created}
    cleared["scheduled"] = raw.annotations.get(aliases.SCHEDULED_ANNOTATION)
    findings.expect_equal("not cleared", {name: value for name, value in cleared.items() if value is not None}, {})
    kept = raw.application
    ticks = int(TIME_TO_LIVE.total_seconds() * 1000) * aliases.TICKS_PER_MS
    expected: dict[str, Any] = {
        aliases.PATH: destination,
        aliases.SESSION_ID: "a session",
        aliases.SCHEDULED_TIME: Timestamp(int(scheduled.timestamp() * 1000)),
        aliases.TIME_TO_LIVE: Described(Symbol(aliases.TIMESPAN), Long(ticks)),
    }
    wrong = [name for name, value in expected.items() if not _same(kept.get(name), value)]
    wrong += [name for name in (aliases.EXPIRY, aliases.CREATED) if type(kept.get(name)) is not Timestamp]
    findings.expect_equal("aliases wrong in value or type", wrong, [])
    findings.expect_equal("the sender's own x-ms-path", kept.get(aliases.OWN + aliases.PATH), "the sender's own")


@check(
    "through the syphon everything is restored",
    "a diverted message equals one sent directly: bytes of body and application properties, values and types of the"
    " rest; its time in the backlog counts; a schedule is kept",
)
async def restored(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    destination = await site.queue("divert")
    scheduled = datetime.now(UTC) + DELAY
    messages: dict[str, Message] = {
        "data": full_message(),
        "scheduled": full_message(scheduled),
        "value": _annotated(AmqpMessageBodyType.VALUE, {"a": [1, "x", None]}),
        "sequence": _annotated(AmqpMessageBodyType.SEQUENCE, [["a", 1], [2.5]]),
    }
    async with failed_over(drill, "divert", destination) as (client, path):
        sender = client.get_queue_sender(destination)
        for message in messages.values():
            await sender.send_messages(message)
        client.fail_back(destination)
        for message in messages.values():
            receipt = await sender.send_messages(message)
            if receipt.route is not Route.PRIMARY:
                raise RuntimeError("the direct message was diverted: the primary is unavailable")
        report = await drain(drill, path)
    findings.expect_equal("moved", report.total.moved, len(messages))
    findings.expect_equal(
        "left", (report.total.deferred, report.held, report.malformed, report.total.poison), (0, 0, 0, 0)
    )
    arrived = await arrivals(site, destination, 2 * len(messages))
    for name, message in messages.items():
        pair = arrived.get(_id_of(message), [])
        findings.expect_equal(
            f"{name} differs in", differences(*pair) if len(pair) == 2 else [f"{len(pair)} arrived"], []
        )
    # The direct messages were sent before the others were moved.
    times_to_live = [raw.ttl or 0 for raw in arrived.get(_id_of(messages["data"]), [])]
    findings.expect(
        times_to_live == sorted(set(times_to_live), reverse=True), f"decreasing times to live {times_to_live} ms"
    )


@check("a diverted message reaches a session and a topic", "a session receiver and a subscription receive it")
async def other_destinations(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    sessions, topic = await site.queue("divert-session", requires_session=True), await site.topic("divert-topic", "all")
    async with failed_over(drill, "others", sessions, topic) as (client, path):
        await client.get_queue_sender(sessions).send_messages(ServiceBusMessage(b"1", session_id="s"))
        await client.get_topic_sender(topic).send_messages(ServiceBusMessage(b"2"))
        report = await drain(drill, path)
    findings.expect_equal("moved", report.total.moved, 2)
    wait = site.times.answer
    async with site.client.get_queue_receiver(sessions, session_id="s", max_wait_time=wait) as receiver:
        findings.expect_equal(
            "session:", [b"".join(message.body) for message in await receiver.receive_messages()], [b"1"]
        )
    async with site.exchange(topic) as exchange:
        listener = await exchange.listen(credit=1, path=f"{topic}/Subscriptions/all")
        findings.expect_equal("subscription:", (await listener.take_raw()).body, b"2")


async def arrivals(site: Site, path: str, count: int) -> dict[Any, list[Raw]]:
    """Up to `count` messages of a queue, by message id."""
    arrived: dict[Any, list[Raw]] = {}
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=count)
        with contextlib.suppress(TimeoutError):
            for _ in range(count):
                raw = await listener.take_raw()
                arrived.setdefault(raw.message_id, []).append(raw)
    return arrived


def differences(first: Raw, second: Raw) -> list[str]:
    """The parts in which two arrivals of the same message differ but should not."""
    parts = []
    if first.parts.body != second.parts.body:
        parts.append("body")
    if first.parts.application_properties != second.parts.application_properties:
        parts.append("application properties")
    for name in sorted((first.annotations.keys() | second.annotations.keys()) - aliases.BROKER_ANNOTATIONS):
        if not _same(first.annotations.get(name), second.annotations.get(name)):
            parts.append(f"annotation {name}")
    for index, (a, b) in enumerate(zip(first.properties, second.properties, strict=True)):
        is_near = type(a) is type(b) and (a is None or (index in _TIME_PROPERTIES and abs(a - b) <= SLACK_MS))
        if not (_same(a, b) or is_near):
            parts.append(f"property {index}")
    if (first.ttl is None) != (second.ttl is None) or abs((first.ttl or 0) - (second.ttl or 0)) > SLACK_MS:
        parts.append(f"time to live: {first.ttl} and {second.ttl}")
    if not _same(first.header[:2], second.header[:2]):
        parts.append("header")
    return parts


def _same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)


def _annotated(kind: AmqpMessageBodyType, body: Any) -> AmqpAnnotatedMessage:
    name = "value_body" if kind is AmqpMessageBodyType.VALUE else "sequence_body"
    properties = {"message_id": str(uuid.uuid4()), "subject": name}
    return AmqpAnnotatedMessage(**{name: body}, properties=properties, annotations={"x-opt-drill": 1})


def _id_of(message: Message) -> Any:
    if isinstance(message, ServiceBusMessage):
        return message.message_id
    assert message.properties is not None
    return message.properties.message_id


CHECKS = (in_the_backlog, restored, other_destinations)
