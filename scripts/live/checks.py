"""Defines checks, their findings and their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError

if TYPE_CHECKING:
    from .drill import Drill, Times


class Verdict(StrEnum):
    """The verdict on a check."""

    AS_EXPECTED = "as expected"
    DIFFERENT = "different"
    UNCHECKED = "could not be checked"


class Findings:
    """The findings of a check as text, and whether any differs from the expectation."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.has_difference = False

    def note(self, text: str) -> None:
        """Add a fact without an expectation."""
        self._texts.append(text)

    def expect_equal(self, name: str, value: Any, expected: Any) -> None:
        """Add a value and compare it with the expected one."""
        if value == expected:
            self._texts.append(f"{name}: {value}")
        else:
            self._texts.append(f"{name}: expected {expected}, got {value}")
            self.has_difference = True

    def expect(self, is_true: bool, text: str) -> None:
        """Add a statement that should be true."""
        self._texts.append(text if is_true else f"not true: {text}")
        self.has_difference |= not is_true

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        return "; ".join(self._texts)


CheckFunction = Callable[["Drill", Findings], Awaitable[None]]


def _ordinary(times: Times) -> float:
    return times.check


@dataclass(frozen=True)
class Check:
    """One question to the service. `function` answers it within `seconds`; if it raises, the result is unchecked."""

    name: str
    expected: str
    function: CheckFunction
    seconds: Callable[[Times], float] = _ordinary


def check(name: str, expected: str, seconds: Callable[[Times], float] = _ordinary) -> Callable[[CheckFunction], Check]:
    """Decorator that makes a check of a function."""
    return lambda function: Check(name, expected, function, seconds)


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    name: str
    expected: str
    seen: str
    verdict: Verdict
    seconds: float


def condition_of(error: BaseException) -> str:
    """The AMQP condition of an error of the SDK or our client, or its HTTP status; else empty."""
    if isinstance(error, HttpResponseError):
        return f"HTTP {error.status_code}" if error.status_code else ""
    inner = getattr(error, "inner_exception", None)
    for condition in (
        getattr(error, "condition", None),
        getattr(error, "_condition", None),
        getattr(inner, "condition", None),
    ):
        if condition:
            return str(condition.decode() if isinstance(condition, bytes) else getattr(condition, "value", condition))
    return ""


def describe(error: BaseException) -> str:
    """Class, condition and status of an error, without its text, which may contain secrets."""
    parts = [type(error).__name__]
    condition = condition_of(error)
    if condition:
        parts.append(condition)
    for source in (error, getattr(error, "inner_exception", None)):
        status = getattr(source, "status", None) or getattr(source, "status_code", None)
        if isinstance(status, int) and "HTTP" not in condition:
            parts.append(f"status {status}")
            break
    return " ".join(parts)
