"""Numbers, times and sizes as people write them in options."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction

from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.toml_table import BadValue, duration, size

MAX_SIZE = 100 * 1024 * 1024
_MAX_DIGITS = 30


def seconds(option: str, text: str) -> Fraction:
    """A duration such as 90, 90m or 1h30m. Raises `ValueError`, as the others do, that names the option."""
    try:
        return Fraction(duration(_number_or_text(text)), TICKS_PER_SECOND)
    except BadValue as error:
        raise ValueError(f"{option} {error}") from None


def byte_count(option: str, text: str) -> int:
    """A size such as 900 or 96KB."""
    try:
        return size(0, MAX_SIZE)(_number_or_text(text))
    except BadValue as error:
        raise ValueError(f"{option} {error}") from None


def decimal(option: str, text: str) -> Decimal:
    """A number with all its digits."""
    try:
        number = Decimal(text if len(text) <= _MAX_DIGITS else "NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f"{option} must be a number, such as 250 or 0.5, not {text[:_MAX_DIGITS]!r}")
    return number


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else text
