"""The answer in a sentence: did everything arrive? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .render.formats import number, plural


class Word(StrEnum):
    """The answer in a word, the worst first: the first that applies is the answer."""

    #: Files of the ledger could not be read, so the answer is not known.
    UNKNOWN = "unknown"
    #: Accepted messages did not arrive.
    LOST = "lost"
    #: Messages arrived that nobody sent.
    UNEXPECTED = "unexpected"
    #: The ledger has rows, but nobody has compared them yet.
    NOT_RECONCILED = "not_reconciled"
    #: Nothing is missing so far, and some messages are still on their way.
    IN_FLIGHT = "in_flight"
    #: Every message is accounted for, but some were put aside in the backlog and will not arrive by themselves.
    DEAD_LETTERED = "dead_lettered"
    #: Nothing is seen to be missing, but the ledger has gaps.
    GAPS = "gaps"
    #: There are no messages.
    EMPTY = "empty"
    COMPLETE = "complete"


class Tone(StrEnum):
    """How a reader should feel about it."""

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

#: What the words of the reconciliation mean, for people.
MEANINGS = {
    "attempted": "messages that the application tried to send",
    "acknowledged": "of these, accepted: by the primary, or by a backlog queue",
    "ok": "attempted and arrived",
    "lost": "accepted, and not arrived",
    "unexpected": "arrived, though nobody is known to have sent them",
    "duplicated": "arrived more than once",
    "recovered": "arrived, though the sender was not told so",
    "in_flight": "accepted, and still on their way",
    "dead_lettered": "put aside in the backlog: expired, or refused by their destination",
    "unconfirmed": "not accepted, as far as is known, and not arrived; the sender was told so",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer, in a sentence and in those that must be read with it."""

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
    """The answer that a reconciliation (`Summary.to_json()`) gives.

    Args:
        summary: None if there was none yet.
        dropped_rows: Rows that the ledger says it lacks.
        left_out: Files of the ledger whose rows are not in the tables, by status.
        rows: Rows in the tables.
    """
    gaps = _gaps(dropped_rows, left_out)
    unreadable = left_out.get("unreadable", 0)
    if unreadable:
        sentence = f"Whether everything arrived is unknown: {_unreadable(unreadable)}"
        return Headline(Word.UNKNOWN, sentence, (*_seen(summary), *gaps))
    if summary is None:
        if not rows:
            return Headline(Word.EMPTY, "The ledger is empty.", gaps)
        return Headline(Word.NOT_RECONCILED, "Whether everything arrived was not looked into.", gaps)
    word = _word(summary, bool(gaps))
    return Headline(word, _sentence(word, summary), (*_details(word, summary), *gaps))


def _seen(summary: Mapping[str, Any] | None) -> list[str]:
    """What can be said although files could not be read."""
    if summary is None:
        return []
    lost = summary["lost"]
    found = [f"{plural(lost, 'accepted message')} did not arrive, as far as the other files tell."] if lost else []
    return found + _details(Word.UNKNOWN, summary)


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
        return f"{plural(count, 'message')} arrived that nobody is known to have sent."
    if word is Word.IN_FLIGHT:
        return f"Nothing is missing so far; {plural(count, 'message is', 'messages are')} still on the way."
    if word is Word.DEAD_LETTERED:
        held = plural(count, "message was", "messages were")
        return f"Nothing is missing, but {held} put aside in the backlog."
    if word is Word.GAPS:
        return "Nothing is seen to be missing, but the ledger has gaps."
    if word is Word.EMPTY:
        return "No messages were sent."
    return "Everything arrived." if _is_seen_by_receivers(summary["entities"]) else "Everything reached the primary."


def _is_seen_by_receivers(entities: Sequence[Mapping[str, Any]]) -> bool:
    return bool(entities) and all(one["evidence"] == "receivers" for one in entities)


def _details(word: Word, summary: Mapping[str, Any]) -> list[str]:
    """What else the summary says, the worse first; what the sentence says is not said twice."""
    found = []
    if word is not Word.UNEXPECTED and summary["unexpected"]:
        found.append(f"{plural(summary['unexpected'], 'message')} arrived that nobody is known to have sent.")
    if word is not Word.IN_FLIGHT and summary["in_flight"]:
        found.append(f"{plural(summary['in_flight'], 'message is', 'messages are')} still on the way.")
    if summary["dead_lettered"] and word is not Word.DEAD_LETTERED:
        found.append(f"{plural(summary['dead_lettered'], 'message was', 'messages were')} put aside in the backlog.")
    if summary["duplicated"]:
        found.append(f"{plural(summary['duplicated'], 'message')} arrived more than once.")
    if summary["recovered"]:
        found.append(f"{plural(summary['recovered'], 'message')} arrived though the sender was not told so.")
    return found


def _gaps(dropped_rows: int, left_out: Mapping[str, int]) -> tuple[str, ...]:
    """What the figures lack, without files that could not be read: those are said in the sentence itself."""
    found = []
    if dropped_rows:
        found.append(f"{number(dropped_rows)} rows never got into the ledger: some sends are not in these figures.")
    for status, count in sorted(left_out.items()):
        if count and status != "unreadable":
            reason = _LEFT_OUT.get(status, "left out")
            found.append(f"{plural(count, 'file of the ledger was', 'files of the ledger were')} {reason}.")
    return tuple(found)


_LEFT_OUT = {
    "late": "left out, because the day had expired",
    "clock": "left out, because times of rows lie outside a plausible clock window",
}


def _unreadable(count: int) -> str:
    return f"{plural(count, 'file')} of the ledger could not be read."
