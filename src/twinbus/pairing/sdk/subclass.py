"""Keeps new methods of a newer SDK from bypassing the pairing.

`PairedServiceBusClient` and `PairedSender` are subclasses so that programs and type checkers accept them as the SDK's.
They use nothing that they inherit: an inherited public method would use attributes that were never set, or send past
the failover. So every method that they do not override is replaced by an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import __version__

_Class = TypeVar("_Class", bound=type)


class UnknownMethodError(NotImplementedError, AttributeError):
    """The installed SDK has a method that this version of twinbus does not know. `hasattr` returns False for it."""


class Refused:
    """Replaces a public name of the SDK's class, and raises when it is used."""

    def __init__(self, base: type, name: str) -> None:
        self._text = (
            f"azure-servicebus {__version__} has {base.__name__}.{name}, which this version of twinbus does not know:"
            " it would bypass the pairing. Update twinbus, or use the SDK's client in `primary` of the paired client."
        )

    def __get__(self, instance: object | None, owner: type) -> Refused:
        if instance is None:
            return self
        raise UnknownMethodError(self._text)


def guarded(base: type) -> Callable[[_Class], _Class]:
    """Return a class decorator that refuses public names of `base` that the class does not override."""

    def guard(kind: _Class) -> _Class:
        own = {name for ancestor in kind.__mro__[: kind.__mro__.index(base)] for name in vars(ancestor)}
        for name in _usable_names(base) - own:
            setattr(kind, name, _replacement(base, name))
        return kind

    return guard


def refused_names(kind: type) -> list[str]:
    """Return the names that `guarded` has refused."""
    return sorted(name for name in dir(kind) if isinstance(inspect.getattr_static(kind, name), Refused))


def _usable_names(base: type) -> set[str]:
    """Return public names and special methods."""
    inherited = {
        name: value
        for ancestor in reversed(base.__mro__)
        if ancestor is not object
        for name, value in vars(ancestor).items()
    }
    return {
        name
        for name, value in inherited.items()
        if not name.startswith("_") or (name.startswith("__") and name.endswith("__") and inspect.isroutine(value))
    }


def _replacement(base: type, name: str) -> Any:
    if name == "__del__":
        return _nothing_to_delete
    return getattr(object, name) if hasattr(object, name) else Refused(base, name)


def _nothing_to_delete(self: object) -> None:
    """Replace the SDK's finalizer, which has nothing to release here."""
