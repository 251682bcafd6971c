"""Load the price book: what the service charges. Prices are data, and users can give their own file.

Money is `Decimal`, exact to the last digit: arithmetic that would round raises instead.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow, localcontext
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_BOOK = "uk-south-2026-10-05.toml"
MILLION = 1_000_000

MAX_PRICE = Decimal(1_000_000)
MAX_DECIMALS = 12
MAX_COUNT = 10**15
_MAX_TEXT = 500
_MAX_FILE = 1_000_000  # bytes
_CURRENCY = re.compile(r"[A-Z]{3}")
_TIER = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def exact() -> Context:
    """Return a decimal context that raises `decimal.Inexact` instead of rounding."""
    return Context(prec=100, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])


class PriceError(ValueError):
    """A price book is wrong. The message names the file, the field and what is allowed."""


@dataclass(frozen=True, slots=True)
class Step:
    """The price of a monthly quantity above a bound, up to the next step."""

    above: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Scale:
    """A price that depends on the monthly quantity. `price` is for `per` units."""

    per: int = 1
    steps: tuple[Step, ...] = ()

    @property
    def included(self) -> int | None:
        """The monthly quantity that costs nothing; None if all of it."""
        return self.steps[0].above if self.steps else None

    def charge(self, quantity: int | Decimal) -> Decimal:
        """Return the price of a monthly quantity."""
        with localcontext(exact()):
            amount = Decimal(0)
            rest = Decimal(quantity)
            for step in reversed(self.steps):
                amount += step.price * max(Decimal(0), rest - step.above)
                rest = min(rest, Decimal(step.above))
            return amount / self.per


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a tier; None for no limit."""

    #: Credits of a namespace per second: a send, a receive and a peek take one for each message.
    credits_per_second: int | None = None
    #: The largest message, with all properties.
    message_bytes: int | None = None
    #: The largest queue.
    queue_bytes: int | None = None
    #: The most connections of a namespace.
    connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The prices and limits of one tier."""

    name: str
    #: Once per subscription.
    base_per_hour: Decimal = Decimal(0)
    #: For each messaging unit of each namespace.
    unit_per_hour: Decimal = Decimal(0)
    operations: Scale = Scale(MILLION)
    connections: Scale = Scale()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """The prices of the service, with currency, date and source."""

    currency: str
    date: date
    source: str
    tiers: Mapping[str, Tier]
    #: For a GB between regions; None if it is not known.
    transfer_per_gb: Decimal | None = None

    def tier(self, name: str) -> Tier:
        """Return a tier. Raises `PriceError` if it is not in the book."""
        try:
            return self.tiers[name]
        except KeyError:
            raise PriceError(f"tier must be one of {', '.join(self.tiers)}, not {name!r}") from None


def load_prices(path: Path | None = None) -> PriceBook:
    """Return the price book in a file, or the one that is shipped.

    Raises:
        PriceError: The file cannot be read, or a field is wrong.
    """
    if path is None:
        shipped = files("twinbus.report.cost").joinpath("price_books", DEFAULT_BOOK)
        return parse_prices(shipped.read_text(encoding="utf-8"), DEFAULT_BOOK)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
        text = data.decode()
    except OSError as error:
        raise PriceError(f"{path}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise PriceError(f"{path}: must be UTF-8 text") from None
    if len(data) > _MAX_FILE:
        raise PriceError(f"{path}: must have at most {_MAX_FILE:,} bytes")
    return parse_prices(text, str(path))


def parse_prices(text: str, file: str = "prices") -> PriceBook:
    """Return the price book in a TOML text; errors name it `file`.

    Raises:
        PriceError: Names the field and the bound.
    """
    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:  # also numbers with thousands of digits
        raise PriceError(f"{file}: not TOML: {error}") from None
    except InvalidOperation:
        raise PriceError(f"{file}: not TOML: a number with an impossible exponent") from None
    book = _Fields(file, "", table)
    prices = PriceBook(
        currency=book.text("currency", _CURRENCY, "three capital letters, such as USD"),
        date=book.date("date"),
        source=book.text("source"),
        transfer_per_gb=book.price("transfer_per_gb") if book.has("transfer_per_gb") else None,
        tiers=_tiers(book),
    )
    book.end()
    return prices


def checked_price(name: str, value: object) -> Decimal:
    """Return a price within the bounds. Raises `PriceError`, which names it `name`."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise PriceError(f"{name} must be a number, not {_shown(value)}")
    price = Decimal(value)
    if not price.is_finite() or not 0 <= price <= MAX_PRICE:
        raise PriceError(f"{name} must be from 0 to {MAX_PRICE}, not {_shown(value)}")
    exponent = price.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > MAX_DECIMALS:
        raise PriceError(f"{name} must have at most {MAX_DECIMALS} decimals, not {_shown(value)}")
    return price


def _tiers(book: _Fields) -> dict[str, Tier]:
    tables = book.table("tiers")
    names = list(tables.given)
    if not names:
        tables.refuse("", "must have at least one tier")
    for name in names:
        if not _TIER.fullmatch(name):
            tables.refuse(name, "must be a name of small letters, digits, - and _, at most 40")
    return {name: _tier(name, tables.table(name)) for name in names}


def _tier(name: str, table: _Fields) -> Tier:
    limits = table.table("limits", optional=True)
    tier = Tier(
        name=name,
        base_per_hour=table.price("base_per_hour", default=Decimal(0)),
        unit_per_hour=table.price("unit_per_hour", default=Decimal(0)),
        operations=Scale(MILLION, table.steps("operations", "per_million")),
        connections=Scale(1, table.steps("connections", "each")),
        limits=Limits(
            credits_per_second=limits.count("credits_per_second", least=1),
            message_bytes=limits.count("message_bytes", least=1),
            queue_bytes=limits.count("queue_bytes", least=1),
            connections=limits.count("connections", least=1),
        ),
    )
    limits.end()
    table.end()
    return tier


class _Fields:
    """The fields of one TOML table. `end` refuses fields that were not read."""

    def __init__(self, file: str, path: str, given: Mapping[str, Any]) -> None:
        self.given = given
        self._file = file
        self._path = path
        self._known: list[str] = []

    def refuse(self, name: str, reason: str) -> NoReturn:
        raise PriceError(f"{self._file}: {self._where(name)} {reason}")

    def _where(self, name: str) -> str:
        # A TOML name may contain control characters, which must not reach the terminal.
        shown = name if name.isprintable() else repr(name)
        return f"{self._path}.{shown}" if self._path and name else shown or self._path

    def _take(self, name: str) -> Any:
        self._known.append(name)
        if name not in self.given:
            self.refuse(name, "is missing")
        return self.given[name]

    def has(self, name: str) -> bool:
        if name in self.given:
            return True
        self._known.append(name)
        return False

    def end(self) -> None:
        for name in self.given:
            if name not in self._known:
                self.refuse(name, f"is not a known field; known are {', '.join(self._known)}")

    def text(self, name: str, pattern: re.Pattern[str] | None = None, expected: str = "text") -> str:
        value = self._take(name)
        if not isinstance(value, str) or (pattern and not pattern.fullmatch(value)):
            self.refuse(name, f"must be {expected}, not {_shown(value)}")
        if not 1 <= len(value) <= _MAX_TEXT or not value.isprintable():
            self.refuse(name, f"must be one line of 1 to {_MAX_TEXT} characters")
        return value

    def date(self, name: str) -> date:
        value = self._take(name)
        if not isinstance(value, date) or isinstance(value, datetime):
            self.refuse(name, f"must be a date, such as 2026-10-05, not {_shown(value)}")
        return value

    def price(self, name: str, default: Decimal | None = None) -> Decimal:
        if default is not None and not self.has(name):
            return default
        value = self._take(name)
        try:
            return checked_price(self._where(name), value)
        except PriceError as error:
            raise PriceError(f"{self._file}: {error}") from None

    def count(self, name: str, *, least: int) -> int | None:
        """Return a whole number; None if it is missing."""
        if not self.has(name):
            return None
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
            self.refuse(name, f"must be a whole number from {least} to {MAX_COUNT}, not {_shown(value)}")
        return value

    def table(self, name: str, *, optional: bool = False) -> _Fields:
        if optional and not self.has(name):
            return _Fields(self._file, self._where(name), {})
        value = self._take(name)
        if not isinstance(value, dict):
            self.refuse(name, f"must be a table, not {_shown(value)}")
        return _Fields(self._file, self._where(name), value)

    def steps(self, name: str, price: str) -> tuple[Step, ...]:
        """Return the steps of a scale; none if it is missing."""
        if not self.has(name):
            return ()
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(table, dict) for table in value) or not value:
            self.refuse(name, f"must be a list of steps, such as [{{ above = 0, {price} = 0.05 }}]")
        steps: list[Step] = []
        for number, table in enumerate(value):
            step = _Fields(self._file, f"{self._where(name)}[{number}]", table)
            above = step.count("above", least=0)
            if above is None:
                step.refuse("above", "is missing")
            steps.append(Step(above, step.price(price)))
            step.end()
        for number, (earlier, later) in enumerate(pairwise(steps), start=1):
            if later.above <= earlier.above:
                self.refuse(f"{name}[{number}].above", f"must be more than {earlier.above}, not {later.above}")
        return tuple(steps)


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    shown = str(value) if isinstance(value, Decimal) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
