"""Reading TOML tables so that every mistake says where it is and what is allowed.

A `Table` hands out the values of one table, each through a *reader*: a function that turns what TOML gave
into what the program wants, or raises `BadValue`. A key that nobody asked for is a mistake too. Readers of
secrets never put the value into their message.
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

from twinbus.broker.durations import (
    MAX_TICKS,
    TICKS_PER_DAY,
    TICKS_PER_HOUR,
    TICKS_PER_MINUTE,
    TICKS_PER_SECOND,
    InvalidDuration,
    parse_duration,
)
from twinbus.broker.security import ALL_RIGHTS, Right

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
# As the service counts: its 256 KB are 262,144 bytes.
_BYTES_OF = {"b": 1, "kb": 1024, "mb": 1024 * 1024}
_KINDS = {
    type(None): "nothing",  # which TOML does not have, and JSON does
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


class ConfigError(Exception):
    """A mistake in a configuration file.

    `table` (such as `namespaces.contoso.queues.orders`) and `field` are empty where it is not in one.
    """

    def __init__(self, file: str, table: str, field: str, message: str) -> None:
        where = ".".join(filter(None, (table, field)))
        super().__init__(": ".join(filter(None, (file, where, message))))
        self.file = file
        self.table = table
        self.field = field
        self.message = message


class BadValue(ValueError):  # noqa: N818 - reads as what it says
    """What a reader found wrong with a value."""


class Table:
    """One table of a file. Take what is known from it, then call `finish`."""

    def __init__(self, file: str, path: str, values: Mapping[str, Any], spell: Callable[[str], str] = str) -> None:
        """`spell` turns a name as the program has it into the one in the file; those of tables are never changed."""
        self.file = file
        self.path = path
        self._values = values
        self._spell = spell
        self._known: list[str] = []

    def error(self, field: str, message: str) -> ConfigError:
        """The error for a field of this table; "" for the table itself."""
        return ConfigError(self.file, self.path, _quoted(self._spell(field)), message)

    def take(self, name: str, read: Reader[T], default: T) -> T:
        """The value of `name`, or `default` if it is not there."""
        spelled = self._knows(name)
        return self._read(name, read) if spelled in self._values else default

    def require(self, name: str, read: Reader[T]) -> T:
        """The value of `name`, which must be there."""
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
        except BadValue as error:
            raise self.error(name, str(error)) from None

    def inner(self, values: Mapping[str, Any], *keys: str) -> Table:
        """A table of the same file, under these keys of this one as the file spells them."""
        return Table(self.file, ".".join(filter(None, (self.path, *map(_quoted, keys)))), values, self._spell)

    def tables(self, name: str, *, shorthand: str | None = None) -> Iterator[tuple[str, Table]]:
        """The named tables in `name`: `[a.b]` tables, `[[a]]` tables with a `name`, or a list of names alone.

        With `shorthand`, a value that is not a table stands for a table with only that key. No two names may
        differ by their case alone, as the service takes them for the same.
        """
        self._known.append(name)
        found = self._values.get(name, {})
        if not isinstance(found, dict | list):
            raise self.error(name, f"must be a table or a list, not {kind_of(found)}")
        if len(found) > MAX_ITEMS:
            raise self.error(name, f"must have at most {MAX_ITEMS} entries, not {len(found)}")
        seen: dict[str, str] = {}
        for key, table in self._named(name, found, shorthand):
            if key.lower() in seen:
                raise self.error(name, f"has {_shown(key)} twice (case does not count)")
            seen[key.lower()] = key
            yield key, table

    def _named(self, name: str, found: Any, shorthand: str | None) -> Iterator[tuple[str, Table]]:
        path = _joined(self.path, _quoted(name))
        if isinstance(found, dict):
            for key, value in found.items():
                if shorthand is not None and not isinstance(value, dict):
                    value = {shorthand: value}
                if not isinstance(value, dict):
                    raise ConfigError(self.file, path, _quoted(key), f"must be a table, not {kind_of(value)}")
                yield key, Table(self.file, _joined(path, _quoted(key)), value)
            return
        for index, value in enumerate(found):
            if isinstance(value, str) and shorthand is None:
                value = {"name": value}
            if not isinstance(value, dict):
                message = f"must be a table with a name, not {kind_of(value)}"
                raise ConfigError(self.file, f"{path}[{index}]", "", message)
            table = Table(self.file, f"{path}[{index}]", value)
            yield table.require("name", text(1, 260)), table

    def items(self, name: str) -> Iterator[Table]:
        """The `[[name]]` tables, which have no names of their own."""
        self._known.append(name)
        found = self._values.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.error(name, f"must be a list of tables, written [[{_joined(self.path, name)}]]")
        if len(found) > MAX_ITEMS:
            raise self.error(name, f"must have at most {MAX_ITEMS} entries, not {len(found)}")
        for index, item in enumerate(found):
            yield Table(self.file, f"{_joined(self.path, name)}[{index}]", item)

    def finish(self) -> None:
        """Refuses the first key that nobody took."""
        for name in self._values:
            if name not in self._known:
                known = {one.lower(): one for one in self._known}
                close = difflib.get_close_matches(name.lower(), known, n=1)
                hint = f"did you mean {known[close[0]]}?" if close else f"known are {', '.join(sorted(self._known))}"
                raise ConfigError(self.file, self.path, _quoted(name), f"is not known here; {hint}")


def text(least: int, most: int) -> Reader[str]:
    """Text of bounded length. The value stays out of the message, as it may be a key."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise BadValue(f"must be text, not {kind_of(value)}")
        if not least <= len(value) <= most:
            raise BadValue(f"must have {least} to {most} characters, not {len(value)}")
        return value

    return read


def text_for_connection_string(most: int) -> Reader[str]:
    """Text that a connection string can carry, which has semicolons between its parts."""
    plain = text(1, most)

    def read(value: Any) -> str:
        checked = plain(value)
        if ";" in checked or checked != checked.strip() or not checked.isprintable():
            raise BadValue("must not hold semicolons, control characters or spaces at its ends")
        return checked

    return read


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadValue(f"must be true or false, not {kind_of(value)}")
    return value


def integer(least: int, most: int) -> Reader[int]:
    """A whole number within bounds."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadValue(f"must be a whole number, not {kind_of(value)}")
        if not least <= value <= most:
            raise BadValue(f"must be {least} to {most}, not {_shown(value)}")
        return value

    return read


def choice(kind: type[E]) -> Reader[E]:
    """A member of an enumeration by its word, in any case."""

    def read(value: Any) -> E:
        for member in kind:
            if isinstance(value, str) and value.lower() == str(member.value).lower():
                return member
        words = ", ".join(str(member.value) for member in kind)
        raise BadValue(f"must be one of {words}, not {_shown(value)}")

    return read


def texts(most: int) -> Reader[tuple[str, ...]]:
    """A list of texts."""
    one = text(1, 260)

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise BadValue(f"must be a list of at most {most} texts")
        return tuple(one(item) for item in value)

    return read


def rights(value: Any) -> frozenset[Right]:
    """Rights, as a list or one alone. Manage brings the other two along, as on the service."""
    words = [value] if isinstance(value, str) else value
    by_name = {right.value.lower(): right for right in Right}
    if not isinstance(words, list) or not words:
        raise BadValue("must be a list of Send, Listen or Manage")
    found = {by_name.get(word.lower()) if isinstance(word, str) else None for word in words}
    if None in found:
        raise BadValue("must be a list of Send, Listen or Manage and nothing else")
    return ALL_RIGHTS if Right.MANAGE in found else frozenset(right for right in found if right is not None)


def duration(value: Any) -> int:
    """Ticks of a duration: seconds as a number, `90s`, `1m30s`, `1.5h`, `7d`, ISO 8601, or `unlimited`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadValue(f"must be a duration such as 30, '30s', '5m' or 'PT5M', not {kind_of(value)}")
    if not isinstance(value, str):
        # Also false for "not a number".
        if not 0 <= value <= MAX_TICKS // TICKS_PER_SECOND:
            raise BadValue(f"must be 0 to {MAX_TICKS // TICKS_PER_SECOND} seconds, not {_shown(value)}")
        return round(Fraction(value) * TICKS_PER_SECOND)
    if value.lower() == "unlimited":
        return MAX_TICKS
    if value[:1] == "P":
        try:
            return parse_duration(value)
        except InvalidDuration as error:
            raise BadValue(str(error)) from None
    ticks = _human_duration(value)
    if ticks is None:
        raise BadValue(f"must be a duration such as 30, '30s', '1m30s', '7d' or 'PT5M', not {_shown(value)}")
    if ticks > MAX_TICKS:
        raise BadValue("must be shorter than the service's maximum, which is written 'unlimited'")
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
    """Bytes: a number, or `256 KB`, `1 MB`."""

    def read(value: Any) -> int:
        found: Fraction | None = None
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            found = Fraction(match["number"]) * _BYTES_OF[match["unit"].lower()]
        elif isinstance(value, int) and not isinstance(value, bool):
            found = Fraction(value)
        if found is None or not least <= found <= most:
            raise BadValue(f"must be {least} to {most} bytes, such as 262144 or '256 KB', not {_shown(value)}")
        return round(found)

    return read


def moment(value: Any) -> float:
    """Seconds since the epoch: a TOML date and time with its offset, or a number."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        found = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = value
    else:
        raise BadValue(f"must be a date and time with its offset, such as 2030-01-01T00:00:00Z, not {kind_of(value)}")
    # The last second of the year 9999.
    if not 0 <= found <= 253_402_300_799:
        raise BadValue("must lie between the years 1970 and 9999")
    return float(found)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return _KINDS.get(type(value), "a date or time")


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    shown = repr(value) if not isinstance(value, dict | list) else kind_of(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _quoted(key: str) -> str:
    """A key as TOML would have it written, cut where it is absurdly long."""
    if not key or (len(key) <= _MAX_SHOWN_KEY and _BARE_KEY.fullmatch(key)):
        return key
    return json.dumps(key if len(key) <= _MAX_SHOWN_KEY else key[:_MAX_SHOWN_KEY] + "...", ensure_ascii=False)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
