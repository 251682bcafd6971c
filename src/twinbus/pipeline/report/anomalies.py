"""The messages that somebody should look at, from the tables of reconciliation."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twinbus.ledger.schema import pa, pc, pq
from twinbus.pipeline.results import Results
from twinbus.pipeline.summary import ANOMALIES

from .document import Anomalies

#: What is listed one by one, the worst first. What is in flight may be millions of messages, and nothing is wrong with
#: them: they are counted, and their ids are in the tables.
LISTED = ("lost", "unexpected", "dead_lettered", "duplicated", "recovered")
_PLACES = {word: place for place, word in enumerate(LISTED)}


def read_anomalies(results: Results, paths: Sequence[str], summary: Mapping[str, Any], most: int) -> Anomalies:
    """The worst of them, at most so many."""
    rows = _listed(results, paths)
    shown = heapq.nsmallest(most, rows, key=lambda one: (_PLACES[one["word"]], one["first_us"], one["message_id"]))
    return Anomalies(tuple(shown), sum(summary[word] for word in LISTED))


def _listed(results: Results, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    listed = pa.array(LISTED)
    for path in paths:
        for batch in pq.ParquetFile(pa.BufferReader(results.read_bytes(path))).iter_batches(columns=ANOMALIES.names):
            yield from batch.filter(pc.is_in(batch["word"], listed)).to_pylist()
