"""What reconciliation has found, as reports read it: no Spark needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinbus.tables.verdict import WORDS

#: The verdict when nobody can tell.
UNKNOWN = "unknown"


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
    left_out: int = 0
    #: What cannot be answered, and why, in sentences.
    notes: Sequence[str] = ()
    #: Files of the ledger that could not be read: with one of them no verdict is certain.
    unreadable: int = 0

    def count(self, word: str) -> int:
        """How many messages have a word."""
        return sum(one.words.get(word, 0) for one in self.entities)

    @property
    def is_valid(self) -> bool:
        """Nothing accepted was lost, and nothing came from nowhere."""
        return self.count("lost") == 0 and self.count("unexpected") == 0

    @property
    def verdict(self) -> str:
        """`valid`, `invalid`, or `unknown` if a file could not be read."""
        if self.unreadable:
            return UNKNOWN
        return "valid" if self.is_valid else "invalid"

    def to_json(self) -> dict[str, Any]:
        return {
            **{word: self.count(word) for word in WORDS},
            "entities": [one.to_json() for one in self.entities],
            "dropped_rows": self.dropped_rows,
            "left_out": self.left_out,
            "notes": list(self.notes),
            "valid": None if self.unreadable else self.is_valid,
            "verdict": self.verdict,
        }
