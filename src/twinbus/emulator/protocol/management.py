"""Answers `$management` of an entity: peek, schedule, renew, sessions and rules."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec.types import Array, DecodeError, Int, Timestamp
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import SubscriptionDescription
from twinbus.servicebus.rule_descriptions import MAX_RULES

from ..auth.security import missing_right
from ..entities.entity_directory import Node, SubscriptionEntity, TopicEntity
from ..entities.message import Arrival, Message
from ..entities.queue import Queue
from ..entities.rules.wire import read_rule, write_rule
from ..entities.session_queue import SessionQueue
from ..faults.fault_plan import FaultKind
from .error_conditions import (
    ARGUMENT_ERROR,
    DECODE_ERROR,
    ENTITY_EXISTS,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    OUT_OF_RANGE,
    UNAUTHORIZED,
    BrokerError,
    session_lock_lost,
)
from .links import OutgoingLink
from .requests import Request, Response, Subject

if TYPE_CHECKING:
    from ..server.namespace import Namespace
    from .connection import Connection

PREFIX = "com.microsoft:"
MAX_NUMBERS = 5000
MAX_PEEK = 1000
MAX_SESSIONS = 1000
MAX_DELETED = 4000
# DateTime.MaxValue of .NET: list all sessions with messages or a state, whenever the state was set.
MAX_DATE_MS = 253_402_300_800_000

# The other operations work in any status of the entity: locked messages can still be settled and renewed.
_NEED_ACTIVE = frozenset(
    {
        "peek-message",
        "batch-delete-messages",
        "receive-by-sequence-number",
        "schedule-message",
        "cancel-scheduled-message",
        "get-message-sessions",
    }
)

_ARRAY_UUID, _ARRAY_LONG, _ARRAY_TIMESTAMP, _ARRAY_STRING = 0x98, 0x81, 0x83, 0xB1


async def wait_for(call: Callable[..., Any], *args: Any) -> Any:
    """Call a queue operation that takes a completion callback, and wait for the callback."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BrokerError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    result = call(*args, done)
    await future
    return result


class Body:
    """The map of a request. Its readers raise `BrokerError` naming the field."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise BrokerError(ARGUMENT_ERROR, "The body of the request must be a map.")
        self._fields = {str(key): item for key, item in value.items()}

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._fields.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BrokerError(ARGUMENT_ERROR, f"'{name}' must be an integer.")
        if not low <= value <= high:
            raise BrokerError(OUT_OF_RANGE, f"'{name}' must be between {low} and {high}.")
        return int(value)

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise BrokerError(ARGUMENT_ERROR, f"'{name}' must be a string.")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise BrokerError(ARGUMENT_ERROR, f"'{name}' must be a string.")
        return None if value is None else str(value)

    def items(self, name: str) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list) or not 0 < len(value) <= MAX_NUMBERS:
            raise BrokerError(ARGUMENT_ERROR, f"'{name}' must be a list of 1 to {MAX_NUMBERS} items.")
        return value

    def count(self, name: str) -> int:
        """The length of a list, at least 1. An empty or missing list is refused when it is read."""
        value = self._fields.get(name)
        return max(1, len(value)) if isinstance(value, list) else 1

    def numbers(self, name: str) -> list[int]:
        items = self.items(name)
        if not all(isinstance(item, int) for item in items):
            raise BrokerError(ARGUMENT_ERROR, f"'{name}' must hold integers.")
        return [int(item) for item in items]

    def tokens(self, name: str) -> list[bytes]:
        items = self.items(name)
        tokens = []
        for item in items:
            if isinstance(item, str):
                try:
                    item = uuid.UUID(item)
                except ValueError:
                    item = None
            if not isinstance(item, uuid.UUID):
                raise BrokerError(ARGUMENT_ERROR, f"'{name}' must hold uuids.")
            tokens.append(item.bytes)
        return tokens

    def get(self, name: str) -> Any:
        return self._fields.get(name)


MAX_REQUEST = 4 << 20


class ManagementNode:
    """The `$management` request node of one entity."""

    STATUS = "statusCode"
    DESCRIPTION = "statusDescription"

    def __init__(self, namespace: Namespace, node: Node) -> None:
        self._namespace = namespace
        self._node = node
        self.path: str | None = node.path
        # Room for scheduling one message of the largest size, or several small ones.
        self.max_request = max(MAX_REQUEST, node.queue.limits.max_message_bytes + (64 << 10))
        self._operations: dict[str, tuple[Right, Callable[..., Awaitable[Response]]]] = {
            "peek-message": (Right.LISTEN, self._peek),
            "batch-delete-messages": (Right.LISTEN, self._delete_messages),
            "renew-lock": (Right.LISTEN, self._renew_lock),
            "update-disposition": (Right.LISTEN, self._update_disposition),
            "receive-by-sequence-number": (Right.LISTEN, self._receive_by_sequence_number),
            "schedule-message": (Right.SEND, self._schedule),
            "cancel-scheduled-message": (Right.SEND, self._cancel),
            "get-session-state": (Right.LISTEN, self._get_session_state),
            "set-session-state": (Right.LISTEN, self._set_session_state),
            "renew-session-lock": (Right.LISTEN, self._renew_session_lock),
            "get-message-sessions": (Right.LISTEN, self._get_message_sessions),
            "add-rule": (Right.LISTEN, self._add_rule),
            "remove-rule": (Right.LISTEN, self._remove_rule),
            "enumerate-rules": (Right.LISTEN, self._enumerate_rules),
        }

    @property
    def _queue(self) -> Queue:
        return self._node.queue

    def subject(self, request: Request) -> Subject:
        # A full queue can still be peeked and emptied.
        is_send = request.properties.get("operation") == f"{PREFIX}schedule-message"
        return Subject(self._node.path, frozenset() if is_send else frozenset({FaultKind.FILL}))

    async def answer(self, request: Request, connection: Connection) -> Response:
        name = request.text("operation")
        operation = self._operations.get(name.removeprefix(PREFIX))
        if operation is None or not name.startswith(PREFIX):
            raise BrokerError(NOT_IMPLEMENTED, f"The operation '{name}' is not supported.")
        right, handler = operation
        if not connection.rights.allows_management(self._node.path, right):
            raise BrokerError(UNAUTHORIZED, missing_right(right, self._node.path).message)
        body = Body(request.body)
        # The service throttles by messages. Only schedule-message carries messages; other requests count as one.
        messages = body.count("messages") if name == f"{PREFIX}schedule-message" else 1
        if not self._namespace.throttle.admits(messages):
            raise self._namespace.throttle.busy()
        if name.removeprefix(PREFIX) in _NEED_ACTIVE:
            self._node.require_active(right)
        self._queue.accessed_at = self._queue.env.now_ms() / 1000
        return await handler(body, _associated_link(request, connection))

    def _receivable(self) -> Queue:
        if isinstance(self._node.entity, TopicEntity):
            raise BrokerError(NOT_ALLOWED, "Messages are received from a topic's subscriptions.")
        return self._queue

    # ---- messages ----

    async def _peek(self, body: Body, link: OutgoingLink | None) -> Response:
        start = body.integer("from-sequence-number", -(1 << 63), (1 << 63) - 1)
        count = body.integer("message-count", 1, 1 << 31)
        queue = self._queue
        if queue.counters.active + queue.counters.deferred + queue.counters.scheduled == 0:
            return Response(204, "No messages")
        session = body.optional_text("session-id")
        messages = queue.peek(start, min(count, MAX_PEEK), session)
        if not messages:
            return Response(204, "No messages")
        return Response(200, "OK", {"messages": [{"message": message.encoded()} for message in messages]})

    async def _delete_messages(self, body: Body, link: OutgoingLink | None) -> Response:
        """Delete the oldest unlocked messages enqueued before a time; clients repeat this to purge."""
        count = body.integer("message-count", 1, 1 << 31)
        before = body.integer("enqueued-time-utc", -(1 << 63), (1 << 63) - 1)
        queue = self._receivable()
        session = self._own_session(body, link)[1] if isinstance(queue, SessionQueue) else None
        deleted = await wait_for(queue.delete_oldest, before, min(count, MAX_DELETED), session)
        if not deleted:
            return Response(204, "No messages")
        return Response(200, "OK", {"message-count": Int(deleted)})

    async def _renew_lock(self, body: Body, link: OutgoingLink | None) -> Response:
        times = [self._receivable().renew(token) for token in body.tokens("lock-tokens")]
        return Response(200, "OK", {"expirations": Array(_ARRAY_TIMESTAMP, times)})

    async def _update_disposition(self, body: Body, link: OutgoingLink | None) -> Response:
        queue = self._receivable()
        status = body.text("disposition-status")
        changed = body.get("properties-to-modify")
        changed = {str(key): value for key, value in changed.items()} if isinstance(changed, dict) else {}
        reason = dict(changed)
        for name, field in (
            ("DeadLetterReason", "deadletter-reason"),
            ("DeadLetterErrorDescription", "deadletter-description"),
        ):
            text = body.optional_text(field)
            if text is not None:
                reason[name] = text
        settle: dict[str, Callable[[bytes], Awaitable[Any]]] = {
            "completed": lambda token: wait_for(queue.complete, token),
            "abandoned": lambda token: wait_for(queue.abandon, token, changed),
            "defered": lambda token: wait_for(queue.defer, token, changed),
            "suspended": lambda token: wait_for(queue.dead_letter_locked, token, reason),
        }
        if status not in settle:
            raise BrokerError(ARGUMENT_ERROR, f"'disposition-status' must be one of {', '.join(settle)}.")
        if isinstance(queue, SessionQueue) and body.optional_text("session-id") is not None:
            self._own_session(body, link)  # its messages are locked while the session is
        for token in body.tokens("lock-tokens"):
            await settle[status](token)
        return Response(200, "OK")

    async def _receive_by_sequence_number(self, body: Body, link: OutgoingLink | None) -> Response:
        queue = self._receivable()
        numbers = body.numbers("sequence-numbers")
        deletes = body.integer("receiver-settle-mode", 0, 1, default=1) == 0
        messages = queue.find_deferred(numbers)
        if isinstance(queue, SessionQueue):
            self._require_session(queue, messages, link, body.optional_text("session-id"))
        if deletes:
            await wait_for(queue.remove_messages, messages)
            return Response(200, "OK", {"messages": [{"message": message.encoded()} for message in messages]})
        now = queue.env.now_ms()
        entries = []
        for message in messages:
            lock = queue.lock(message, link, now, deferred=True)  # type: ignore[arg-type]
            entries.append(
                {
                    "lock-token": uuid.UUID(bytes=lock.token),
                    "message": message.encoded(lock.token, lock.locked_until),
                }
            )
        return Response(200, "OK", {"messages": entries})

    @staticmethod
    def _require_session(
        queue: SessionQueue, messages: list[Message], link: OutgoingLink | None, named: str | None
    ) -> None:
        session = queue.session_of(link) if link is not None else None
        for message in messages:
            if session is None or message.session != session.id:
                raise session_lock_lost(message.session or named or "")

    # ---- scheduling ----

    async def _schedule(self, body: Body, link: OutgoingLink | None) -> Response:
        arrivals = []
        for item in body.items("messages"):
            raw = item.get("message") if isinstance(item, dict) else None
            if not isinstance(raw, bytes):
                raise BrokerError(ARGUMENT_ERROR, "Each of 'messages' must be a map with a binary 'message'.")
            try:
                arrivals.append(Arrival(raw))
            except DecodeError as error:
                raise BrokerError(DECODE_ERROR, str(error)) from error
        self._queue.check(arrivals)
        numbers = await wait_for(self._queue.schedule, arrivals)
        return Response(200, "OK", {"sequence-numbers": Array(_ARRAY_LONG, numbers)})

    async def _cancel(self, body: Body, link: OutgoingLink | None) -> Response:
        await wait_for(self._queue.cancel, body.numbers("sequence-numbers"))
        return Response(200, "OK")

    # ---- sessions ----

    def _sessions(self) -> SessionQueue:
        queue = self._receivable()
        if not isinstance(queue, SessionQueue):
            raise BrokerError(NOT_ALLOWED, f"'{self._node.path}' does not require sessions.")
        return queue

    def _own_session(self, body: Body, link: OutgoingLink | None) -> tuple[SessionQueue, str]:
        """The session that a request names; raises `BrokerError` unless the associated link holds it."""
        queue, session_id = self._sessions(), body.text("session-id")
        session = queue.session_of(link) if link is not None else None
        if session is None or session.id != session_id:
            raise session_lock_lost(session_id)
        return queue, session_id

    async def _get_session_state(self, body: Body, link: OutgoingLink | None) -> Response:
        queue, session_id = self._own_session(body, link)
        return Response(200, "OK", {"session-state": queue.session_state(session_id)})

    async def _set_session_state(self, body: Body, link: OutgoingLink | None) -> Response:
        queue, session_id = self._own_session(body, link)
        state = body.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise BrokerError(ARGUMENT_ERROR, "'session-state' must be binary or null.")
        await wait_for(queue.set_session_state, session_id, state)
        return Response(200, "OK")

    async def _renew_session_lock(self, body: Body, link: OutgoingLink | None) -> Response:
        queue, session_id = self._own_session(body, link)
        return Response(200, "OK", {"expiration": Timestamp(queue.renew_session(session_id))})

    async def _get_message_sessions(self, body: Body, link: OutgoingLink | None) -> Response:
        queue = self._sessions()
        since = body.integer("last-updated-time", -(1 << 63), (1 << 63) - 1)
        skip = body.integer("skip", 0, 1 << 31, default=0)
        top = min(body.integer("top", 1, 1 << 31, default=100), MAX_SESSIONS)
        if since >= MAX_DATE_MS:
            session_ids = queue.sessions(skip, top)
        else:
            session_ids = queue.sessions_updated_since(since / 1000, skip, top)
        if not session_ids:
            return Response(204, "No sessions", condition="com.microsoft:session-not-found")
        return Response(200, "OK", {"skip": Int(skip), "sessions-ids": Array(_ARRAY_STRING, session_ids)})

    # ---- rules ----

    def _subscription(self) -> SubscriptionDescription:
        entity = self._node.entity
        if not isinstance(entity, SubscriptionEntity) or self._node.is_dead_letter:
            raise BrokerError(NOT_ALLOWED, f"'{self._node.path}' is not a subscription: it has no rules.")
        return entity.description

    async def _add_rule(self, body: Body, link: OutgoingLink | None) -> Response:
        owner, name = self._subscription(), body.text("rule-name")
        if any(rule.name.lower() == name.lower() for rule in owner.rules):
            raise BrokerError(ENTITY_EXISTS, f"'{owner.path}' has a rule '{name}' already.")
        try:
            rule = read_rule(name, body.get("rule-description"), self._queue.env.now_ms() / 1000)
            changed = replace(owner, rules=(*owner.rules, rule))
            changed.validate()
        except ValueError as error:
            raise BrokerError(ARGUMENT_ERROR, str(error)) from error
        await self._namespace.update_subscription(changed)
        return Response(200, "OK")

    async def _remove_rule(self, body: Body, link: OutgoingLink | None) -> Response:
        owner, name = self._subscription(), body.text("rule-name")
        kept = tuple(rule for rule in owner.rules if rule.name.lower() != name.lower())
        if len(kept) == len(owner.rules):
            raise BrokerError(NOT_FOUND, f"'{owner.path}' has no rule '{name}'.")
        await self._namespace.update_subscription(replace(owner, rules=kept))
        return Response(200, "OK")

    async def _enumerate_rules(self, body: Body, link: OutgoingLink | None) -> Response:
        owner = self._subscription()
        skip = body.integer("skip", 0, (1 << 31) - 1, default=0)
        top = min(body.integer("top", 1, (1 << 31) - 1, default=MAX_RULES), MAX_RULES)
        rules = owner.rules[skip : skip + top]
        if not rules:
            return Response(204, "No rules")
        return Response(200, "OK", {"rules": [{"rule-description": write_rule(rule)} for rule in rules]})


def _associated_link(request: Request, connection: Connection) -> OutgoingLink | None:
    """The receiver link that a request names, or None."""
    name = request.properties.get("associated-link-name")
    for channel in connection.channels.values():
        for link in channel.links.values():
            if isinstance(link, OutgoingLink) and link.name == name:
                return link
    return None
