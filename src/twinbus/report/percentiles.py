"""Estimate percentiles of durations from histogram buckets, exact to 5 %. Needs no Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from twinbus.ledger.recorder import OperationKind, Stage
from twinbus.ledger.schema import pa
from twinbus.tables.code_words import code_of
from twinbus.tables.histogram import middle_of


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Latency of completed operations of one kind, at one entity or, if it is None, at all entities."""

    entity: str | None
    stage: Stage
    operation: OperationKind
    count: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "stage": self.stage.name.lower(), "operation": self.operation.name.lower()}


def percentile(buckets: Mapping[int, int], part: float) -> float:
    """Return the value below which a part of all values lies (nearest rank), from the number in each bucket.

    Raises:
        ValueError: The buckets are empty, or `part` is not from 0 to 1.
    """
    if not 0 <= part <= 1:
        raise ValueError(f"part must be from 0 to 1, not {part!r}")
    total = sum(buckets.values())
    if not total:
        raise ValueError("buckets must not be empty")
    rank = max(1, math.ceil(part * total))
    for bucket in sorted(buckets):
        rank -= buckets[bucket]
        if rank <= 0:
            return middle_of(bucket)
    raise AssertionError("the ranks end within the buckets")


def percentiles(table: pa.Table, *, by_entity: bool = True) -> list[Percentiles]:
    """Return the sorted percentiles of a table `latency`, for all entities together and, if asked, for each.

    Codes of a later release are ignored.
    """
    keys = ["stage", "operation", "bucket"]
    histograms: dict[tuple[str | None, str, str], dict[int, tuple[int, int]]] = {}
    for names in [keys, ["entity", *keys]] if by_entity else [keys]:
        sums = table.group_by(names).aggregate([("count", "sum"), ("max_us", "max")])
        for row in sums.to_pylist():
            histogram = histograms.setdefault((row.get("entity"), row["stage"], row["operation"]), {})
            histogram[row["bucket"]] = (row["count_sum"], row["max_us_max"])
    known = [
        _percentiles(entity, stage, operation, buckets)
        for (entity, stage_word, operation_word), buckets in histograms.items()
        if (stage := code_of(Stage, stage_word)) is not None
        and (operation := code_of(OperationKind, operation_word)) is not None
    ]
    return sorted(known, key=lambda percentiles: (percentiles.entity or "", percentiles.stage, percentiles.operation))


def _percentiles(
    entity: str | None, stage: Stage, operation: OperationKind, buckets: Mapping[int, tuple[int, int]]
) -> Percentiles:
    counts = {bucket: count for bucket, (count, _) in buckets.items()}
    longest = max(most for _, most in buckets.values())
    # The middle of the last bucket may lie above the longest.
    p50, p90, p99 = (min(round(percentile(counts, part)), longest) for part in (0.5, 0.9, 0.99))
    return Percentiles(entity, stage, operation, sum(counts.values()), p50, p90, p99, longest)
