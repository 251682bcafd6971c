"""Checks arguments; errors name the parameter, what it must be and what it was."""

from __future__ import annotations

import math
from typing import Any

_MAX_NUMBER = 1e300


def number(name: str, value: Any) -> float:
    """Return a number of seconds, or of anything else. Raises `TypeError` for other types, bool included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if -_MAX_NUMBER < value < _MAX_NUMBER or value != value:  # NaN, or not a number at all
        return float(value)
    return math.inf if value > 0 else -math.inf  # an int can be too large for a float


def check_count(name: str, value: Any, maximum: float = math.inf, *, minimum: int = 1) -> None:
    """Raise unless it is a whole number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not minimum <= value <= maximum:
        bounds = f"at least {minimum}" if maximum == math.inf else f"from {minimum} to {maximum:g}"
        raise ValueError(f"{name} must be {bounds}, not {value!r}")


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise `TypeError` unless it is of this kind. Strings are not shown: one may be a connection string."""
    if not isinstance(value, kind):
        shown = repr(value) if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be a {kind.__name__}, not {shown}")


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> None:
    """Raise `ValueError` unless it is one of the choices, `TypeError` if it is not a string."""
    if value not in choices:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_timeout(name: str, value: Any) -> None:
    """Raise unless it is None or a number of seconds above 0."""
    if value is not None and not number(name, value) > 0:
        raise ValueError(f"{name} must be greater than 0, not {value!r}")


def check_path(name: str, value: Any) -> None:
    """Raise unless it can be the name of a queue, topic or subscription."""
    check_type(name, value, str)
    if not value.strip():
        raise ValueError(f"{name} must be the name of an entity, not {value!r}")
