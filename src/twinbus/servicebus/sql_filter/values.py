"""Implements the operators of a rule's SQL with three truth values: true, false, and None for unknown.

A missing property is unknown, and so is nearly every expression with it. Arithmetic follows the service: integers
divide to integers, and a remainder has the sign of the dividend.
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
MAX_TEXT = 32 << 10  # characters of a concatenated text: the limit of a property
_ORDERED = (float, str, datetime, bytes)


class EvaluationError(Exception):
    """An operator does not apply to the values of this message."""


def negation(value: Any) -> bool | None:
    """NOT of a value."""
    truth = as_truth(value)
    return None if truth is None else not truth


def as_truth(value: Any) -> bool | None:
    """The truth value of a condition; raises `EvaluationError` for other values."""
    if value is None or isinstance(value, bool):
        return value
    raise EvaluationError(f"expected a condition, got a {_kind(value)}")


def compare(sign: str) -> Callable[[Any, Any], bool | None]:
    """The comparison for a sign. Values of different kinds are not equal, and their order is unknown."""
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
        is_equal = equal(left, right)
        return None if is_equal is None else not is_equal

    if order is not None:
        return ordered
    return equal if sign == "=" else unequal


def _family(value: Any) -> type:
    """A type that stands for all types comparable with the value's."""
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
        raise EvaluationError("a number is divided by zero")
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
    """The operator on two numbers for a sign. A plus also concatenates texts."""
    compute = _ARITHMETIC[sign]

    def computed(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        if sign == "+" and isinstance(left, str) and isinstance(right, str):
            if len(left) + len(right) > MAX_TEXT:
                raise EvaluationError(f"a concatenated text must have at most {MAX_TEXT} characters")
            return left + right
        if _family(left) is not float or _family(right) is not float:
            raise EvaluationError(f"'{sign}' does not apply to a {_kind(left)} and a {_kind(right)}")
        return _bounded(compute(left, right))

    return computed


def negative(value: Any) -> Any:
    """A minus before a value."""
    if value is None:
        return None
    if _family(value) is not float:
        raise EvaluationError(f"'-' does not apply to a {_kind(value)}")
    return _bounded(-value)


def positive(value: Any) -> Any:
    """A plus before a value."""
    if value is not None and _family(value) is not float:
        raise EvaluationError(f"'+' does not apply to a {_kind(value)}")
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and not _MIN_LONG <= value <= _MAX_LONG:
        raise EvaluationError("a whole number does not fit in 64 bits")
    return value


def like(value: Any, pattern: Any, escape: str | None) -> bool | None:
    """Whether a text matches a pattern, in which % matches any text and _ matches one character."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    first, *rest = _pieces(pattern, escape)
    if not rest:
        return first.fullmatch(value) is not None
    match = first.match(value)
    if match is None:
        return False
    at = match.end()
    # The first match of each piece is enough: a later one leaves less text for the following pieces.
    for piece in rest[:-1]:
        match = piece.search(value, at)
        if match is None:
            return False
        at = match.end()
    last = rest[-1]
    # Each piece has a fixed length, so the last one can be matched at the end of the text.
    start = len(value) - _length(last)
    return start >= at and last.fullmatch(value, start) is not None


@lru_cache(maxsize=4096)
def _pieces(pattern: str, escape: str | None) -> tuple[re.Pattern[str], ...]:
    """The pieces of a pattern between its % signs. One expression for the whole could take forever on some texts."""
    pieces: list[list[str]] = [[]]
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            following = next(letters, None)
            if following is None:
                raise EvaluationError("a pattern ends with its escape character")
            pieces[-1].append(re.escape(following))
        elif letter == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if letter == "_" else re.escape(letter))
    return tuple(re.compile("".join(piece), re.DOTALL) for piece in pieces)


@lru_cache(maxsize=4096)
def _length(piece: re.Pattern[str]) -> int:
    """How many characters a piece matches: its pattern without the escaping backslashes."""
    return len(re.sub(r"\\(.)", r"\1", piece.pattern, flags=re.DOTALL))
