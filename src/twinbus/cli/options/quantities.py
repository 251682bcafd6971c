"""Parses numbers, durations and sizes of options."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from twinbus.emulator.config.toml_table import InvalidValueError, duration, size
from twinbus.servicebus.durations import TICKS_PER_SECOND

MAX_SIZE = 100 * 1024 * 1024
_MAX_DIGITS = 30
_MAX_SHOWN = 40
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
#: Amounts with units, ISO 8601, or `unlimited`; `duration` checks the rest.
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*(?:ms|[smhdw])\s*)+|P.*|unlimited", re.IGNORECASE)


def seconds(option: str, text: str) -> Fraction:
    """Parse a duration such as 90s, 90m or 1h30m; only 0 needs no unit. Raises `ValueError` that names the option."""
    shown = text[:_MAX_SHOWN]
    if _NUMBER.fullmatch(text):
        if not text.strip("0."):
            return Fraction(0)
        raise ValueError(f"{option} must have a unit, such as {shown}s, {shown}m or {shown}h, not {shown!r}")
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{option} must be a duration such as 90s, 90m or 1h30m, not {shown!r}")
    try:
        return Fraction(duration(_number_or_text(text)), TICKS_PER_SECOND)
    except InvalidValueError as error:
        raise ValueError(f"{option} {error}") from None


def byte_count(option: str, text: str) -> int:
    """Parse a size such as 900 or 96KB. Raises `ValueError` that names the option."""
    try:
        return size(0, MAX_SIZE)(_number_or_text(text))
    except InvalidValueError as error:
        raise ValueError(f"{option} {error}") from None


def decimal(option: str, text: str) -> Decimal:
    """Parse a number exactly. Raises `ValueError` that names the option."""
    try:
        number = Decimal(text if len(text) <= _MAX_DIGITS else "NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f"{option} must be a number, such as 250 or 0.5, not {text[:_MAX_DIGITS]!r}")
    return number


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else text
