"""A message that goes through the backlog: how it waits there, and how it arrives."""

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
from twinbus.amqp.types import Described, Long, Symbol, Timestamp
from twinbus.pairing import aliases
from twinbus.pairing.backlog import LOCK_DURATION
from twinbus.pairing.envelope import Message
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.report import DrainReport
from twinbus.syphon.terms import Terms

from .administration import options_for
from .checks import Seen, check
from .drill import Drill, Site
from .messages import Raw

LIFE = timedelta(minutes=10)
DELAY = timedelta(seconds=10)
SLACK_MS = 60_000  # between two sends of the same message, and on the way through the backlog
_COMPARED_APART = (8, 9)  # properties: expiry and creation, the times of two sends


@asynccontextmanager
async def failed_over(drill: Drill, name: str, *entities: str) -> AsyncIterator[tuple[PairedServiceBusClient, str]]:
    """A paired client for which these entities are failed over, and the path of its only backlog queue."""
    primary_name = f"{drill.prefix}-{name}"
    [path] = drill.at_secondary.backlog(primary_name, 1)
    async with PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, primary_name)) as client:
        for entity in entities:
            client.fail_over(entity)
        yield client, path


async def drain(drill: Drill, path: str) -> DrainReport:
    terms = Terms(lock_seconds=LOCK_DURATION.total_seconds())  # the queue is ours
    return await SyphonHost(drill.at_primary.side, drill.at_secondary.side, [path], terms).drain()


def full_message(scheduled: datetime | None = None) -> ServiceBusMessage:
    """A message that carries one of everything."""
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
        time_to_live=LIFE,
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
    " types of docs/envelope.md",
)
async def in_the_backlog(drill: Drill, seen: Seen) -> None:
    destination = await drill.at_primary.queue("divert-look")
    scheduled = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    async with failed_over(drill, "look", destination) as (client, path):
        receipt = await client.get_queue_sender(destination).send_messages(full_message(scheduled))
        seen.value("accepted by", (receipt.route, receipt.queue), (Route.BACKLOG, path))
    async with drill.at_secondary.exchange(path) as exchange:
        [raw] = await exchange.peek()
    seen.value("state", raw.state, 0)
    cleared = {"session": raw.session, "ttl": raw.ttl, "expiry": raw.expiry, "creation": raw.created}
    cleared["scheduled"] = raw.annotations.get(aliases.SCHEDULED_ANNOTATION)
    seen.value("not cleared", {name: value for name, value in cleared.items() if value is not None}, {})
    kept = raw.application
    ticks = int(LIFE.total_seconds() * 1000) * aliases.TICKS_PER_MS
    expected: dict[str, Any] = {
        aliases.PATH: destination,
        aliases.SESSION_ID: "a session",
        aliases.SCHEDULED_TIME: Timestamp(int(scheduled.timestamp() * 1000)),
        aliases.TIME_TO_LIVE: Described(Symbol(aliases.TIMESPAN), Long(ticks)),
    }
    wrong = [name for name, value in expected.items() if not _same(kept.get(name), value)]
    wrong += [name for name in (aliases.EXPIRY, aliases.CREATED) if type(kept.get(name)) is not Timestamp]
    seen.value("aliases wrong in value or type", wrong, [])
    seen.value("the sender's own x-ms-path", kept.get(aliases.OWN + aliases.PATH), "the sender's own")


@check(
    "through the syphon everything is restored",
    "a message that went through the backlog is the same as one sent directly: bytes of body and application"
    " properties, values and types of the rest; its time in the backlog counts; a schedule is kept",
)
async def restored(drill: Drill, seen: Seen) -> None:
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
                raise RuntimeError("nothing to compare with: the primary is down")
        report = await drain(drill, path)
    seen.value("moved", report.total.moved, len(messages))
    seen.value("left", (report.total.parked, report.held, report.malformed, report.total.poison), (0, 0, 0, 0))
    arrived = await arrivals(site, destination, 2 * len(messages))
    for name, message in messages.items():
        pair = arrived.get(_id_of(message), [])
        seen.value(f"{name} differs in", differing(*pair) if len(pair) == 2 else [f"{len(pair)} arrived"], [])
    # The direct ones were sent before the others were moved.
    lives = [raw.ttl or 0 for raw in arrived.get(_id_of(messages["data"]), [])]
    seen.that(lives == sorted(set(lives), reverse=True), f"of their lives the messages had left {lives} ms")


@check("a diverted message reaches a session and a topic", "a session receiver and a subscription are given it")
async def other_destinations(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    sessions, topic = await site.queue("divert-session", requires_session=True), await site.topic("divert-topic", "all")
    async with failed_over(drill, "others", sessions, topic) as (client, path):
        await client.get_queue_sender(sessions).send_messages(ServiceBusMessage(b"1", session_id="s"))
        await client.get_topic_sender(topic).send_messages(ServiceBusMessage(b"2"))
        report = await drain(drill, path)
    seen.value("moved", report.total.moved, 2)
    wait = site.times.answer
    async with site.client.get_queue_receiver(sessions, session_id="s", max_wait_time=wait) as receiver:
        seen.value("session:", [b"".join(one.body) for one in await receiver.receive_messages()], [b"1"])
    async with site.exchange(topic) as exchange:
        listener = await exchange.listen(credit=1, path=f"{topic}/Subscriptions/all")
        seen.value("subscription:", (await listener.take_raw()).body, b"2")


async def arrivals(site: Site, path: str, count: int) -> dict[Any, list[Raw]]:
    """So many messages of a queue by their ids, or fewer if no more come."""
    arrived: dict[Any, list[Raw]] = {}
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=count)
        with contextlib.suppress(TimeoutError):
            for _ in range(count):
                raw = await listener.take_raw()
                arrived.setdefault(raw.message_id, []).append(raw)
    return arrived


def differing(one: Raw, other: Raw) -> list[str]:
    """In what two arrivals of the same message differ that should not."""
    found = []
    if one.parts.body != other.parts.body:
        found.append("body")
    if one.parts.application_properties != other.parts.application_properties:
        found.append("application properties")
    for name in sorted((one.annotations.keys() | other.annotations.keys()) - aliases.BROKER_ANNOTATIONS):
        if not _same(one.annotations.get(name), other.annotations.get(name)):
            found.append(f"annotation {name}")
    for index, (a, b) in enumerate(zip(one.properties, other.properties, strict=True)):
        is_near = type(a) is type(b) and (a is None or (index in _COMPARED_APART and abs(a - b) <= SLACK_MS))
        if not (_same(a, b) or is_near):
            found.append(f"property {index}")
    if (one.ttl is None) != (other.ttl is None) or abs((one.ttl or 0) - (other.ttl or 0)) > SLACK_MS:
        found.append(f"time to live: {one.ttl} and {other.ttl}")
    if not _same(one.header[:2], other.header[:2]):
        found.append("header")
    return found


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


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
