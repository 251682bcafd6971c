# Generated from pairing/_async/lines.py by `make generate`: change it there.
"""What leads to one entity: its link, opened when it is needed, and a fresh one after it broke."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from azure.servicebus import ServiceBusSender

from .. import sdk_seam
from ..errors import AttemptTimeoutError
from ..parcel import STANDARD_LIMIT
from .attempts import Link, Turn, TurnTimeoutError, monotonic

Load = TypeVar("Load")
Result = TypeVar("Result")


class ReroutedError(Exception):
    """While a fresh link was being made, the route has changed: nothing was sent."""


class Line:
    """The way to one entity of a namespace.

    A link that was already open may have gone stale: the service detaches idle ones. So a failure there is no verdict,
    and the same is tried once more on a fresh link, within the same time.
    """

    def __init__(self, make: Callable[[], ServiceBusSender], path: str) -> None:
        self._make = make
        self.path = path
        self.link: Link | None = None
        self._turn = Turn()
        self._discarded: list[Link] = []
        self._is_closed = False
        self._max_message_size = 0
        self._max_batch_size = 0

    def deliver(
        self,
        use: Callable[[Link, Load, float], Result],
        load: Load,
        seconds: float,
        may_be_stale: Callable[[BaseException], bool],
        is_wanted: Callable[[], bool],
    ) -> Result:
        """Use the link for the load, or after a failure that may be due to a stale link, a fresh one.

        On an open link it gets half of the time, so that there is some left. Before a fresh link is made, and again
        before it is used, `is_wanted` is asked.

        Raises:
            ReroutedError: it was not wanted any more.
            Exception: what `use` or the opening raised; of two failures that on the fresh link.
        """
        ends = monotonic() + seconds
        link = self.link
        if link is not None and not link.is_broken:
            try:
                return use(link, load, seconds / 2)
            except BaseException as error:
                self._keep_or_drop(link, error)
                if not isinstance(error, Exception) or not may_be_stale(error):
                    raise
                if not isinstance(error, TurnTimeoutError):
                    self.drop(link)
            if not is_wanted():
                raise ReroutedError
        link = self.opened(ends - monotonic())
        if not is_wanted():
            raise ReroutedError
        try:
            return use(link, load, ends - monotonic())
        except BaseException as error:
            self._keep_or_drop(link, error)
            raise

    def _keep_or_drop(self, link: Link, error: BaseException) -> None:
        # After a time-out what was not written yet must not be written later, and after a cancellation nobody knows
        # what is on the wire. Other failures may be about the message and leave the link in order.
        if isinstance(error, TurnTimeoutError):
            return
        is_unclear = isinstance(error, AttemptTimeoutError) or not isinstance(error, Exception)
        if is_unclear or not sdk_seam.is_open(link.sender):
            self.drop(link)

    def opened(self, seconds: float) -> Link:
        """The link, opened if there is none.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: whatever the SDK says.
            ValueError: the sender was closed meanwhile.
        """
        ends = monotonic() + seconds
        with self._turn.taken(self.path, seconds):
            if self.link is not None and self.link.is_broken:
                self.drop(self.link)
            if self.link is None:
                self.link = self._new_link(ends - monotonic())
            return self.link

    def _new_link(self, seconds: float) -> Link:
        self._check_open()
        self._discarded = [one for one in self._discarded if not one.is_gone]
        link = Link(self._make(), self.path)
        try:
            link.open(seconds)
        except BaseException:
            self._discarded.append(link)
            raise
        try:
            self._check_open()
        except ValueError:
            self.drop(link)
            raise
        self._max_message_size = sdk_seam.max_message_size(link.sender)
        self._max_batch_size = sdk_seam.max_batch_size(link.sender)
        return link

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("The sender was closed.")

    @property
    def is_measured(self) -> bool:
        """Whether the entity has told its limits."""
        return self._max_batch_size > 0

    def limit(self, is_batch: bool) -> int:
        """The most bytes that the entity takes in a message or in a batch; a guess until it has told."""
        return (self._max_batch_size if is_batch else self._max_message_size) or STANDARD_LIMIT

    def drop(self, link: Link) -> None:
        """Throw a link away; if another one has taken its place, that one stays."""
        if self.link is link:
            self.link = None
        if link not in self._discarded:
            self._discarded.append(link)
            link.discard()

    def close(self) -> None:
        """Close the link, and wait for those that were thrown away."""
        self._is_closed = True
        link, self.link = self.link, None
        for one in [*self._discarded, *([link] if link is not None else [])]:
            one.close()
        self._discarded.clear()
