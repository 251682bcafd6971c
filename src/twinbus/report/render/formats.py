"""Format numbers, times and names for people. All times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000  # microseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: An empty cell of a table; also *to* between two times.
NONE = "\N{EN DASH}"
_CENT = Decimal("0.01")
_MILLION = 1_000_000
#: Counts from here on are shown in millions where room is scarce.
_MANY = 10 * _MILLION
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def at(us: int) -> datetime:
    """Return a time of the ledger as a datetime."""
    return _EPOCH + timedelta(microseconds=us)


def number(count: int) -> str:
    return f"{count:,}"


def short_number(count: int) -> str:
    """Return a short count: 9,999,999 is written out, 12,345,678 is 12.3 million."""
    if abs(count) < _MANY:
        return number(count)
    return f"{count / _MILLION:,.1f} million" if abs(count) < 1_000 * _MILLION else f"{count / 1e9:,.1f} billion"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 message`, `2 messages`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def duration(us: float) -> str:
    """Return at most two units, without line breaks: 4.2 ms, 41 s, 2 min 5 s, 3 h 10 min, 2 days 4 h."""
    return _duration(us).replace(" ", _NO_BREAK_SPACE)


def _duration(us: float) -> str:
    if us < 0:
        return "-" + _duration(-us)
    if us == 0:
        return "0 s"
    if us < 999.5:
        return f"{us:.0f} µs"
    if us < 999_500:
        return f"{_digits(us / 1_000)} ms"
    if us < 59.5 * SECOND:
        return f"{_digits(us / SECOND)} s"
    if us < 59.5 * MINUTE:
        return _two(round(us / SECOND), 60, "min", "s")
    if us < 48 * HOUR:
        return _two(round(us / MINUTE), 60, "h", "min")
    return _two(round(us / HOUR), 24, "days", "h")


def _digits(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"


def _two(count: int, base: int, large: str, small: str) -> str:
    whole, rest = divmod(count, base)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def moment(us: int, *, seconds: bool = False) -> str:
    """Return a time such as 3 Nov 2026 14:05, UTC."""
    return f"{day(us)} {at(us).year} {clock(us, seconds=seconds)}"


def clock(us: int, *, seconds: bool = False) -> str:
    """Return a time of day such as 14:05, or 14:05:09."""
    return f"{at(us):%H:%M:%S}" if seconds else f"{at(us):%H:%M}"


def day(us: int) -> str:
    """Return a day such as 3 Nov."""
    time = at(us)
    return f"{time.day} {_MONTHS[time.month - 1]}"


def month(year: int, number_of_month: int) -> str:
    """Return a month such as Nov 2026."""
    return f"{_MONTHS[number_of_month - 1]} {year}"


def span(since: int, until: int) -> str:
    """Return a range of time; a common day is written once."""
    if at(since).date() == at(until).date():
        return f"{moment(since)}{NONE}{clock(until)}"
    return f"{moment(since)} {NONE} {moment(until)}"


def money(amount: Decimal) -> str:
    """Return an amount in cents; less than a cent keeps two significant digits, so that it is not shown as zero."""
    if amount and abs(amount) < _CENT:
        digits = Decimal(1).scaleb(amount.adjusted() - 1)
        return f"{amount.quantize(digits, ROUND_HALF_UP).normalize():f}" if amount.adjusted() >= -9 else "< 0.000000001"
    return f"{amount.quantize(_CENT, ROUND_HALF_UP):,f}"


def percent(part: int, whole: int) -> str:
    """Return a share. Only all is 100%, only none is 0%."""
    if not whole:
        return NONE
    if part in (0, whole):
        return "100%" if part else "0%"
    share = 100 * part / whole
    if part and share < 0.01:
        return "< 0.01%"
    return f"{min(share, 99.99):.2f}%" if share > 99 or share < 1 else f"{share:.1f}%"


def printable(text: str) -> str:
    """Replace characters that control a terminal or the direction of text; names and ids come from anywhere."""
    return "".join(
        letter if letter.isprintable() or letter == _NO_BREAK_SPACE else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def place(url: str) -> str:
    """Return a folder or URL without the passwords and signatures that a URL may contain."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = rest.partition("?")[0].partition("#")[0]
    user, _, _ = rest.partition("/")[0].rpartition("@")
    if ":" in user:
        rest = rest.replace(f"{user}@", f"{user.partition(':')[0]}@", 1)
    return f"{scheme}{separator}{rest}"


def iso(us: int | None) -> str | None:
    """Return a time for programs: 2026-11-03T14:05:09.123456Z."""
    return None if us is None else at(us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
