"""Answer in a sentence whether everything arrived. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .render.formats import plural


class Word(StrEnum):
    """The answer in a word, the worst first. The first that applies is the answer."""

    #: Files of the ledger could not be read, so the answer is not known.
    UNKNOWN = "unknown"
    #: Accepted messages did not arrive.
    LOST = "lost"
    #: Messages arrived that no recorded sender sent.
    UNEXPECTED = "unexpected"
    #: The ledger has rows, and the pipeline ran without reconciliation.
    NOT_RECONCILED = "not_reconciled"
    #: Nothing is missing so far, and some messages are still on the way.
    IN_FLIGHT = "in_flight"
    #: Nothing is missing, but some messages were dead-lettered in the backlog and will not arrive by themselves.
    DEAD_LETTERED = "dead_lettered"
    #: Nothing is known to be missing, but the ledger has gaps.
    GAPS = "gaps"
    #: There are no messages.
    EMPTY = "empty"
    COMPLETE = "complete"


class Tone(StrEnum):
    """How bad an answer is, which decides its colour."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"
    NEUTRAL = "neutral"


TONES = {
    Word.UNKNOWN: Tone.BAD,
    Word.LOST: Tone.BAD,
    Word.UNEXPECTED: Tone.BAD,
    Word.NOT_RECONCILED: Tone.NEUTRAL,
    Word.IN_FLIGHT: Tone.CARE,
    Word.DEAD_LETTERED: Tone.CARE,
    Word.GAPS: Tone.CARE,
    Word.EMPTY: Tone.NEUTRAL,
    Word.COMPLETE: Tone.GOOD,
}

#: Meanings of the words of the reconciliation.
MEANINGS = {
    "attempted": "messages that the application tried to send",
    "acknowledged": "of these, accepted: by the primary, or by a backlog queue",
    "ok": "attempted and arrived",
    "lost": "accepted, and not arrived",
    "unexpected": "arrived, and no recorded sender sent them",
    "duplicated": "arrived more than once",
    "recovered": "arrived, although the sender got an error",
    "in_flight": "accepted, and still on the way",
    "dead_lettered": "dead-lettered in the backlog: expired, or refused by their destination",
    "unconfirmed": "neither accepted, as far as is known, nor arrived; the sender got an error",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in a sentence, with the details that must be read with it."""

    word: Word
    sentence: str
    details: tuple[str, ...] = ()

    @property
    def tone(self) -> Tone:
        return TONES[self.word]

    def to_json(self) -> dict[str, Any]:
        return {"word": self.word.value, "sentence": self.sentence, "details": list(self.details)}


def headline_of(
    summary: Mapping[str, Any] | None, *, dropped_rows: int, left_out: Mapping[str, int], rows: int
) -> Headline:
    """Return the answer of a reconciliation (`Summary.to_json()`).

    Args:
        summary: None if there was no reconciliation.
        dropped_rows: Rows that the ledger reports as missing.
        left_out: Number of ledger files whose rows are not in the tables, by status.
        rows: Rows in the tables.
    """
    gaps = _gaps(dropped_rows, left_out)
    unreadable = left_out.get("unreadable", 0)
    if unreadable:
        sentence = f"Whether everything arrived is unknown: {_unreadable(unreadable)}"
        return Headline(Word.UNKNOWN, sentence, (*_known_details(summary), *gaps))
    if summary is None:
        if not rows:
            return Headline(Word.EMPTY, "The ledger is empty.", gaps)
        return Headline(Word.NOT_RECONCILED, "Whether everything arrived was not checked.", gaps)
    word = _word(summary, bool(gaps))
    return Headline(word, _sentence(word, summary), (*_details(word, summary), *gaps))


def _known_details(summary: Mapping[str, Any] | None) -> list[str]:
    """Return what is known although files could not be read."""
    if summary is None:
        return []
    lost = summary["lost"]
    details = [f"{plural(lost, 'accepted message')} did not arrive, according to the other files."] if lost else []
    return details + _details(Word.UNKNOWN, summary)


def _word(summary: Mapping[str, Any], has_gaps: bool) -> Word:
    for word in (Word.LOST, Word.UNEXPECTED, Word.IN_FLIGHT, Word.DEAD_LETTERED):
        if summary[word.value]:
            return word
    if has_gaps:
        return Word.GAPS
    return Word.COMPLETE if summary["attempted"] else Word.EMPTY


def _sentence(word: Word, summary: Mapping[str, Any]) -> str:
    count = summary.get(word.value, 0)
    if word is Word.LOST:
        return f"{plural(count, 'accepted message')} did not arrive."
    if word is Word.UNEXPECTED:
        return f"{plural(count, 'message')} arrived that no recorded sender sent."
    if word is Word.IN_FLIGHT:
        return f"Nothing is missing so far; {plural(count, 'message is', 'messages are')} still on the way."
    if word is Word.DEAD_LETTERED:
        messages = plural(count, "message was", "messages were")
        return f"Nothing is missing, but {messages} dead-lettered in the backlog."
    if word is Word.GAPS:
        return "Nothing is known to be missing, but the ledger has gaps."
    if word is Word.EMPTY:
        return "No messages were sent."
    return "Everything arrived." if _is_seen_by_receivers(summary["entities"]) else "Everything reached the primary."


def _is_seen_by_receivers(entities: Sequence[Mapping[str, Any]]) -> bool:
    return bool(entities) and all(entity["evidence"] == "receivers" for entity in entities)


def _details(word: Word, summary: Mapping[str, Any]) -> list[str]:
    """Return what the sentence does not say, the worst first."""
    details = []
    if word is not Word.UNEXPECTED and summary["unexpected"]:
        details.append(f"{plural(summary['unexpected'], 'message')} arrived that no recorded sender sent.")
    if word is not Word.IN_FLIGHT and summary["in_flight"]:
        details.append(f"{plural(summary['in_flight'], 'message is', 'messages are')} still on the way.")
    if word is not Word.DEAD_LETTERED and summary["dead_lettered"]:
        messages = plural(summary["dead_lettered"], "message was", "messages were")
        details.append(f"{messages} dead-lettered in the backlog.")
    if summary["duplicated"]:
        details.append(f"{plural(summary['duplicated'], 'message')} arrived more than once.")
    if summary["recovered"]:
        details.append(f"{plural(summary['recovered'], 'message')} arrived although the sender got an error.")
    return details


def _gaps(dropped_rows: int, left_out: Mapping[str, int]) -> tuple[str, ...]:
    """Return what the figures lack. Files that could not be read are in the sentence itself."""
    gaps = []
    if dropped_rows:
        rows = plural(dropped_rows, "row is", "rows are")
        gaps.append(f"{rows} missing in the ledger: some operations are not in these figures.")
    for status, count in sorted(left_out.items()):
        if count and status != "unreadable":
            reason = _LEFT_OUT.get(status, "left out")
            gaps.append(f"{plural(count, 'file of the ledger was', 'files of the ledger were')} {reason}.")
    return tuple(gaps)


_LEFT_OUT = {
    "late": "left out, because the day had expired",
    "clock": "left out, because times of rows lie outside a plausible clock window",
}


def _unreadable(count: int) -> str:
    return f"{plural(count, 'file')} of the ledger could not be read."
