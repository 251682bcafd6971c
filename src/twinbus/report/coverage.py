"""Find the time that the ledger covers with rows. Outside it nothing is known, so nothing counts as healthy. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinbus.ledger.schema import pa, pc
from twinbus.tables.arrow_schemas import micros

from .render.formats import HOUR, MINUTE, iso

#: Shorter pauses between two rows count as covered: the tables have the first and the last row of each hour only.
PAUSE_US = 10 * MINUTE
#: Bits for the number of an hour since the epoch.
_HOUR_BITS = 32


class Span(NamedTuple):
    """A time, in microseconds since the epoch."""

    since: int
    until: int

    def to_json(self) -> dict[str, Any]:
        return {"since": iso(self.since), "until": iso(self.until)}


@dataclass(frozen=True, slots=True)
class Coverage:
    """The spans of time for which the ledger has rows, in order."""

    #: Of all entities together.
    spans: tuple[Span, ...] = ()
    #: By pairing and entity in lower case.
    by_entity: Mapping[tuple[str, str], tuple[Span, ...]] = field(default_factory=dict)

    def of(self, pairing: str, entity: str) -> tuple[Span, ...]:
        """The spans of one entity; none if the entity has no rows."""
        return self.by_entity.get((pairing, entity.lower()), ())

    @property
    def first(self) -> int | None:
        """The time of the first row."""
        return self.spans[0].since if self.spans else None

    @property
    def last(self) -> int | None:
        """The time of the last row."""
        return self.spans[-1].until if self.spans else None


def coverage_of(usage: pa.Table, entities: Collection[tuple[str, str]]) -> Coverage:
    """The coverage by the rows of a table `usage`.

    Args:
        entities: Pairing and name of the entities that get spans of their own.
    """
    usage = usage.filter(pc.not_equal(usage["operation"], "dropped"))  # such a row stands for rows that are missing
    pairings, pairing_numbers = _numbered(usage["pairing"], lambda name: name)
    names, name_numbers = _numbered(usage["entity"], _topic_of)
    keys = pc.add(pc.multiply(pairing_numbers, len(names)), name_numbers)
    wanted = {
        pairings[pairing] * len(names) + names[entity.lower()]: (pairing, entity.lower())
        for pairing, entity in entities
        if pairing in pairings and entity.lower() in names
    }
    whole = _spans(usage, pc.multiply(keys, 0)).get(0, [])
    is_wanted = pc.is_in(keys, pa.array(wanted, pa.int64()))
    by_key = _spans(usage.filter(is_wanted), keys.filter(is_wanted))
    return Coverage(tuple(whole), {wanted[key]: tuple(_to_the_ends(spans, whole)) for key, spans in by_key.items()})


def _topic_of(path: str) -> str:
    """Return a path in lower case, of a subscription its topic: receivers record at subscriptions, senders do not."""
    return path.lower().partition("/subscriptions/")[0]


def _numbered(column: pa.ChunkedArray, name_of: Callable[[str], str]) -> tuple[dict[str, int], pa.Array]:
    """Number the different names of a column. Numbers are much faster to sort than texts."""
    encoded = column.combine_chunks().dictionary_encode()
    numbers: dict[str, int] = {}
    by_value = [numbers.setdefault(name_of(value), len(numbers)) for value in encoded.dictionary.to_pylist()]
    return numbers, pa.array(by_value, pa.int64()).take(encoded.indices)


def _to_the_ends(spans: list[Span], whole: list[Span]) -> list[Span]:
    """Extend the spans of an entity over a short pause before the first and after the last row of all entities."""
    first, last = whole[0].since, whole[-1].until
    if spans[0].since - first <= PAUSE_US:
        spans[0] = Span(first, spans[0].until)
    if last - spans[-1].until <= PAUSE_US:
        spans[-1] = Span(spans[-1].since, last)
    return spans


def _spans(usage: pa.Table, keys: pa.Array) -> dict[int, list[Span]]:
    """Return the spans for each key. Only rows at which a span begins or ends become Python objects."""
    hours = pc.divide(micros(usage["hour"]), HOUR)
    times = {"first": micros(usage["first_time"]), "last": micros(usage["last_time"])}
    rows = pa.table({"slot": pc.add(pc.shift_left(keys, _HOUR_BITS), hours), **times})
    rows = rows.group_by("slot").aggregate([("first", "min"), ("last", "max")]).sort_by("slot")
    count = rows.num_rows
    if not count:
        return {}
    # Hours do not overlap, so a span ends where the next hour begins late, or belongs to another key.
    pauses = pc.subtract(rows["first_min"].slice(1), rows["last_max"].slice(0, count - 1))
    keys = pc.shift_right(rows["slot"], _HOUR_BITS)
    is_end = pc.or_(pc.greater(pauses, PAUSE_US), pc.not_equal(keys.slice(1), keys.slice(0, count - 1)))
    ends = [*pc.indices_nonzero(is_end).to_pylist(), count - 1]
    begins = [0, *(index + 1 for index in ends[:-1])]
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    columns = (keys, begins), (rows["first_min"], begins), (rows["last_max"], ends)
    for key, since, until in zip(*(column.take(pa.array(at)).to_pylist() for column, at in columns), strict=True):
        spans[key].append(Span(since, until))
    return dict(spans)


def gaps_between(spans: Iterable[Span], since: int, until: int) -> list[Span]:
    """The time from `since` to `until` that no span covers. Gaps as short as a pause are left out."""
    gaps = []
    end = since
    for span in spans:
        if span.since - end > PAUSE_US and span.since <= until:
            gaps.append(Span(end, span.since))
        end = max(end, span.until)
    if until - end > PAUSE_US:
        gaps.append(Span(end, until))
    return gaps


def is_covered(spans: Sequence[Span], since: int, until: int) -> bool:
    """Whether a span overlaps the time from `since` to `until`."""
    return any(span.since < until and span.until >= since for span in spans)
