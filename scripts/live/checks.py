"""What a check is, what it has seen, and what follows from that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError

if TYPE_CHECKING:
    from .drill import Drill, Times


class Verdict(StrEnum):
    """What came of a check."""

    AS_EXPECTED = "as expected"
    DIFFERENT = "different"
    UNCHECKED = "could not be checked"


class Seen:
    """What a check has seen so far, in words, and whether all of it was expected."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self.is_different = False

    def note(self, text: str) -> None:
        """Something worth knowing of which nothing was expected."""
        self._words.append(text)

    def value(self, name: str, value: Any, expected: Any) -> None:
        """Something that should have one value."""
        if value == expected:
            self._words.append(f"{name} {value}")
        else:
            self._words.append(f"{name} {value}, not {expected}")
            self.is_different = True

    def that(self, is_so: bool, text: str) -> None:
        """Something that should be so; `text` says it as if it was."""
        self._words.append(text if is_so else f"not so: {text}")
        self.is_different |= not is_so

    def __bool__(self) -> bool:
        return bool(self._words)

    def __str__(self) -> str:
        return "; ".join(self._words)


Look = Callable[["Drill", Seen], Awaitable[None]]


def _ordinary(times: Times) -> float:
    return times.check


@dataclass(frozen=True)
class Check:
    """One question to the service. `look` asks it, within `seconds`; whatever it raises leaves the question open."""

    name: str
    expected: str
    look: Look
    seconds: Callable[[Times], float] = _ordinary


def check(name: str, expected: str, seconds: Callable[[Times], float] = _ordinary) -> Callable[[Look], Check]:
    """Make a check of a function that looks."""
    return lambda look: Check(name, expected, look, seconds)


@dataclass(frozen=True)
class Result:
    """What came of one check."""

    name: str
    expected: str
    seen: str
    verdict: Verdict
    seconds: float


def condition_of(error: BaseException) -> str:
    """The AMQP condition behind an error of the SDK or of our client, or the status of an HTTP answer; else empty."""
    if isinstance(error, HttpResponseError):
        return f"HTTP {error.status_code}" if error.status_code else ""
    inner = getattr(error, "inner_exception", None)
    for one in (
        getattr(error, "condition", None),
        getattr(error, "_condition", None),
        getattr(inner, "condition", None),
    ):
        if one:
            return str(one.decode() if isinstance(one, bytes) else getattr(one, "value", one))
    return ""


def described(error: BaseException) -> str:
    """An error without its text, which is the service's and may say more than should be seen."""
    parts = [type(error).__name__]
    condition = condition_of(error)
    if condition:
        parts.append(condition)
    for one in (error, getattr(error, "inner_exception", None)):
        status = getattr(one, "status", None) or getattr(one, "status_code", None)
        if isinstance(status, int) and "HTTP" not in condition:
            parts.append(f"status {status}")
            break
    return " ".join(parts)
