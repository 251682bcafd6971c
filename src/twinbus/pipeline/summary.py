"""What reconciliation has found, as reports read it: no Spark needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinbus.ledger.schema import pa

from .verdict import WORDS

#: Whose word was taken for arrivals: the receivers' own rows, or what the namespace said to senders and syphon.
RECEIVERS, NAMESPACE = "receivers", "namespace"

#: The table of anomalies: one row for each message and word.
ANOMALIES = pa.schema(
    [
        ("word", pa.string()),
        ("destination", pa.string()),
        ("message_id", pa.string()),
        #: The first and the last row that tells of it, in microseconds since the epoch.
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        #: Attempts of senders, accepted moves of the syphon, and arrivals by the evidence that was used.
        ("sends", pa.int64()),
        ("moves", pa.int64()),
        ("arrivals", pa.int64()),
        ("evidence", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class EntityVerdict:
    """How many messages of one queue or topic have each word."""

    entity: str
    evidence: str
    words: Mapping[str, int]
    #: Of a topic: how many of its messages arrived at each subscription.
    subscriptions: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        words = {word: self.words.get(word, 0) for word in WORDS}
        more = {"subscriptions": dict(self.subscriptions)} if self.subscriptions else {}
        return {"entity": self.entity, **words, "evidence": self.evidence, **more}


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of all messages of a ledger."""

    entities: Sequence[EntityVerdict]
    #: Rows that the ledger says it lacks, and files of it that could not be read.
    dropped_rows: int = 0
    set_aside: int = 0
    #: What cannot be answered, and why, in sentences.
    notes: Sequence[str] = ()

    def count(self, word: str) -> int:
        """How many messages have a word."""
        return sum(one.words.get(word, 0) for one in self.entities)

    @property
    def is_valid(self) -> bool:
        """Nothing accepted was lost, and nothing came from nowhere."""
        return self.count("lost") == 0 and self.count("unexpected") == 0

    def to_json(self) -> dict[str, Any]:
        return {
            **{word: self.count(word) for word in WORDS},
            "entities": [one.to_json() for one in self.entities],
            "dropped_rows": self.dropped_rows,
            "set_aside": self.set_aside,
            "notes": list(self.notes),
            "valid": self.is_valid,
        }
