"""Find the time that the ledger covers with rows. Outside it nothing is known, so nothing counts as healthy. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinbus.ledger.schema import pa, pc
from twinbus.tables.arrow_schemas import micros

from .render.formats import MINUTE, iso

#: Shorter pauses between two rows count as covered: the tables have the first and the last row of each hour only.
PAUSE_US = 10 * MINUTE


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
    slim = pa.table(
        {
            "pairing": usage["pairing"],
            # Receivers record at subscriptions, senders at the topic.
            "entity": pc.replace_substring_regex(pc.utf8_lower(usage["entity"]), "/subscriptions/.*", ""),
            "hour": usage["hour"],
            "first": micros(usage["first_time"]),
            "last": micros(usage["last_time"]),
        }
    )
    names = pa.array(sorted({entity.lower() for _, entity in entities}), pa.string())
    by_entity = _spans(slim.filter(pc.is_in(slim["entity"], names)), ["pairing", "entity"])
    whole = _spans(slim, []).get((), [])
    return Coverage(
        tuple(whole),
        {(pairing, entity): tuple(_to_the_ends(spans, whole)) for (pairing, entity), spans in by_entity.items()},
    )


def _to_the_ends(spans: list[Span], whole: list[Span]) -> list[Span]:
    """Extend the spans of an entity over a short pause before the first and after the last row of all entities."""
    first, last = whole[0].since, whole[-1].until
    if spans[0].since - first <= PAUSE_US:
        spans[0] = Span(first, spans[0].until)
    if last - spans[-1].until <= PAUSE_US:
        spans[-1] = Span(spans[-1].since, last)
    return spans


def _spans(rows: pa.Table, keys: list[str]) -> dict[tuple[Any, ...], list[Span]]:
    """The spans for each value of `keys`. Only rows at which a span begins or ends become Python objects."""
    hours = rows.group_by([*keys, "hour"]).aggregate([("first", "min"), ("last", "max")])
    hours = hours.sort_by([(name, "ascending") for name in (*keys, "hour")])
    count = hours.num_rows
    if not count:
        return {}
    # Hours do not overlap, so a span ends where the next hour begins late, or belongs to another key.
    pauses = pc.subtract(hours["first_min"].slice(1), hours["last_max"].slice(0, count - 1))
    is_end = pc.greater(pauses, PAUSE_US)
    for name in keys:
        is_end = pc.or_(is_end, pc.not_equal(hours[name].slice(1), hours[name].slice(0, count - 1)))
    ends = [*pc.indices_nonzero(is_end).to_pylist(), count - 1]
    begins = [0, *(index + 1 for index in ends[:-1])]
    spans: defaultdict[tuple[Any, ...], list[Span]] = defaultdict(list)
    columns = [hours[name].take(pa.array(begins)).to_pylist() for name in (*keys, "first_min")]
    lasts = hours["last_max"].take(pa.array(ends)).to_pylist()
    for *key, since, until in zip(*columns, lasts, strict=True):
        spans[tuple(key)].append(Span(since, until))
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
