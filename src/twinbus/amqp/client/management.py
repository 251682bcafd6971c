"""Sends management requests to an entity: peek, receive deferred messages, renew locks, settle."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.amqp.codec.types import Array, Int, Long, UInt

from .errors import AmqpError, RequestFailedError
from .requests import Answer, RequestLinks

MAX_ITEMS = 5000
PEEK_LOCK = 1
_UUIDS, _LONGS = 0x98, 0x81
_NO_CONTENT = 204
_MAX_COUNT = (1 << 31) - 1


class Settlement(StrEnum):
    """How a message is settled, as the service spells it."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "defered"
    DEAD_LETTERED = "suspended"


class LockedMessage(NamedTuple):
    """A deferred message that was received by its sequence number, and its lock token."""

    lock_token: uuid.UUID
    payload: bytes


class Management:
    """Sends requests to the management node of one entity. Each request is one billed operation.

    Each raises `RequestFailedError` with the service's status and condition, `AnswerTimeoutError`, or the error that
    ended the links. `seconds` overrides the timeout of the one request.
    """

    def __init__(self, links: RequestLinks, path: str, seconds: float) -> None:
        self._links = links
        self._seconds = seconds
        self.path = path

    @property
    def error(self) -> AmqpError | None:
        """Why the links to the node ended; None while they are attached."""
        return self._links.error

    async def peek_messages(self, from_sequence: int, count: int, *, seconds: float | None = None) -> list[bytes]:
        """Peek at most `count` encoded messages from a sequence number on: active, deferred and scheduled ones."""
        if not 1 <= count <= _MAX_COUNT:
            raise ValueError(f"count must be 1 to {_MAX_COUNT}, got {count}")
        body = {"from-sequence-number": Long(from_sequence), "message-count": Int(count)}
        answer = await self._request("peek-message", body, seconds)
        return [] if answer.status == _NO_CONTENT else [_payload(entry) for entry in _entries(answer)]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, seconds: float | None = None
    ) -> list[LockedMessage]:
        """Lock and return deferred messages. Fails for all if one is missing: `com.microsoft:message-not-found`."""
        numbers = Array(_LONGS, _bounded("sequence_numbers", sequence_numbers))
        body = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(PEEK_LOCK)}
        answer = await self._request("receive-by-sequence-number", body, seconds)
        if answer.status == _NO_CONTENT:
            return []
        return [LockedMessage(_token(entry), _payload(entry)) for entry in _entries(answer)]

    async def renew_locks(self, tokens: Sequence[uuid.UUID], *, seconds: float | None = None) -> list[int]:
        """Renew locks. Returns when each one ends, in milliseconds since the epoch."""
        body = {"lock-tokens": Array(_UUIDS, _bounded("tokens", tokens))}
        answer = await self._request("renew-lock", body, seconds)
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
        """Settle locked messages. `reason` and `description` are for dead-lettering."""
        body: dict[str, Any] = {
            "disposition-status": settlement.value,
            "lock-tokens": Array(_UUIDS, _bounded("tokens", tokens)),
        }
        if reason is not None:
            body["deadletter-reason"] = reason
        if description is not None:
            body["deadletter-description"] = description
        await self._request("update-disposition", body, seconds)

    async def close(self, seconds: float = 5.0) -> None:
        await self._links.close(seconds)

    async def _request(self, operation: str, body: dict[str, Any], seconds: float | None) -> Answer:
        seconds = self._seconds if seconds is None else seconds
        properties = {
            "operation": f"com.microsoft:{operation}",
            # The node gives up at the same time: a lock granted later would be of no use.
            "com.microsoft:server-timeout": UInt(int(seconds * 1000)),
        }
        answer = await self._links.request(properties, body, seconds)
        if not answer.is_ok:
            raise RequestFailedError(answer.description, answer.condition, answer.status)
        return answer


def _bounded(name: str, items: Sequence[Any]) -> Sequence[Any]:
    if not 1 <= len(items) <= MAX_ITEMS:
        raise ValueError(f"{name} must have 1 to {MAX_ITEMS} items, got {len(items)}")
    return items


def _malformed(operation: str) -> RequestFailedError:
    return RequestFailedError(f"the answer to {operation} is malformed", "amqp:decode-error", 500)


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
