"""Lists the dead letters of the backlog, and replays them to their destinations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.links import outcome_future
from twinbus.amqp.client.receiver import ACCEPT, RELEASE, Delivery, Receiver
from twinbus.amqp.client.sender import Sender
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import DecodeError
from twinbus.envelope import aliases
from twinbus.envelope.restoring import MalformedEnvelopeError, NoEnvelopeError, Restored, restore
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Recorder, Stage
from twinbus.servicebus.entity_paths import parse_backlog_path
from twinbus.syphon.settlement.bookkeeping import name_of, outcome_of

PAGE = 250  # messages per peek
CHUNK = 50  # messages in flight at once: a lock lasts a minute
SECONDS = 30.0  # timeout of one step
PATIENCE = 5.0  # seconds without a message, after which the rest counts as locked by another receiver
#: A replay must receive the dead letters that precede the chosen ones: it holds the locks of at most this many.
MAX_HELD = 5_000


class DeadLetter(NamedTuple):
    """A dead letter as a peek shows it. Reason and description are those of the client that dead-lettered it."""

    queue: str
    sequence_number: int
    message_id: str | None
    #: Its destination; None if it has no envelope.
    destination: str | None
    reason: str | None
    description: str | None
    enqueued_at_ms: int | None
    bytes: int


class ReplayError(Exception):
    """Dead letters cannot be listed or replayed."""


@dataclass(slots=True)
class Replayed:
    """Result of a replay."""

    moved: int = 0
    #: Dead letters that stay because they were refused again or have no envelope: the reason by queue and number.
    left: dict[tuple[str, int], str] = field(default_factory=dict)
    #: Sent, but still among the dead letters as well: the lock had expired.
    not_completed: int = 0
    #: Chosen, and not received again: another receiver has them.
    missing: int = 0


def dead_letter_path(queue: str) -> str:
    """Return the path of a queue's dead-letter queue."""
    return f"{queue}/$DeadLetterQueue"


def read_dead_letter(queue: str, payload: bytes) -> DeadLetter:
    """Decode a peeked message. Raises `DecodeError`."""
    parts = sections.split_sections(payload)
    annotations: Mapping[Any, bytes] = dict(sections.map_entries(parts.message_annotations))
    properties: Mapping[Any, bytes] = dict(sections.map_entries(parts.application_properties))
    number = _value(annotations, "x-opt-sequence-number", int)
    return DeadLetter(
        queue=queue,
        sequence_number=0 if number is None else number,
        message_id=_text(sections.list_fields(parts.properties, 1)[0]),
        destination=_value(properties, aliases.PATH, str),
        reason=_value(properties, "DeadLetterReason", str),
        description=_value(properties, "DeadLetterErrorDescription", str),
        enqueued_at_ms=_value(annotations, "x-opt-enqueued-time", int),
        bytes=len(payload),
    )


def _value(entries: Mapping[Any, bytes], name: str, kind: type) -> Any:
    value = sections.entry_value(entries[name]) if name in entries else None
    return value if isinstance(value, kind) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


async def list_dead_letters(connection: Connection, queue: str, limit: int) -> list[DeadLetter]:
    """Return up to `limit` dead letters of a queue, oldest first. Locks and changes nothing.

    Raises what `Connection.management` and `Management.peek_messages` raise, and `ReplayError` for a message that
    cannot be read.
    """
    management = await connection.management(dead_letter_path(queue), seconds=SECONDS)
    letters: list[DeadLetter] = []
    first = 0
    try:
        while len(letters) < limit:
            page = await management.peek_messages(first, min(PAGE, limit - len(letters)), seconds=SECONDS)
            if not page:
                break
            for payload in page:
                try:
                    letter = read_dead_letter(queue, payload)
                except DecodeError as error:
                    raise ReplayError(f"a dead letter of {queue} cannot be read: {error}") from error
                letters.append(letter)
                first = max(first, letter.sequence_number + 1)
    finally:
        await management.close()
    return letters


class Replay:
    """Sends dead letters to their destinations; completes each one only when its destination has it.

    Their time to live restarts: otherwise expired ones would expire again. `flush` makes the recorder's rows durable.
    """

    def __init__(
        self,
        primary: Connection,
        secondary: Connection,
        recorder: Recorder,
        *,
        pairing: str = "",
        client: str = "",
        flush: Callable[[], Awaitable[None]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._recorder = recorder
        self._pairing = pairing
        self._client = client
        self._flush = flush
        self._now = now
        self._senders: dict[str, Sender] = {}
        self._done = Replayed()

    async def run(self, letters: Iterable[DeadLetter]) -> Replayed:
        """Replay these dead letters.

        Raises `AmqpError` if a connection is lost meanwhile (run it again for the rest), `ReplayError` if too many
        other dead letters precede the chosen ones.
        """
        chosen: dict[str, set[int]] = {}
        for letter in letters:
            chosen.setdefault(letter.queue, set()).add(letter.sequence_number)
        for queue, numbers in chosen.items():
            await self._replay_queue(queue, numbers)
        return self._done

    async def _replay_queue(self, queue: str, numbers: set[int]) -> None:
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        held: list[Delivery] = []
        async with AsyncExitStack() as stack:
            receiver = await self._secondary.attach_receiver(
                dead_letter_path(queue), arrived.put_nowait, seconds=SECONDS
            )
            stack.push_async_callback(receiver.close, SECONDS)
            try:
                while numbers:
                    chunk = await self._take(receiver, arrived)
                    if not chunk:
                        break
                    chosen = []
                    for delivery in chunk:
                        number = read_dead_letter(queue, delivery.payload).sequence_number
                        if number in numbers:
                            numbers.discard(number)
                            chosen.append((number, delivery))
                        else:
                            held.append(delivery)
                    await self._replay_chunk(queue, receiver, chosen, held)
                    if len(held) > MAX_HELD:
                        raise ReplayError(
                            f"more than {MAX_HELD} other dead letters of {queue} precede the chosen ones:"
                            " replay or remove some of them first"
                        )
            finally:
                self._done.missing += len(numbers)
                await self._give_back(receiver, arrived, held)

    async def _take(self, receiver: Receiver, arrived: asyncio.Queue[Delivery]) -> list[Delivery]:
        """Return the next messages; none after `PATIENCE` seconds without one."""
        if receiver.credit < CHUNK:
            receiver.add_credit(CHUNK - receiver.credit)
        chunk: list[Delivery] = []
        try:
            async with asyncio.timeout(PATIENCE):
                chunk.append(await arrived.get())
        except TimeoutError:
            receiver.check()
            return []
        while not arrived.empty() and len(chunk) < CHUNK:
            chunk.append(arrived.get_nowait())
        return chunk

    async def _replay_chunk(
        self, queue: str, receiver: Receiver, chosen: Collection[tuple[int, Delivery]], held: list[Delivery]
    ) -> None:
        accepted: list[tuple[Restored, Delivery]] = []
        for number, delivery in chosen:
            try:
                restored = restore(delivery.payload, now_ms=int(self._now() * 1000), ttl="restart")
                if parse_backlog_path(restored.destination) is not None:
                    raise MalformedEnvelopeError("The destination is itself a backlog queue.")
                self._row(queue, restored, OperationKind.RECEIVE, size=len(delivery.payload))
                await self._send(queue, restored)
            except (NoEnvelopeError, MalformedEnvelopeError) as error:
                self._leave(queue, number, str(error))
            except AmqpError as error:
                if self._primary.error is not None:
                    raise
                self._leave(queue, number, error.condition or str(error))
            else:
                accepted.append((restored, delivery))
                continue
            held.append(delivery)
        if accepted and self._flush is not None:
            await self._flush()
        for restored, delivery in accepted:
            self._done.moved += 1
            try:
                await receiver.settled(delivery, ACCEPT, SECONDS)
            except AmqpError as error:
                self._done.not_completed += 1
                self._row(queue, restored, OperationKind.COMPLETE, error)
            else:
                self._row(queue, restored, OperationKind.COMPLETE)
        receiver.check()

    def _leave(self, queue: str, number: int, reason: str) -> None:
        self._done.left[queue, number] = reason

    async def _send(self, queue: str, restored: Restored) -> None:
        try:
            sender = self._senders.get(restored.destination)
            if sender is None or sender.error is not None:
                sender = await self._primary.attach_sender(restored.destination, seconds=SECONDS)
                self._senders[restored.destination] = sender
            await sender.deliver(restored.payload, SECONDS)
        except AmqpError as error:
            self._row(queue, restored, OperationKind.SEND, error, size=len(restored.payload))
            raise
        self._row(queue, restored, OperationKind.SEND, size=len(restored.payload))

    async def _give_back(self, receiver: Receiver, arrived: asyncio.Queue[Delivery], held: list[Delivery]) -> None:
        """Release the messages that were not replayed. If that fails, their locks expire."""
        with suppress(AmqpError, TimeoutError):
            await receiver.stop(SECONDS)  # or they would be delivered to this link again
            while not arrived.empty():
                held.append(arrived.get_nowait())
            outcomes = []
            for delivery in held:
                done, on_done = outcome_future()
                receiver.settle(delivery, RELEASE, on_done)
                outcomes.append(done)
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*outcomes, return_exceptions=True)

    def _row(
        self, queue: str, restored: Restored, kind: OperationKind, error: AmqpError | None = None, size: int = 0
    ) -> None:
        is_send = kind is OperationKind.SEND
        self._recorder.record(
            Operation(
                pairing=self._pairing,
                client=self._client,
                namespace=NamespaceRole.PRIMARY if is_send else NamespaceRole.SECONDARY,
                entity=restored.destination if is_send else dead_letter_path(queue),
                operation=kind,
                stage=Stage.PRIMARY_SEND if is_send else Stage.BACKLOG_RECEIVE,
                outcome=Outcome.DONE if error is None else outcome_of(error),
                message_id=restored.message_id,
                destination=restored.destination,
                backlog_queue=queue,
                sequence_number=restored.sequence_number,
                delivery_count=restored.delivery_count,
                bytes=size,
                count=1,
                error=name_of(error),
            )
        )
