"""Builds valid conversations of a client, frame by frame, as input for the mutations.

A conversation opens a connection and plays a few scenes: send, receive and settle, management requests, a session, a
transaction. Frames that depend on an answer (a lock token, a transaction id) are built when they are sent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import TYPE_AMQP, TYPE_SASL
from twinbus.amqp.codec.performatives import described
from twinbus.amqp.codec.types import Decimal128, Long, Symbol, Timestamp, UInt, ULong
from twinbus.emulator import Namespace, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.auth.security import ROOT_POLICY, sign
from twinbus.emulator.entities.message import BATCH_FORMAT
from twinbus.servicebus.rule_descriptions import FilterKind, RuleDescription, Sql

QUEUE, SESSIONS, TOPIC, SUBSCRIPTION = "orders", "baskets", "events", "events/Subscriptions/audit"
FORWARDING = "inbound"
SENDABLE = (QUEUE, TOPIC, SESSIONS, FORWARDING)
RECEIVABLE = (QUEUE, SUBSCRIPTION, f"{QUEUE}/$DeadLetterQueue", f"{TOPIC}/Subscriptions/filtered")
SESSION_FILTER = Symbol("com.microsoft:session-filter")
RULES = tuple(
    RuleDescription(f"rule-{number}", Sql(wanted), FilterKind.SQL, None if action is None else Sql(action))
    for number, (wanted, action) in enumerate(
        (
            ("color = 'red' AND number < 5 OR at > 7", "SET seen = color + 'x'; REMOVE yes"),
            ("number * 2 - 1 > price", "SET sys.SessionId = color; SET number = number + big"),
            ("color LIKE 'r%' OR EXISTS(sys.PartitionKey)", "SET sys.Label = at; REMOVE sys.SessionId"),
            ("sys.TimeToLive < 100 OR NOT yes", None),
        )
    )
)
WINDOW = 0x7FFFFFFF
FIRST_IDS = range(1, 6)  # delivery ids that a receiver settles


@dataclass(slots=True)
class Frame:
    """One unencoded frame of a client."""

    performative: Any
    payload: bytes = b""
    channel: int = 0
    kind: int = TYPE_AMQP


@dataclass(slots=True)
class Answers:
    """Answers of the namespace that later frames need."""

    tags: list[bytes] = field(default_factory=list)
    transactions: list[bytes] = field(default_factory=list)


Step = Frame | Callable[[Answers], Frame]


async def create_entities(namespace: Namespace) -> None:
    """Create the entities of the scenes."""
    await namespace.create(QueueDescription(QUEUE, max_delivery_count=3))
    await namespace.create(QueueDescription(SESSIONS, requires_session=True))
    await namespace.create(TopicDescription(TOPIC, requires_duplicate_detection=True))
    await namespace.create_subscription(SubscriptionDescription(TOPIC, "audit"))
    # Messages sent to the topic pass through these filters.
    subscription = SubscriptionDescription(TOPIC, "filtered", rules=RULES)
    await namespace.create_subscription(subscription)
    await namespace.create_subscription(replace(subscription, name="in-sessions", requires_session=True))
    await namespace.create_subscription(replace(subscription, name="back", forward_to=QUEUE))
    await namespace.create(QueueDescription(FORWARDING, forward_to=TOPIC))


def opening_frames(namespace: Namespace) -> list[Step]:
    """The SASL init with the root key and the open frame; a protocol header precedes each."""
    policy = namespace.policy(ROOT_POLICY)
    response = f"\0{policy.name}\0{policy.primary_key}".encode()
    return [
        Frame(amqp.SaslInit(Symbol("PLAIN"), response), kind=TYPE_SASL),
        Frame(amqp.Open("fuzz", hostname="127.0.0.1", max_frame_size=65536, idle_time_out=240_000)),
    ]


def message(random: Random, session: str | None = None, due: int | None = None) -> bytes:
    """A message with most sections."""
    null = encode(None)
    out = b""
    if random.random() < 0.5:
        out += sections.list_section(sections.HEADER, [encode(True), null, encode(UInt(random.choice((1, 60_000))))])
    annotations = [sections.entry(Symbol("x-opt-partition-key"), session or "p")]
    if due is not None:
        annotations.append(sections.entry(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(due)))
    if random.random() < 0.5 or due is not None:
        out += sections.map_section(sections.MESSAGE_ANNOTATIONS, annotations)
    fields = [encode(f"m{random.randrange(1000)}"), *[null] * 9, encode(session) if session else null]
    out += sections.list_section(sections.PROPERTIES, fields)
    values: dict[str, Any] = {
        "color": random.choice(("red", "blue")),
        "number": random.randrange(9),
        "yes": True,
        "big": ULong(random.randrange(1 << 64)),
        "at": Timestamp(random.randrange(-(1 << 63), 1 << 63)),
        "price": Decimal128(random.randbytes(16)),
    }
    entries = [sections.entry(key, value) for key, value in values.items()]
    out += sections.map_section(sections.APPLICATION_PROPERTIES, entries)
    return out + b"\x00\x53\x75" + encode(random.randbytes(random.choice((0, 10, 300))))


class Scenes:
    """Builds the steps of a conversation on one channel."""

    def __init__(self, namespace: Namespace, random: Random, channel: int) -> None:
        self._namespace = namespace
        self._random = random
        self._channel = channel
        self._handles = 0
        self._deliveries = 0

    def steps(self) -> Iterator[Step]:
        """An AMQP session with one to six scenes."""
        yield self._frame(amqp.Begin(None, 0, WINDOW, WINDOW, 255))
        scenes = (
            self._send, self._send, self._receive, self._receive_and_delete, self._ask, self._ask, self._token,
            self._session, self._transaction, self._rules,
        )  # fmt: skip
        for scene in self._random.choices(scenes, k=self._random.randint(1, 6)):
            yield from scene()
        yield self._frame(amqp.End())

    def _frame(self, performative: Any, payload: bytes = b"") -> Frame:
        return Frame(performative, payload, self._channel)

    # ---- links ----

    def _attach(self, role: bool, source: Any, target: Any, modes: tuple[int, int], **more: Any) -> tuple[int, Frame]:
        handle, self._handles = self._handles, self._handles + 1
        name = f"link-{self._channel}-{handle}"
        attach = amqp.Attach(name, handle, role, *modes, source, target, initial_delivery_count=0)
        return handle, self._frame(attach._replace(**more))

    def _sender(self, entity: str) -> tuple[int, Frame]:
        return self._attach(amqp.ROLE_SENDER, amqp.Source("fuzz"), amqp.Target(entity), (0, 0))

    def _receiver(self, entity: str, *, deletes: bool = False, source: Any = None) -> tuple[int, Frame]:
        modes = (1, 0) if deletes else (0, 1)
        return self._attach(amqp.ROLE_RECEIVER, source or amqp.Source(entity), amqp.Target("fuzz"), modes)

    def _credit(self, handle: int, credit: int, *, drain: bool = False) -> Frame:
        return self._frame(amqp.Flow(0, WINDOW, 0, WINDOW, handle, 0, credit, drain=drain, echo=drain))

    def _detach(self, handle: int) -> Frame:
        return self._frame(amqp.Detach(handle, closed=True))

    def _transfer(self, handle: int, payload: bytes, **more: Any) -> Frame:
        number, self._deliveries = self._deliveries, self._deliveries + 1
        transfer = amqp.Transfer(handle, number, number.to_bytes(4, "big"), 0, False, False)
        return self._frame(transfer._replace(**more), payload)

    # ---- scenes ----

    def _send(self) -> Iterator[Step]:
        handle, attach = self._sender(self._random.choice(SENDABLE))
        yield attach
        session = self._random.choice((None, "a"))
        for _ in range(self._random.randint(1, 5)):
            whole = message(self._random, session)
            form = self._random.random()
            if form < 0.2:
                batch = b"".join(b"\x00\x53\x75" + encode(message(self._random, session)) for _ in range(3))
                yield self._transfer(handle, batch, message_format=BATCH_FORMAT)
            elif form < 0.4:
                yield self._transfer(handle, whole[:20], more=True)
                self._deliveries -= 1
                yield self._transfer(handle, whole[20:])
            else:
                yield self._transfer(handle, whole, settled=form < 0.5)
        yield self._detach(handle)

    def _receive(self) -> Iterator[Step]:
        handle, attach = self._receiver(self._random.choice(RECEIVABLE))
        yield attach
        yield self._credit(handle, 5)
        outcomes = (
            amqp.Accepted(), amqp.Released(), amqp.Modified(True), amqp.Modified(None, True),
            amqp.Rejected(amqp.Error(Symbol("com.microsoft:dead-letter"), None, {Symbol("DeadLetterReason"): "x"})),
        )  # fmt: skip
        for number in FIRST_IDS:
            state = self._random.choice(outcomes)
            yield self._frame(amqp.Disposition(amqp.ROLE_RECEIVER, number, number, False, state))
        yield self._credit(handle, 0, drain=True)
        yield self._detach(handle)

    def _receive_and_delete(self) -> Iterator[Step]:
        handle, attach = self._receiver(self._random.choice(RECEIVABLE), deletes=True)
        yield attach
        yield self._credit(handle, 3)
        yield self._credit(handle, 10, drain=True)
        yield self._detach(handle)

    def _session(self) -> Iterator[Step]:
        session_id = self._random.choice(("a", "b"))
        properties = {Symbol("com.microsoft:timeout"): UInt(1000)}
        source = amqp.Source(SESSIONS, filter={SESSION_FILTER: self._random.choice((session_id, None))})
        handle, attach = self._receiver(SESSIONS, source=source)
        attach.performative = attach.performative._replace(properties=properties)
        yield attach
        yield self._credit(handle, 5)
        link = attach.performative.name
        for operation, body in (
            ("set-session-state", {"session-id": session_id, "session-state": b"state"}),
            ("get-session-state", {"session-id": session_id}),
            ("renew-session-lock", {"session-id": session_id}),
            ("get-message-sessions", {"last-updated-time": Timestamp(0), "skip": 0, "top": 10}),
        ):
            yield from self._request(SESSIONS, operation, lambda answers, body=body: body, link)
        yield self._frame(amqp.Disposition(amqp.ROLE_RECEIVER, 1, 5, False, amqp.Accepted()))
        yield self._detach(handle)

    def _transaction(self) -> Iterator[Step]:
        coordinator = amqp.Coordinator(Symbol("amqp:local-transactions"))
        controller, attach = self._attach(amqp.ROLE_SENDER, amqp.Source("fuzz"), coordinator, (0, 0))
        yield attach
        sender, attach = self._sender(self._random.choice((QUEUE, TOPIC)))
        yield attach
        yield self._transfer(controller, _value(described(amqp.Declare())))

        def within(answers: Answers) -> Frame:
            state = amqp.TransactionalState(answers.transactions[-1] if answers.transactions else b"none")
            return self._transfer(sender, message(self._random), state=state)

        fails = self._random.random() < 0.3

        def discharge(answers: Answers) -> Frame:
            transaction = answers.transactions[-1] if answers.transactions else b"none"
            return self._transfer(controller, _value(described(amqp.Discharge(transaction, fails))))

        yield from (within, within, discharge)
        yield self._detach(controller)

    def _token(self) -> Iterator[Step]:
        audience = f"sb://127.0.0.1/{self._random.choice((QUEUE, TOPIC, 'nothing'))}"
        key = self._namespace.policy(ROOT_POLICY).primary_key
        token = sign(audience, ROOT_POLICY, key, time.time() + self._random.choice((-10, 3600)))
        properties = {"operation": "put-token", "type": "jwt", "name": audience}
        yield from self._ask_node("$cbs", properties, lambda answers: token)

    def _rules(self) -> Iterator[Step]:
        name = f"r{self._random.randrange(3)}"
        sql = {Symbol("sql-filter"): {"expression": "color = 'red' AND number > 1"}}
        rule = {"sql-filter": {"expression": "color LIKE 'r%'"}, "sql-rule-action": {"expression": "SET seen = 1"}}
        chosen = self._random.choice((rule, sql, {"correlation-filter": {"label": "x", "properties": {"a": 1}}}))
        for operation, body in (
            ("add-rule", {"rule-name": name, "rule-description": chosen}),
            ("enumerate-rules", {"skip": 0, "top": 10}),
            ("remove-rule", {"rule-name": name}),
        ):
            yield from self._request(SUBSCRIPTION, operation, lambda answers, body=body: body)

    def _ask(self) -> Iterator[Step]:
        """One management operation on messages, with the last received lock tokens or an unknown one."""
        count = self._random.randint(1, 3)

        def tokens(answers: Answers) -> list[uuid.UUID]:
            held = [uuid.UUID(bytes_le=tag) for tag in answers.tags[-count:] if len(tag) == 16]
            return held or [uuid.UUID(int=7)]

        numbers = [Long(self._random.randint(1, 30)) for _ in range(count)]
        status = self._random.choice(("completed", "abandoned", "defered", "suspended"))
        due = int(time.time() * 1000) + self._random.choice((-1000, 60_000))
        later = [{"message-id": "s", "message": message(self._random, due=due)} for _ in range(count)]
        makers: dict[str, Callable[[Answers], Any]] = {
            "peek-message": lambda answers: {"from-sequence-number": Long(0), "message-count": count},
            "renew-lock": lambda answers: {"lock-tokens": tokens(answers)},
            "update-disposition": lambda answers: {"disposition-status": status, "lock-tokens": tokens(answers)},
            "receive-by-sequence-number": lambda answers: {
                "sequence-numbers": numbers,
                "receiver-settle-mode": UInt(count % 2),
            },
            "schedule-message": lambda answers: {"messages": later},
            "cancel-scheduled-message": lambda answers: {"sequence-numbers": numbers},
            "batch-delete-messages": lambda answers: {"message-count": count, "enqueued-time-utc": Timestamp(due)},
        }
        operation = self._random.choice(list(makers))
        yield from self._request(self._random.choice((QUEUE, TOPIC)), operation, makers[operation])

    def _request(
        self, entity: str, operation: str, body: Callable[[Answers], Any], link: str | None = None
    ) -> Iterator[Step]:
        properties = {"operation": f"com.microsoft:{operation}"}
        if link is not None:
            properties["associated-link-name"] = link
        yield from self._ask_node(f"{entity}/$management", properties, body)

    def _ask_node(self, node: str, properties: dict[str, str], body: Callable[[Answers], Any]) -> Iterator[Step]:
        receiver, attach = self._receiver(node)
        yield attach
        sender, attach = self._sender(node)
        yield attach
        yield self._credit(receiver, 5)

        def request(answers: Answers) -> Frame:
            null = encode(None)
            fields = [encode(uuid.UUID(int=self._random.getrandbits(128))), null, null, null, encode("fuzz")]
            payload = sections.list_section(sections.PROPERTIES, fields)
            entries = [sections.entry(key, value) for key, value in properties.items()]
            payload += sections.map_section(sections.APPLICATION_PROPERTIES, entries)
            return self._transfer(sender, payload + _value(body(answers)))

        yield request
        yield self._detach(sender)
        yield self._detach(receiver)


def _value(body: Any) -> bytes:
    return b"\x00\x53\x77" + encode(body)
