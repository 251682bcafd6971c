"""Runs one AMQP session: flow windows, links, and deliveries and settlements without an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import disposition_frame, frame, transfer_frames, uint

from .errors import AmqpError, AnswerTimeoutError, LinkDetachedError, delivery_failure

if TYPE_CHECKING:
    from .links import Link
    from .wire import Wire

MASK = 0xFFFFFFFF
INCOMING_WINDOW = 5000  # frames
OUTGOING_WINDOW = MASK >> 1
HANDLE_MAX = 4999
MAX_UNSETTLED = 50_000
DEAD_LETTER = "com.microsoft:dead-letter"

OnOutcome = Callable[[AmqpError | None], None]
"""Called with the outcome of a delivery or settlement: None if it succeeded, else the error."""


class Pending(NamedTuple):
    """A message or settlement that the peer has not answered yet."""

    link: Link
    on_outcome: OnOutcome
    sent_at: float
    state: type | None = None


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group numbers into runs of consecutive ones, smallest first."""
    result: list[tuple[int, int]] = []
    first = last = -1
    for number in sorted(numbers):
        if number != last + 1 or first < 0:
            if first >= 0:
                result.append((first, last))
            first = number
        last = number
    if first >= 0:
        result.append((first, last))
    return result


def unsettled_disposition(channel: int, first: int, last: int, state: bytes) -> bytes:
    """Encode a receiver's unsettled disposition of a range of deliveries."""
    fields = b"\x41" + uint(first) + uint(last) + b"\x42" + state
    size = len(fields) + 1
    body = b"\x00\x53\x15" + (
        bytes((0xC0, size, 5)) if size < 256 else b"\xd0" + (size + 3).to_bytes(4, "big") + b"\x00\x00\x00\x05"
    )
    return (8 + len(body) + len(fields)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body + fields


_ACCEPTED = b"\x00\x53\x24\x45"


class Session:
    """Our end of one AMQP session."""

    def __init__(self, wire: Wire, channel: int, outcome_timeout: float) -> None:
        """`outcome_timeout` is how many seconds the peer may take for an outcome."""
        self.wire = wire
        self.channel = channel
        self.outcome_timeout = outcome_timeout
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._time = asyncio.get_running_loop().time
        self._ours: dict[int, Link] = {}
        self._theirs: dict[int, Link] = {}
        self._handle_max = HANDLE_MAX
        self._window = INCOMING_WINDOW
        self._next_incoming_id = 0
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._peer_window = 0
        self._stalled: deque[tuple[Link, bytes]] = deque()
        self._sent: dict[int, Pending] = {}
        self._settling: dict[int, Pending] = {}
        self._accepting: list[int] = []
        self._credit_changed: dict[Link, None] = {}
        self._probed_at: float | None = None
        self._orphans: dict[Link, list[Pending]] = {}
        self.ended = False

    def begin(self) -> None:
        begin = amqp.Begin(None, self._next_outgoing_id, INCOMING_WINDOW, OUTGOING_WINDOW, HANDLE_MAX)
        self.wire.write(frame(self.channel, begin))

    def on_begin(self, begin: amqp.Begin) -> None:
        self._next_incoming_id = begin.next_outgoing_id
        self._peer_window = begin.incoming_window
        self._handle_max = min(HANDLE_MAX, MASK if begin.handle_max is None else begin.handle_max)
        if not self.begun.done():
            self.begun.set_result(None)

    # ---- frames ----

    def handle(self, performative: Any) -> None:
        kind = type(performative)
        if kind is amqp.Disposition:
            self._on_disposition(performative)
        elif kind is amqp.Flow:
            self._on_flow(performative)
        elif kind is amqp.Attach:
            self._on_attach(performative)
        elif kind is amqp.Detach:
            link = self._theirs.pop(performative.handle, None)
            if link is not None:
                link.on_detach(performative)
        else:
            self._violated("amqp:not-allowed", f"a {kind.__name__} frame is not expected in a session")

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & MASK
        self._window -= 1
        if self._window < 0:
            self._violated("amqp:session:window-violation", "a transfer exceeded the session's window")
            return
        link = self._theirs.get(transfer.handle)
        if link is not None:
            link.on_transfer(transfer, payload)
        if self._window <= INCOMING_WINDOW // 2:
            self._window = INCOMING_WINDOW
            self.wire.write(frame(self.channel, self._flow()))

    def _violated(self, condition: str, why: str) -> None:
        self.end(LinkDetachedError(f"the peer broke the protocol: {why}", condition))

    def _on_attach(self, attach: amqp.Attach) -> None:
        matching = (link for link in self._ours.values() if link.name == attach.name and link.role is not attach.role)
        link = next(matching, None)
        if link is None or attach.handle in self._theirs:
            self._violated("amqp:not-allowed", "the peer attached a link that was not requested")
            return
        self._theirs[attach.handle] = link
        link.on_attach(attach)

    def _flow(self) -> amqp.Flow:
        return amqp.Flow(self._next_incoming_id, self._window, self._next_outgoing_id, OUTGOING_WINDOW)

    def link_flow(self, link: Link, **fields: Any) -> None:
        """Send a flow with a link's credit."""
        self.wire.write(frame(self.channel, self._flow()._replace(handle=link.handle, **fields)))

    def _on_flow(self, flow: amqp.Flow) -> None:
        # Transfers that the peer had not seen when it wrote this use up a part of its window.
        seen_id = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        self._peer_window = flow.incoming_window - ((self._next_outgoing_id - seen_id) & MASK)
        self._send_stalled()
        if flow.handle is not None:
            link = self._theirs.get(flow.handle)
            if link is not None:
                link.on_flow(flow)
        elif flow.echo:
            self.wire.write(frame(self.channel, self._flow()))
        self.wake()

    # ---- outcomes ----

    def _on_disposition(self, disposition: amqp.Disposition) -> None:
        from_receiver = disposition.role is amqp.ROLE_RECEIVER  # it is about what we sent
        pending = self._sent if from_receiver else self._settling
        first = disposition.first
        last = disposition.last if disposition.last is not None else first
        span = (last - first) & MASK
        if span >= len(pending):
            numbers: Iterable[int] = [number for number in pending if (number - first) & MASK <= span]
        elif last >= first:
            numbers = range(first, last + 1)
        else:
            numbers = [(first + step) & MASK for step in range(span + 1)]
        state, settled = disposition.state, bool(disposition.settled)
        if from_receiver:
            if not settled:
                if state is None or type(state) is amqp.Received:
                    return  # not final
                self.wire.write(disposition_frame(self.channel, amqp.ROLE_SENDER, first, last, state))
            self._resolve(pending, numbers, delivery_failure(state))
        elif settled:
            self._resolve_settled(pending, numbers, state)

    @staticmethod
    def _resolve(pending: dict[int, Pending], numbers: Iterable[int], failure: AmqpError | None) -> None:
        for number in numbers:
            entry = pending.pop(number, None)
            if entry is not None:
                entry.link.answered()
                entry.on_outcome(failure)

    @staticmethod
    def _resolve_settled(pending: dict[int, Pending], numbers: Iterable[int], state: Any) -> None:
        """A settlement succeeded if the peer repeats it. It answers a dead-lettering with an empty rejected."""
        kind = type(state)
        reason = state.error if kind is amqp.Rejected else None
        if reason is not None and reason.condition == DEAD_LETTER:
            reason = None
        for number in numbers:
            entry = pending.pop(number, None)
            if entry is not None:
                entry.link.answered()
                is_done = state is None or kind is amqp.Accepted or (kind is entry.state and reason is None)
                entry.on_outcome(None if is_done else delivery_failure(state))

    def tick(self, now: float) -> None:
        """Give up links whose oldest pending entry is overdue, or the connection if the peer is silent."""
        oldest = min(
            (next(iter(pending.values())).sent_at for pending in (self._sent, self._settling) if pending), default=now
        )
        if self.wire.last_read < oldest < now - self.outcome_timeout / 2:
            if self._probed_at is None:
                self._probed_at = now
                self.probe(oldest)
            elif oldest < now - self.outcome_timeout and self._probed_at <= now - self.outcome_timeout / 4:
                self.wire.fail(AnswerTimeoutError(f"the peer answered nothing within {self.outcome_timeout:g} seconds"))
            return
        self._probed_at = None
        overdue: dict[Link, None] = {}
        for pending in (self._sent, self._settling):
            for entry in pending.values():
                if now - entry.sent_at <= self.outcome_timeout:
                    break
                overdue[entry.link] = None
        for link in overdue:
            link.give_up(AnswerTimeoutError(f"'{link.path}' did not answer within {self.outcome_timeout:g} seconds"))

    def probe(self, since: float) -> None:
        """Ask the peer for a flow if it has sent nothing since then."""
        if self.wire.last_read < since and self.wire.error is None and not self.ended:
            self.wire.write(frame(self.channel, self._flow()._replace(echo=True)))

    # ---- deliveries ----

    @property
    def available(self) -> int:
        """How many one-frame messages the session can send now."""
        if self._stalled or self.wire.blocked or self.wire.error is not None:
            return 0
        return min(self._peer_window, MAX_UNSETTLED - len(self._sent))

    def transfer(self, link: Link, payload: bytes, on_outcome: OnOutcome) -> None:
        """Send a message in one frame, or in several if it exceeds the peer's frame size."""
        number = self._next_delivery_id
        self._next_delivery_id = (number + 1) & MASK
        self._sent[number] = tuple.__new__(Pending, (link, on_outcome, self._time(), None))
        wire = self.wire
        tag = number.to_bytes(4, "big")
        parts = transfer_frames(self.channel, link.handle, number, tag, False, payload, wire.max_frame_size)
        if len(parts) == 1 and self._peer_window > 0 and not self._stalled:
            self._peer_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & MASK
            wire.write(parts[0])
        else:
            self._stalled.extend((link, part) for part in parts)
            self._send_stalled()

    def _send_stalled(self) -> None:
        while self._stalled and self._peer_window > 0:
            self._peer_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & MASK
            self.wire.write(self._stalled.popleft()[1])

    def accept(self, link: Link, number: int, on_outcome: OnOutcome) -> None:
        """Complete a delivery. Those of one turn of the event loop leave as ranges."""
        self._settling[number] = tuple.__new__(Pending, (link, on_outcome, self._time(), amqp.Accepted))
        self._accepting.append(number)
        self.wire.flush_soon()

    def settle(self, link: Link, number: int, state: Any, on_outcome: OnOutcome) -> None:
        """Settle a delivery with an outcome."""
        self._settling[number] = Pending(link, on_outcome, self._time(), type(state))
        disposition = amqp.Disposition(amqp.ROLE_RECEIVER, number, number, False, state)
        self.wire.write(frame(self.channel, disposition))

    def acknowledge(self, number: int) -> None:
        """Settle a delivery as accepted, without an answer."""
        self.wire.write(disposition_frame(self.channel, amqp.ROLE_RECEIVER, number, number, None))

    def credit_changed(self, link: Link) -> None:
        """Send a link's credit at the end of this turn of the event loop."""
        self._credit_changed[link] = None
        self.wire.flush_soon()

    def write_collected(self) -> None:
        """Write the collected settlements and credit."""
        if self._accepting:
            for first, last in runs(self._accepting):
                self.wire.write(unsettled_disposition(self.channel, first, last, _ACCEPTED))
            self._accepting.clear()
        if self._credit_changed:
            for link in self._credit_changed:
                link.write_flow()
            self._credit_changed.clear()

    def wake(self) -> None:
        """Let the links look again whether they can send."""
        for link in list(self._ours.values()):
            link.wake()

    # ---- links ----

    def free_handles(self) -> int:
        """How many links can still be attached."""
        return 0 if self.ended else self._handle_max + 1 - len(self._ours)

    def next_handle(self) -> int:
        return next(handle for handle in range(self._handle_max + 1) if handle not in self._ours)

    def add(self, link: Link) -> None:
        self._ours[link.handle] = link

    def remove(self, link: Link) -> None:
        """Free the handle: both sides have detached."""
        if self._ours.get(link.handle) is link:
            del self._ours[link.handle]

    def take_pending(self, link: Link) -> list[Pending]:
        """Remove and return what an ended link still waited for."""
        if self.ended:
            return self._orphans.pop(link, [])
        taken = []
        for pending in (self._sent, self._settling):
            for number in [number for number, entry in pending.items() if entry.link is link]:
                taken.append(pending.pop(number))
        self._accepting = [number for number in self._accepting if number in self._settling]
        self._stalled = deque(entry for entry in self._stalled if entry[0] is not link)
        self._credit_changed.pop(link, None)
        return taken

    # ---- ending ----

    def on_end(self, end: amqp.End) -> None:
        """Handle the peer's end, or its confirmation of ours."""
        self.wire.forget_session(self.channel)
        if self.ended:
            return
        error = end.error or amqp.Error("", "the peer ended the session")
        self.wire.write(frame(self.channel, amqp.End()))
        self.lost(LinkDetachedError(error.description or "", error.condition, error.info))

    def end(self, error: LinkDetachedError) -> None:
        """End the session from our side."""
        if not self.ended:
            self.wire.write(frame(self.channel, amqp.End(amqp.Error(error.condition, error.description, {}))))
            self.lost(error)

    def lost(self, error: AmqpError) -> None:
        """End everything in the session with an error."""
        self.ended = True
        if not self.begun.done():
            self.begun.set_exception(error)
            self.begun.exception()  # mark it as retrieved: the beginning task may be gone
        links = list(self._ours.values())
        self._ours.clear()
        self._theirs.clear()
        self._stalled.clear()
        self._accepting.clear()
        self._credit_changed.clear()
        for pending in (self._sent, self._settling):
            for entry in pending.values():
                self._orphans.setdefault(entry.link, []).append(entry)
            pending.clear()
        for link in links:
            link.ended(error)
