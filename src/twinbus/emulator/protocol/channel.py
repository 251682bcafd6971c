"""Runs one AMQP session: its windows, its links and its unsettled deliveries."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import disposition_frame, frame, transfer_frames

from .attaching import open_link
from .error_conditions import HANDLE_IN_USE, NOT_ALLOWED, UNATTACHED_HANDLE, WINDOW_VIOLATION, BrokerError

if TYPE_CHECKING:
    from .connection import Connection
    from .links import CreditedLink, Link, OutgoingLink

_MASK = 0xFFFFFFFF
MAX_UNSETTLED = 100_000


def ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers as (first, last), in input order."""
    runs: list[tuple[int, int]] = []
    first = last = ids[0]
    for number in ids[1:]:
        if number == last + 1:
            last = number
        else:
            runs.append((first, last))
            first = last = number
    runs.append((first, last))
    return runs


class Channel:
    """The server's end of one AMQP session, named after its channel number."""

    def __init__(self, connection: Connection, number: int, begin: amqp.Begin) -> None:
        self.connection = connection
        self.number = number
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, tuple[OutgoingLink, bytes]] = {}
        self._window = connection.profile.incoming_window
        self._low_window = self._window // 2
        self._next_incoming_id = begin.next_outgoing_id
        self._peer_window = begin.incoming_window
        self._next_outgoing_id = 1
        self._next_delivery_id = 1
        self._stalled: deque[bytes] = deque()
        self._accepted: list[int] = []
        self._confirmed: list[int] = []
        self._credit_due: set[CreditedLink] = set()
        self._was_full = False
        # Late frames for a detached link are ignored; frames for a handle that was never attached are an error.
        self._known_handles: set[int] = set()

    def begin(self) -> None:
        self.connection.send(
            frame(
                self.number,
                amqp.Begin(
                    remote_channel=self.number,
                    next_outgoing_id=self._next_outgoing_id,
                    incoming_window=self._window,
                    outgoing_window=_MASK >> 1,
                    handle_max=self.connection.profile.handle_max,
                ),
            )
        )

    # ---- frames ----

    def on_attach(self, attach: amqp.Attach) -> None:
        if attach.handle > self.connection.profile.handle_max:
            raise BrokerError(NOT_ALLOWED, f"The highest handle is {self.connection.profile.handle_max}.")
        if attach.handle in self.links:
            raise BrokerError(HANDLE_IN_USE, f"Handle {attach.handle} is attached already.")
        self._known_handles.add(attach.handle)
        open_link(self, attach)

    def on_detach(self, detach: amqp.Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None:
            link.drop()
            self.forget(link)
            self.write_settled()
            self.connection.send(frame(self.number, amqp.Detach(detach.handle, closed=True)))

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & _MASK
        self._window -= 1
        if self._window < 0 and self.connection.profile.enforces:
            self.end(BrokerError(WINDOW_VIOLATION, "A transfer was sent beyond the session's incoming window."))
            return
        link = self.links.get(transfer.handle) or self._link(transfer.handle)
        if link is not None:
            link.on_transfer(transfer, payload)
        if self._window <= self._low_window:
            self.connection.flush_soon()

    def _link(self, handle: int) -> Link | None:
        """The link with a handle; None if it was detached. Ends the channel if it was never attached."""
        link = self.links.get(handle)
        if link is None and handle not in self._known_handles:
            self.end(BrokerError(UNATTACHED_HANDLE, f"Handle {handle} is not attached."))
        return link

    def renew_later(self, link: CreditedLink) -> None:
        """Renew a link's credit after all frames that have arrived are processed.

        Renewing earlier would hide clients that send more than their credit.
        """
        self._credit_due.add(link)
        self.connection.flush_soon()

    def before_flush(self) -> None:
        """Write what is due at the end of a turn: acknowledgements, window and credit."""
        if self._accepted:
            self._write_accepted(amqp.ROLE_RECEIVER, self._accepted)
        if self._confirmed:
            self._write_accepted(amqp.ROLE_SENDER, self._confirmed)
        if self._window <= self._low_window:
            self._window = self.connection.profile.incoming_window
            self.connection.send(frame(self.number, self._flow()))
        if self._credit_due:
            links, self._credit_due = self._credit_due, set()
            for link in links:
                if link.attached:
                    link.grant()

    def _flow(self) -> amqp.Flow:
        return amqp.Flow(
            next_incoming_id=self._next_incoming_id,
            incoming_window=max(0, self._window),
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=_MASK >> 1,
        )

    def link_flow(self, handle: int, **fields: Any) -> None:
        """Send a flow for a link."""
        self.connection.send(frame(self.number, self._flow()._replace(handle=handle, **fields)))

    def on_flow(self, flow: amqp.Flow) -> None:
        # Frames in flight when the peer sent this flow use up part of its window.
        seen = flow.next_incoming_id if flow.next_incoming_id is not None else 1
        self._peer_window = flow.incoming_window - ((self._next_outgoing_id - seen) & _MASK)
        self._send_stalled()
        if flow.handle is not None:
            link = self._link(flow.handle)
            if link is not None:
                link.on_flow(flow)
        elif flow.echo:
            self.connection.send(frame(self.number, self._flow()))
        if flow.handle is None:
            self.wake_links()

    def on_disposition(self, disposition: amqp.Disposition) -> None:
        role, first, last, settled, state, _ = disposition
        if role is amqp.ROLE_SENDER:
            return  # the server's own outcomes are final
        if last is None or last == first:
            entry = self.unsettled.pop(first, None)
            if entry is not None:
                entry[0].settle(first, entry[1], state, bool(settled))
                if self._was_full:
                    self._wake_after_full()
            return
        if last - first > len(self.unsettled):
            ids = [delivery_id for delivery_id in self.unsettled if first <= delivery_id <= last]
        else:
            ids = list(range(first, last + 1))
        for delivery_id in ids:
            entry = self.unsettled.pop(delivery_id, None)
            if entry is not None:
                entry[0].settle(delivery_id, entry[1], state, bool(settled))
        if self._was_full:
            self._wake_after_full()

    # ---- deliveries ----

    def can_send(self) -> bool:
        return self._peer_window > 0 and not self._stalled and not self.connection.blocked

    def has_room(self) -> bool:
        """Whether another delivery may wait for its outcome. If not, links are woken once one may."""
        if len(self.unsettled) < MAX_UNSETTLED:
            return True
        self._was_full = True
        return False

    def _wake_after_full(self) -> None:
        # A client with credit left may send nothing more, so nothing else would wake its links.
        self._was_full = False
        self.wake_links()

    def transfer(self, link: Link, tag: bytes, token: bytes | None, payload: bytes) -> int:
        """Send a delivery and return its id. With a lock token it stays unsettled until its outcome."""
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & _MASK or 1
        settled = token is None
        if token is not None:
            self.unsettled[delivery_id] = (cast("OutgoingLink", link), token)
        parts = transfer_frames(
            self.number, link.handle, delivery_id, tag, settled, payload, self.connection.peer_max_frame_size
        )
        if len(parts) == 1 and self._peer_window > 0 and not self._stalled:
            self._peer_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
            self.connection.send(parts[0])
        else:
            self._stalled.extend(parts)
            self._send_stalled()
        return delivery_id

    def _send_stalled(self) -> None:
        while self._stalled and self._peer_window > 0:
            self._peer_window -= 1
            self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
            self.connection.send(self._stalled.popleft())

    def accept(self, delivery_id: int) -> None:
        """Accept an incoming delivery that is stored."""
        self._accepted.append(delivery_id)
        self.connection.flush_soon()

    def reject(self, delivery_id: int, error: BrokerError) -> None:
        """Reject an incoming delivery."""
        self.answer(delivery_id, amqp.Rejected(error.performative()))

    def answer(self, delivery_id: int, state: Any) -> None:
        """Settle an incoming delivery with any outcome."""
        self.connection.send(disposition_frame(self.number, amqp.ROLE_RECEIVER, delivery_id, delivery_id, state))

    def confirm(self, delivery_id: int, state: Any) -> None:
        """Echo the outcome of a settlement that is stored; None means accepted."""
        if state is None:
            self._confirmed.append(delivery_id)
            self.connection.flush_soon()
        else:
            self.connection.send(disposition_frame(self.number, amqp.ROLE_SENDER, delivery_id, delivery_id, state))

    def write_settled(self) -> None:
        """Write the collected acknowledgements as ranges."""
        if self._accepted:
            self._write_accepted(amqp.ROLE_RECEIVER, self._accepted)
        if self._confirmed:
            self._write_accepted(amqp.ROLE_SENDER, self._confirmed)

    def _write_accepted(self, role: bool, ids: list[int]) -> None:
        if len(ids) == 1:
            self.connection.send(disposition_frame(self.number, role, ids[0], ids[0], None))
        else:
            for first, last in ranges(ids):
                self.connection.send(disposition_frame(self.number, role, first, last, None))
        ids.clear()

    # ---- links ----

    def wake_links(self) -> None:
        for link in list(self.links.values()):
            link.wake()

    def detach(self, link: Link, error: BrokerError | None) -> None:
        """Detach a link from the server's side."""
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
            link.drop()
            self.forget(link)
            self.write_settled()
            detach = amqp.Detach(link.handle, True, None if error is None else error.performative())
            self.connection.send(frame(self.number, detach))

    def forget(self, link: Link) -> None:
        """Forget the unsettled deliveries of a detached link; the client can settle them through $management."""
        for delivery_id in [number for number, entry in self.unsettled.items() if entry[0] is link]:
            del self.unsettled[delivery_id]
        if self._was_full:
            self._wake_after_full()

    def tick(self, now: float) -> None:
        for link in list(self.links.values()):
            link.tick(now)

    def end(self, error: BrokerError) -> None:
        """End the channel with an error."""
        self.drop()
        self.connection.channels.pop(self.number, None)
        self.connection.send(frame(self.number, amqp.End(error.performative())))

    def drop(self) -> None:
        """Release the channel's links and deliveries, after it or its connection ended."""
        self.write_settled()
        for link in self.links.values():
            link.drop()
        self.links.clear()
        self.unsettled.clear()
        self._stalled.clear()
