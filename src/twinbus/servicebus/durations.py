"""Converts durations between ISO 8601 text (`PT1M30.5S`) and whole ticks of 100 ns.

Ticks, because the service's longest duration, `P10675199DT2H48M5.4775807S`, is not a whole number of microseconds: a
`timedelta` rounds past it, and the service then refuses its own default.
"""

from __future__ import annotations

import re

TICKS_PER_SECOND = 10_000_000
TICKS_PER_MINUTE = 60 * TICKS_PER_SECOND
TICKS_PER_HOUR = 60 * TICKS_PER_MINUTE
TICKS_PER_DAY = 24 * TICKS_PER_HOUR

#: The longest duration of the service, which stands for "no limit".
MAX_TICKS = 2**63 - 1

# Far longer than any valid duration; limits the digits that are converted.
_MAX_TEXT_LENGTH = 64

_DURATION = re.compile(
    r"P(?:(?P<years>[0-9]+)Y)?(?:(?P<months>[0-9]+)M)?(?:(?P<days>[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+)(?:\.(?P<fraction>[0-9]+))?S)?)?"
)

# Years and months have no fixed length; these are the service's.
_TICKS_OF = {
    "years": 365 * TICKS_PER_DAY,
    "months": 30 * TICKS_PER_DAY,
    "days": TICKS_PER_DAY,
    "hours": TICKS_PER_HOUR,
    "minutes": TICKS_PER_MINUTE,
    "seconds": TICKS_PER_SECOND,
}


class InvalidDurationError(ValueError):
    """The text is not a duration from zero to `MAX_TICKS`."""


def parse_duration(text: str) -> int:
    """The ticks of an ISO 8601 duration. Digits below 100 ns are cut off.

    Raises:
        InvalidDurationError: the text is not a duration, is negative, or is longer than the service's maximum.
    """
    match = _DURATION.fullmatch(text) if len(text) <= _MAX_TEXT_LENGTH else None
    # "P" and "PT" match the pattern without a number.
    if match is None or text.endswith(("P", "T")):
        raise InvalidDurationError(f"'{text[:_MAX_TEXT_LENGTH]}' is not an ISO 8601 duration such as PT1M30S")
    ticks = sum(int(match[unit] or 0) * length for unit, length in _TICKS_OF.items())
    ticks += int((match["fraction"] or "0")[:7].ljust(7, "0"))
    if ticks > MAX_TICKS:
        raise InvalidDurationError(f"'{text}' is longer than the maximum {format_duration(MAX_TICKS)}")
    return ticks


def format_duration(ticks: int) -> str:
    """ISO 8601 text as the service writes it: days, hours, minutes and seconds, each left out when zero.

    Raises:
        ValueError: `ticks` is not between 0 and `MAX_TICKS`.
    """
    if not 0 <= ticks <= MAX_TICKS:
        raise ValueError(f"a duration must have 0 to {MAX_TICKS} ticks, not {ticks}")
    days, rest = divmod(ticks, TICKS_PER_DAY)
    hours, rest = divmod(rest, TICKS_PER_HOUR)
    minutes, rest = divmod(rest, TICKS_PER_MINUTE)
    seconds, fraction = divmod(rest, TICKS_PER_SECOND)
    clock = f"{hours}H" if hours else ""
    clock += f"{minutes}M" if minutes else ""
    if fraction:
        clock += f"{seconds}.{fraction:07}".rstrip("0") + "S"
    elif seconds:
        clock += f"{seconds}S"
    text = (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
    return f"P{text}" if text else "PT0S"


def ticks_from_seconds(seconds: float) -> int:
    """The nearest number of ticks, at most `MAX_TICKS`.

    Raises:
        ValueError: `seconds` is negative or not a number.
    """
    if not seconds >= 0:
        raise ValueError(f"a duration must not be negative: {seconds} seconds")
    return MAX_TICKS if seconds >= MAX_TICKS / TICKS_PER_SECOND else round(seconds * TICKS_PER_SECOND)


def seconds_from_ticks(ticks: int) -> float:
    """The duration in seconds, accurate to about a microsecond below a century."""
    return ticks / TICKS_PER_SECOND
