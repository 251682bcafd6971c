"""Converts decimal application properties to the service's own decimal128 encoding.

The service re-encodes each decimal128 with its exponent shifted two bits too far, and the SDKs for .NET and Python
decode that form: a decimal returned exactly as it was sent would read as another number.
"""

from __future__ import annotations

import math
from decimal import Decimal

from twinbus.amqp.codec import sections

DECIMAL128 = 0x94
_BIAS = 6176
_MAX_SCALE = 28  # decimal places in the service's own type
_SIGN, _SPECIAL, _INFINITE, _NONE = 0x80, 0x60, 0x78, 0x7C


def rewrite_decimals(entries: list[tuple[object, bytes]]) -> list[bytes]:
    """The raw entries of a map section, with decimal values in the service's form."""
    return [_entry(raw) for _, raw in entries]


def _entry(raw: bytes) -> bytes:
    at = sections.value_at(raw)
    if raw[at] != DECIMAL128:
        return raw
    return raw[: at + 1] + to_service_form(raw[at + 1 :])


def to_service_form(decimal: bytes) -> bytes:
    """Sixteen bytes of IEEE decimal128 in the service's form.

    Returned unchanged: values that the service's type cannot hold, and values already in its form (as IEEE, their
    exponent is far out of bounds).
    """
    exponent = ((decimal[0] & 0x7F) << 7 | decimal[1] >> 1) - _BIAS
    if decimal[0] & _SPECIAL == _SPECIAL or not -_MAX_SCALE <= exponent <= _MAX_SCALE:
        return decimal
    number = int.from_bytes(decimal[1:]) & (1 << 113) - 1
    if exponent > 0:
        number, exponent = number * 10**exponent, 0
    if number >> 96:
        return decimal
    biased = _BIAS + exponent
    head = (decimal[0] & _SIGN | biased >> 9, (biased & 0x7F) << 1)
    return bytes(head) + number.to_bytes(14)


def decimal_value(decimal: bytes) -> float:
    """Decode sixteen bytes in the service's form, or in IEEE form if they cannot be the service's."""
    sign, high = decimal[0] >> 7, decimal[0] & 0x7F
    exponent = (high << 9 | decimal[1] >> 1) - _BIAS
    if -_MAX_SCALE <= exponent <= 0:
        number = int.from_bytes(decimal[2:])
    elif decimal[0] & _SPECIAL == _SPECIAL:
        if decimal[0] & _INFINITE != _INFINITE:
            return 0.0  # IEEE: a coefficient with too many digits counts as zero
        return math.nan if decimal[0] & _NONE == _NONE else math.copysign(math.inf, -sign or 1)
    else:
        exponent = (high << 7 | decimal[1] >> 1) - _BIAS
        number = int.from_bytes(decimal[1:]) & (1 << 113) - 1
    return float(Decimal((sign, tuple(map(int, str(number))), exponent)))
