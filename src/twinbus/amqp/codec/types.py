"""Defines AMQP types that Python lacks, as subclasses: `UInt(7)` is a 7 that encodes as a uint."""

from __future__ import annotations

from typing import Any, NamedTuple


class DecodeError(ValueError):
    """The bytes are not valid AMQP."""


class EncodeError(ValueError):
    """The value has no AMQP encoding."""


class Symbol(str):
    """A symbol: ASCII text."""

    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the epoch, UTC."""

    __slots__ = ()


class Char(str):
    """One Unicode code point."""

    __slots__ = ()


class Float(float):
    """A 32-bit float; a plain Python float is an AMQP double."""

    __slots__ = ()


class Decimal32(bytes):
    """The raw bytes of an IEEE 754 decimal."""

    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor of its meaning."""

    descriptor: Any
    value: Any


class Array(list[Any]):
    """A sequence of values of one type. `code` is their shared constructor."""

    __slots__ = ("code", "descriptor")

    def __init__(self, code: int, items: Any = (), descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor
