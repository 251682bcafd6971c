"""What the operators of a rule's SQL do, with three truth values: true, false, and None for unknown.

A property that is not there is unknown, and so is nearly everything that is made of it. Numbers follow the service's
own language: whole numbers divide to whole numbers, and the rest has the sign of what is divided.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
MAX_TEXT = 32 << 10  # characters of a text that was joined: what a property may have
_ORDERED = (float, str, datetime, bytes)


class CannotEvaluate(Exception):  # noqa: N818 - what it is
    """The values of this message do not suit the operators."""


def negation(value: Any) -> bool | None:
    """NOT."""
    truth = as_truth(value)
    return None if truth is None else not truth


def as_truth(value: Any) -> bool | None:
    """A value where a condition is wanted."""
    if value is None or isinstance(value, bool):
        return value
    raise CannotEvaluate(f"a condition is wanted where a {_kind(value)} is")


def compare(sign: str) -> Callable[[Any, Any], bool | None]:
    """A comparison by its sign. Values of different kinds are never equal; which is the larger nobody knows."""
    order = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}.get(sign)

    def ordered(left: Any, right: Any) -> bool | None:
        if left is None or right is None or _family(left) is not _family(right) or _family(left) not in _ORDERED:
            return None
        assert order is not None
        return bool(order(left, right))

    def equal(left: Any, right: Any) -> bool | None:
        if left is None or right is None:
            return None
        return _family(left) is _family(right) and bool(left == right)

    def unequal(left: Any, right: Any) -> bool | None:
        found = equal(left, right)
        return None if found is None else not found

    if order is not None:
        return ordered
    return equal if sign == "=" else unequal


def _family(value: Any) -> type:
    """Kinds that can be compared with one another have the same one."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, (int, float)):
        return float
    if isinstance(value, str):
        return str
    return datetime if isinstance(value, datetime) else type(value)


def _kind(value: Any) -> str:
    names: dict[type, str] = {bool: "truth value", float: "number", str: "text", datetime: "time"}
    return names.get(_family(value), type(value).__name__)


def _quotient(left: Any, right: Any) -> Any:
    if right == 0 and not isinstance(left, float) and not isinstance(right, float):
        raise CannotEvaluate("a number is divided by zero")
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    if right == 0:
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def _rest(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left - right * _quotient(left, right)
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _rest,
}


def arithmetic(sign: str) -> Callable[[Any, Any], Any]:
    """An operator on two numbers by its sign. A plus also joins texts."""
    compute = _ARITHMETIC[sign]

    def computed(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        if sign == "+" and isinstance(left, str) and isinstance(right, str):
            if len(left) + len(right) > MAX_TEXT:
                raise CannotEvaluate(f"a text has become longer than {MAX_TEXT} characters")
            return left + right
        if _family(left) is not float or _family(right) is not float:
            raise CannotEvaluate(f"'{sign}' is between a {_kind(left)} and a {_kind(right)}")
        return _bounded(compute(left, right))

    return computed


def negative(value: Any) -> Any:
    """A minus before a value."""
    if value is None:
        return None
    if _family(value) is not float:
        raise CannotEvaluate(f"'-' is before a {_kind(value)}")
    return _bounded(-value)


def positive(value: Any) -> Any:
    """A plus before a value."""
    if value is not None and _family(value) is not float:
        raise CannotEvaluate(f"'+' is before a {_kind(value)}")
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and not _MIN_LONG <= value <= _MAX_LONG:
        raise CannotEvaluate("a whole number has become too large")
    return value


def like(value: Any, pattern: Any, escape: str | None) -> bool | None:
    """Whether a text has the form of a pattern, in which % stands for anything and _ for one character."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    first, *rest = _pieces(pattern, escape)
    if not rest:
        return first.fullmatch(value) is not None
    found = first.match(value)
    if found is None:
        return False
    at = found.end()
    # Each piece where it first fits: none of the others could do better with a later place.
    for piece in rest[:-1]:
        found = piece.search(value, at)
        if found is None:
            return False
        at = found.end()
    last = rest[-1]
    # What lies between the signs for anything has a fixed length, so the last piece can be put at the end.
    start = len(value) - _length(last)
    return start >= at and last.fullmatch(value, start) is not None


@lru_cache(maxsize=4096)
def _pieces(pattern: str, escape: str | None) -> tuple[re.Pattern[str], ...]:
    """What lies between the signs for anything. One expression for the whole might take for ever on some texts."""
    pieces: list[list[str]] = [[]]
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            following = next(letters, None)
            if following is None:
                raise CannotEvaluate("a pattern ends with its escape character")
            pieces[-1].append(re.escape(following))
        elif letter == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if letter == "_" else re.escape(letter))
    return tuple(re.compile("".join(piece), re.DOTALL) for piece in pieces)


@lru_cache(maxsize=4096)
def _length(piece: re.Pattern[str]) -> int:
    """How many characters a piece takes: one for each that is not there for the sake of another."""
    return len(re.sub(r"\\(.)", r"\1", piece.pattern, flags=re.DOTALL))
