"""The management node of an entity: messages that no link delivers, locks, and settlements without a link."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.amqp.types import Array, Int, Long, UInt

from .errors import AmqpError, RequestFailed
from .requests import Answer, RequestLinks

MAX_ITEMS = 5000
PEEK_LOCK = 1
_UUIDS, _LONGS = 0x98, 0x81
_NO_CONTENT = 204
_MAX_COUNT = (1 << 31) - 1


class Settlement(StrEnum):
    """What becomes of a message, in the words of the service."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "defered"
    DEAD_LETTERED = "suspended"


class LockedMessage(NamedTuple):
    """A deferred message that was fetched by its sequence number, and the lock it is under."""

    lock_token: uuid.UUID
    payload: bytes


class Management:
    """Requests to one entity. Each is one operation on the bill; the caller says how long it may take.

    Each raises `RequestFailed` with the service's status and condition, `TimedOut`, or the error that ended the links.
    """

    def __init__(self, links: RequestLinks, path: str, seconds: float) -> None:
        self._links = links
        self._seconds = seconds
        self.path = path

    @property
    def error(self) -> AmqpError | None:
        """Why the links to the node ended; None while they are there."""
        return self._links.error

    async def peek_messages(self, from_sequence: int, count: int, *, seconds: float | None = None) -> list[bytes]:
        """The encoded messages from a sequence number on, active, deferred or scheduled: at most `count`."""
        if not 1 <= count <= _MAX_COUNT:
            raise ValueError(f"count must be 1 to {_MAX_COUNT}, not {count}")
        body = {"from-sequence-number": Long(from_sequence), "message-count": Int(count)}
        answer = await self._ask("peek-message", body, seconds)
        return [] if answer.status == _NO_CONTENT else [_payload(entry) for entry in _entries(answer)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, seconds: float | None = None
    ) -> list[LockedMessage]:
        """Lock deferred messages. If one of them is not there, none is locked: `com.microsoft:message-not-found`."""
        numbers = Array(_LONGS, _bounded("sequence_numbers", sequence_numbers))
        body = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(PEEK_LOCK)}
        answer = await self._ask("receive-by-sequence-number", body, seconds)
        if answer.status == _NO_CONTENT:
            return []
        return [LockedMessage(_token(entry), _payload(entry)) for entry in _entries(answer)]

    async def renew_locks(self, tokens: Sequence[uuid.UUID], *, seconds: float | None = None) -> list[int]:
        """Start the locks anew: when each ends, in milliseconds since the epoch."""
        body = {"lock-tokens": Array(_UUIDS, _bounded("tokens", tokens))}
        answer = await self._ask("renew-lock", body, seconds)
        ends = answer.body.get("expirations") if isinstance(answer.body, dict) else None
        if not isinstance(ends, list) or len(ends) != len(tokens):
            raise _malformed("renew-lock")
        return [int(end) for end in ends]

    async def settle(
        self,
        tokens: Sequence[uuid.UUID],
        settlement: Settlement,
        *,
        reason: str | None = None,
        description: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Settle locked messages; the two texts are for dead letters."""
        body: dict[str, Any] = {
            "disposition-status": settlement.value,
            "lock-tokens": Array(_UUIDS, _bounded("tokens", tokens)),
        }
        if reason is not None:
            body["deadletter-reason"] = reason
        if description is not None:
            body["deadletter-description"] = description
        await self._ask("update-disposition", body, seconds)

    async def close(self, seconds: float = 5.0) -> None:
        await self._links.close(seconds)

    async def _ask(self, operation: str, body: dict[str, Any], seconds: float | None) -> Answer:
        seconds = self._seconds if seconds is None else seconds
        properties = {
            "operation": f"com.microsoft:{operation}",
            # The node gives up, too: nobody would take a lock that comes later.
            "com.microsoft:server-timeout": UInt(int(seconds * 1000)),
        }
        answer = await self._links.request(properties, body, seconds)
        if not answer.is_ok:
            raise RequestFailed(answer.description, answer.condition, answer.status)
        return answer


def _bounded(name: str, items: Sequence[Any]) -> Sequence[Any]:
    if not 1 <= len(items) <= MAX_ITEMS:
        raise ValueError(f"{name} must be 1 to {MAX_ITEMS} items, not {len(items)}")
    return items


def _malformed(operation: str) -> RequestFailed:
    return RequestFailed(f"the answer to {operation} is malformed", "amqp:decode-error", 500)


def _entries(answer: Answer) -> list[dict[Any, Any]]:
    entries = answer.body.get("messages") if isinstance(answer.body, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _malformed("a request for messages")
    return entries


def _payload(entry: dict[Any, Any]) -> bytes:
    payload = entry.get("message")
    if not isinstance(payload, bytes):
        raise _malformed("a request for messages")
    return payload


def _token(entry: dict[Any, Any]) -> uuid.UUID:
    token = entry.get("lock-token")
    if not isinstance(token, uuid.UUID):
        raise _malformed("receive-by-sequence-number")
    return token
