"""The result of reconciliation as data. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinbus.tables.verdict import WORDS

#: The verdict if files of the ledger could not be read.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EntityVerdict:
    """Number of messages of one queue or topic for each word."""

    entity: str
    evidence: str
    words: Mapping[str, int]
    #: Of a topic: number of messages that arrived at each subscription.
    subscriptions: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        words = {word: self.words.get(word, 0) for word in WORDS}
        more = {"subscriptions": dict(self.subscriptions)} if self.subscriptions else {}
        return {"entity": self.entity, **words, "evidence": self.evidence, **more}


@dataclass(frozen=True, slots=True)
class Summary:
    """The result for all messages of a ledger."""

    entities: Sequence[EntityVerdict]
    #: Rows that the ledger reports as missing.
    dropped_rows: int = 0
    #: Files whose rows are not in the tables.
    left_out: int = 0
    #: Sentences that say what the figures do not answer, and why.
    notes: Sequence[str] = ()
    #: Files that could not be read. With one of them the verdict is unknown.
    unreadable: int = 0

    def count(self, word: str) -> int:
        """Return the number of messages with a word."""
        return sum(entity.words.get(word, 0) for entity in self.entities)

    @property
    def is_valid(self) -> bool:
        """Whether nothing accepted was lost and nothing unexpected arrived."""
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
            "entities": [entity.to_json() for entity in self.entities],
            "dropped_rows": self.dropped_rows,
            "left_out": self.left_out,
            "notes": list(self.notes),
            "valid": None if self.unreadable else self.is_valid,
            "verdict": self.verdict,
        }
