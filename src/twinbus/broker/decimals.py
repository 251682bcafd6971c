"""Decimals in application properties, written as the service writes them.

The service reads a decimal128 and writes it anew, with an exponent that is shifted two bits too far. Its SDKs for .NET
and Python read what they get in just that form: a decimal that came back as it was sent would be another number.
"""

from __future__ import annotations

import math
from decimal import Decimal

from twinbus.amqp import sections

DECIMAL128 = 0x94
_BIAS = 6176
_MOST_DIGITS = 28  # of the service's own type, after the point
_SIGN, _SPECIAL, _INFINITE, _NONE = 0x80, 0x60, 0x78, 0x7C


def as_the_service_writes(entries: list[tuple[object, bytes]]) -> list[bytes]:
    """The raw entries of a map section, with the decimals among their values in the service's form."""
    return [_entry(raw) for _, raw in entries]


def _entry(raw: bytes) -> bytes:
    at = sections.value_at(raw)
    if raw[at] != DECIMAL128:
        return raw
    return raw[: at + 1] + rewritten(raw[at + 1 :])


def rewritten(decimal: bytes) -> bytes:
    """The sixteen bytes in the service's form.

    What its type cannot hold stays as it is, and so does what is in that form already: read properly, its exponent is
    far out of bounds.
    """
    exponent = ((decimal[0] & 0x7F) << 7 | decimal[1] >> 1) - _BIAS
    if decimal[0] & _SPECIAL == _SPECIAL or not -_MOST_DIGITS <= exponent <= _MOST_DIGITS:
        return decimal
    number = int.from_bytes(decimal[1:]) & (1 << 113) - 1
    if exponent > 0:
        number, exponent = number * 10**exponent, 0
    if number >> 96:
        return decimal
    biased = _BIAS + exponent
    head = (decimal[0] & _SIGN | biased >> 9, (biased & 0x7F) << 1)
    return bytes(head) + number.to_bytes(14)


def value_of(decimal: bytes) -> float:
    """The number that sixteen bytes stand for, in the service's form or, where that cannot be, in the proper one."""
    sign, high = decimal[0] >> 7, decimal[0] & 0x7F
    exponent = (high << 9 | decimal[1] >> 1) - _BIAS
    if -_MOST_DIGITS <= exponent <= 0:
        number = int.from_bytes(decimal[2:])
    elif decimal[0] & _SPECIAL == _SPECIAL:
        if decimal[0] & _INFINITE != _INFINITE:
            return 0.0  # more digits than there can be count as none
        return math.nan if decimal[0] & _NONE == _NONE else math.copysign(math.inf, -sign or 1)
    else:
        exponent = (high << 7 | decimal[1] >> 1) - _BIAS
        number = int.from_bytes(decimal[1:]) & (1 << 113) - 1
    return float(Decimal((sign, tuple(map(int, str(number))), exponent)))
