"""Reads TOML tables with errors that name the place of a mistake and the allowed values.

A `Table` returns its values through *readers*: functions that convert a TOML value or raise `InvalidValueError`. A key
that the program does not read is a mistake too. Readers of secrets never show the value in an error.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any, TypeVar

from twinbus.servicebus.access_rights import ALL_RIGHTS, Right
from twinbus.servicebus.durations import (
    MAX_TICKS,
    TICKS_PER_DAY,
    TICKS_PER_HOUR,
    TICKS_PER_MINUTE,
    TICKS_PER_SECOND,
    InvalidDurationError,
    parse_duration,
)

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Reader = Callable[[Any], T]

MAX_ITEMS = 10_000

# The longest path an entity can have.
_MAX_SHOWN_KEY = 260
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_AMOUNT = r"(?P<number>[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*"
_DURATION_PART = re.compile(_AMOUNT + r"(?P<unit>ms|[smhdw])\s*")
_SIZE = re.compile(_AMOUNT + r"(?P<unit>B|KB|MB)", re.IGNORECASE)
_TICKS_OF = {
    "ms": TICKS_PER_SECOND // 1000,
    "s": TICKS_PER_SECOND,
    "m": TICKS_PER_MINUTE,
    "h": TICKS_PER_HOUR,
    "d": TICKS_PER_DAY,
    "w": 7 * TICKS_PER_DAY,
}
# As on the service, where 256 KB are 262,144 bytes.
_BYTES_OF = {"b": 1, "kb": 1024, "mb": 1024 * 1024}
_KINDS = {
    type(None): "nothing",  # null in JSON
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


class ConfigError(Exception):
    """A mistake in a configuration file.

    `table` (such as `namespaces.contoso.queues.orders`) and `field` are empty if the mistake is in none.
    """

    def __init__(self, file: str, table: str, field: str, message: str) -> None:
        where = ".".join(filter(None, (table, field)))
        super().__init__(": ".join(filter(None, (file, where, message))))
        self.file = file
        self.table = table
        self.field = field
        self.message = message


class InvalidValueError(ValueError):
    """A reader refuses a value; the message says what is allowed."""


class Table:
    """One table of a file. Read all known keys, then call `finish`."""

    def __init__(self, file: str, path: str, values: Mapping[str, Any], spell: Callable[[str], str] = str) -> None:
        """`spell` converts the program's name of a key to the file's; names of tables are not converted."""
        self.file = file
        self.path = path
        self._values = values
        self._spell = spell
        self._known: list[str] = []

    def error(self, field: str, message: str) -> ConfigError:
        """The error for a field of this table; "" for the table itself."""
        return ConfigError(self.file, self.path, _quoted(self._spell(field)), message)

    def take(self, name: str, read: Reader[T], default: T) -> T:
        """The value of `name`, or `default` if it is missing."""
        spelled = self._knows(name)
        return self._read(name, read) if spelled in self._values else default

    def require(self, name: str, read: Reader[T]) -> T:
        """The value of `name`; raises `ConfigError` if it is missing."""
        if self._knows(name) not in self._values:
            raise self.error(name, "is missing")
        return self._read(name, read)

    def _knows(self, name: str) -> str:
        spelled = self._spell(name)
        self._known.append(spelled)
        return spelled

    def _read(self, name: str, read: Reader[T]) -> T:
        try:
            return read(self._values[self._spell(name)])
        except InvalidValueError as error:
            raise self.error(name, str(error)) from None

    def inner(self, values: Mapping[str, Any], *keys: str) -> Table:
        """A table of the same file, under these keys of this table in the file's spelling."""
        return Table(self.file, ".".join(filter(None, (self.path, *map(_quoted, keys)))), values, self._spell)

    def tables(self, name: str, *, shorthand: str | None = None) -> Iterator[tuple[str, Table]]:
        """Yield the named tables in `name`: `[a.b]` tables, `[[a]]` tables with a `name`, or a list of names alone.

        With `shorthand`, a value that is not a table stands for a table with only that key. Names must differ by more
        than case, because they are case-insensitive on the service.
        """
        self._known.append(name)
        entries = self._values.get(name, {})
        if not isinstance(entries, dict | list):
            raise self.error(name, f"must be a table or a list, not {kind_of(entries)}")
        if len(entries) > MAX_ITEMS:
            raise self.error(name, f"must have at most {MAX_ITEMS} entries, not {len(entries)}")
        seen: dict[str, str] = {}
        for key, table in self._named(name, entries, shorthand):
            if key.lower() in seen:
                raise self.error(name, f"has {_shown(key)} twice (names are case-insensitive)")
            seen[key.lower()] = key
            yield key, table

    def _named(self, name: str, entries: Any, shorthand: str | None) -> Iterator[tuple[str, Table]]:
        path = _joined(self.path, _quoted(name))
        if isinstance(entries, dict):
            for key, value in entries.items():
                if shorthand is not None and not isinstance(value, dict):
                    value = {shorthand: value}
                if not isinstance(value, dict):
                    raise ConfigError(self.file, path, _quoted(key), f"must be a table, not {kind_of(value)}")
                yield key, Table(self.file, _joined(path, _quoted(key)), value)
            return
        for index, value in enumerate(entries):
            if isinstance(value, str) and shorthand is None:
                value = {"name": value}
            if not isinstance(value, dict):
                message = f"must be a table with a name, not {kind_of(value)}"
                raise ConfigError(self.file, f"{path}[{index}]", "", message)
            table = Table(self.file, f"{path}[{index}]", value)
            yield table.require("name", text(1, 260)), table

    def items(self, name: str) -> Iterator[Table]:
        """Yield the `[[name]]` tables, which have no names of their own."""
        self._known.append(name)
        entries = self._values.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
            raise self.error(name, f"must be a list of tables, written [[{_joined(self.path, name)}]]")
        if len(entries) > MAX_ITEMS:
            raise self.error(name, f"must have at most {MAX_ITEMS} entries, not {len(entries)}")
        for index, item in enumerate(entries):
            yield Table(self.file, f"{_joined(self.path, name)}[{index}]", item)

    def finish(self) -> None:
        """Raise `ConfigError` for the first key that was not read."""
        for name in self._values:
            if name not in self._known:
                known = {key.lower(): key for key in self._known}
                close = difflib.get_close_matches(name.lower(), known, n=1)
                hint = f"did you mean {known[close[0]]}?" if close else f"known are {', '.join(sorted(self._known))}"
                raise ConfigError(self.file, self.path, _quoted(name), f"is not known here; {hint}")


def text(least: int, most: int) -> Reader[str]:
    """A reader for text of bounded length. Errors do not show the value: it may be a key."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidValueError(f"must be text, not {kind_of(value)}")
        if not least <= len(value) <= most:
            raise InvalidValueError(f"must have {least} to {most} characters, not {len(value)}")
        return value

    return read


def text_for_connection_string(most: int) -> Reader[str]:
    """A reader for text that can be part of a connection string: without semicolons."""
    plain = text(1, most)

    def read(value: Any) -> str:
        checked = plain(value)
        if ";" in checked or checked != checked.strip() or not checked.isprintable():
            raise InvalidValueError("must not hold semicolons, control characters or spaces at its ends")
        return checked

    return read


def boolean(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise InvalidValueError(f"must be true or false, not {kind_of(value)}")
    return value


def integer(least: int, most: int) -> Reader[int]:
    """A reader for a whole number within bounds."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValueError(f"must be a whole number, not {kind_of(value)}")
        if not least <= value <= most:
            raise InvalidValueError(f"must be {least} to {most}, not {_shown(value)}")
        return value

    return read


def choice(kind: type[E]) -> Reader[E]:
    """A reader for an enumeration member by its value, in any case."""

    def read(value: Any) -> E:
        for member in kind:
            if isinstance(value, str) and value.lower() == str(member.value).lower():
                return member
        words = ", ".join(str(member.value) for member in kind)
        raise InvalidValueError(f"must be one of {words}, not {_shown(value)}")

    return read


def texts(most: int) -> Reader[tuple[str, ...]]:
    """A reader for a list of texts."""
    read_text = text(1, 260)

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise InvalidValueError(f"must be a list of at most {most} texts")
        return tuple(read_text(item) for item in value)

    return read


def rights(value: Any) -> frozenset[Right]:
    """Read rights, as a list or a single one. Manage includes the other two, as on the service."""
    words = [value] if isinstance(value, str) else value
    by_name = {right.value.lower(): right for right in Right}
    if not isinstance(words, list) or not words:
        raise InvalidValueError("must be a list of Send, Listen or Manage")
    granted = {by_name.get(word.lower()) if isinstance(word, str) else None for word in words}
    if None in granted:
        raise InvalidValueError("must be a list of Send, Listen or Manage and nothing else")
    return ALL_RIGHTS if Right.MANAGE in granted else frozenset(right for right in granted if right is not None)


def duration(value: Any) -> int:
    """Read a duration as ticks: seconds as a number, `90s`, `1m30s`, `1.5h`, `7d`, ISO 8601, or `unlimited`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidValueError(f"must be a duration such as 30, '30s', '5m' or 'PT5M', not {kind_of(value)}")
    if not isinstance(value, str):
        # Also refuses NaN.
        if not 0 <= value <= MAX_TICKS // TICKS_PER_SECOND:
            raise InvalidValueError(f"must be 0 to {MAX_TICKS // TICKS_PER_SECOND} seconds, not {_shown(value)}")
        return round(Fraction(value) * TICKS_PER_SECOND)
    if value.lower() == "unlimited":
        return MAX_TICKS
    if value[:1] == "P":
        try:
            return parse_duration(value)
        except InvalidDurationError as error:
            raise InvalidValueError(str(error)) from None
    ticks = _human_duration(value)
    if ticks is None:
        raise InvalidValueError(f"must be a duration such as 30, '30s', '1m30s', '7d' or 'PT5M', not {_shown(value)}")
    if ticks > MAX_TICKS:
        raise InvalidValueError("must be shorter than the service's maximum, which is written 'unlimited'")
    return ticks


def _human_duration(value: str) -> int | None:
    ticks, position, used = Fraction(0), 0, set()
    while position < len(value):
        part = _DURATION_PART.match(value, position)
        if part is None or part["unit"] in used:
            return None
        used.add(part["unit"])
        ticks += Fraction(part["number"]) * _TICKS_OF[part["unit"]]
        position = part.end()
    return round(ticks) if used else None


def size(least: int, most: int) -> Reader[int]:
    """A reader for a number of bytes: a number, or text such as `256 KB` or `1 MB`."""

    def read(value: Any) -> int:
        count: Fraction | None = None
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            count = Fraction(match["number"]) * _BYTES_OF[match["unit"].lower()]
        elif isinstance(value, int) and not isinstance(value, bool):
            count = Fraction(value)
        if count is None or not least <= count <= most:
            raise InvalidValueError(f"must be {least} to {most} bytes, such as 262144 or '256 KB', not {_shown(value)}")
        return round(count)

    return read


def moment(value: Any) -> float:
    """Read a time as seconds since the epoch: a TOML date and time with its offset, or a number."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        seconds = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidValueError(
            f"must be a date and time with its offset, such as 2030-01-01T00:00:00Z, not {kind_of(value)}"
        )
    # The last second of the year 9999.
    if not 0 <= seconds <= 253_402_300_799:
        raise InvalidValueError("must lie between the years 1970 and 9999")
    return float(seconds)


def kind_of(value: Any) -> str:
    """The kind of a value, for errors."""
    return _KINDS.get(type(value), "a date or time")


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    shown = repr(value) if not isinstance(value, dict | list) else kind_of(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _quoted(key: str) -> str:
    """A key in TOML spelling, shortened if very long."""
    if not key or (len(key) <= _MAX_SHOWN_KEY and _BARE_KEY.fullmatch(key)):
        return key
    return json.dumps(key if len(key) <= _MAX_SHOWN_KEY else key[:_MAX_SHOWN_KEY] + "...", ensure_ascii=False)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
