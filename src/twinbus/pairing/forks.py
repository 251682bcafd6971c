"""Notifies objects that cannot work in a forked child process.

A fork copies the parent's sockets, but neither its threads nor its running event loop. Anything the child writes to
such a socket, even a close, would break the parent's connection.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkListener(Protocol):
    """An object that a forked child gets a copy of."""

    def forked(self) -> None:
        """Called in the child, which has one thread. Must take no lock: another thread may have held it."""


_listeners: WeakSet[ForkListener] = WeakSet()


def watch_forks(listener: ForkListener) -> None:
    """Call `listener.forked` in every child process forked from now on."""
    _listeners.add(listener)


def _forked() -> None:
    for listener in list(_listeners):
        listener.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
