"""Tests the sentence that answers whether everything arrived."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.report.headline import MEANINGS, Tone, headline_of
from twinbus.tables.verdict import WORDS


def summary(evidence: str = "receivers", **words: int) -> dict[str, Any]:
    counts = {word: words.get(word, 0) for word in WORDS}
    return {**counts, "entities": [{"entity": "orders", **counts, "evidence": evidence}]}


def test_every_word_of_the_reconciliation_has_a_meaning() -> None:
    assert tuple(MEANINGS) == WORDS


@pytest.mark.parametrize(
    ("words", "sentence", "tone"),
    [
        ({}, "Everything arrived.", Tone.GOOD),
        ({"lost": 1}, "1 accepted message did not arrive.", Tone.BAD),
        ({"lost": 1_200, "in_flight": 3}, "1,200 accepted messages did not arrive.", Tone.BAD),
        ({"unexpected": 2}, "2 messages arrived that no recorded sender sent.", Tone.BAD),
        ({"in_flight": 1}, "Nothing is missing so far; 1 message is still on the way.", Tone.CARE),
        ({"dead_lettered": 4}, "Nothing is missing, but 4 messages were dead-lettered in the backlog.", Tone.CARE),
        ({"duplicated": 4}, "Everything arrived.", Tone.GOOD),
    ],
)
def test_sentence_names_the_worst_word(words: dict[str, int], sentence: str, tone: Tone) -> None:
    found = headline_of(summary(attempted=2_000, **words), dropped_rows=0, left_out={}, rows=9)
    assert (found.sentence, found.tone) == (sentence, tone)


def test_details_name_what_the_sentence_does_not() -> None:
    words = {"lost": 1, "unexpected": 2, "in_flight": 3, "dead_lettered": 4, "duplicated": 5, "recovered": 6}
    found = headline_of(summary(attempted=50, **words), dropped_rows=7, left_out={"clock": 8, "late": 9}, rows=9)
    assert [text.split()[0] for text in found.details] == ["2", "3", "4", "5", "6", "7", "8", "9"]


def test_without_receivers_messages_reached_the_primary() -> None:
    found = headline_of(summary("namespace", attempted=5), dropped_rows=0, left_out={}, rows=9)
    assert found.sentence == "Everything reached the primary."


@pytest.mark.parametrize(
    "gaps",
    [
        {"dropped_rows": 3, "left_out": {}},
        {"dropped_rows": 0, "left_out": {"late": 1}},
        {"dropped_rows": 0, "left_out": {"clock": 1}},
        {"dropped_rows": 0, "left_out": {"status of a later release": 1}},
    ],
)
def test_gaps_of_the_ledger_turn_a_good_answer_into_a_warning(gaps: dict[str, Any]) -> None:
    found = headline_of(summary(attempted=5), rows=9, **gaps)
    assert found.sentence == "Nothing is known to be missing, but the ledger has gaps."
    assert found.tone is Tone.CARE


def test_empty_or_not_reconciled_ledger_is_neutral() -> None:
    assert headline_of(None, dropped_rows=0, left_out={}, rows=0).sentence == "The ledger is empty."
    assert headline_of(summary(), dropped_rows=0, left_out={}, rows=9).sentence == "No messages were sent."
    found = headline_of(None, dropped_rows=0, left_out={}, rows=9)
    assert (found.word, found.tone) == ("not_reconciled", Tone.NEUTRAL)


@pytest.mark.parametrize("words", [{}, {"lost": 2}, {"in_flight": 1}])
def test_unreadable_file_makes_the_answer_unknown(words: dict[str, int]) -> None:
    found = headline_of(summary(attempted=5, **words), dropped_rows=0, left_out={"unreadable": 1}, rows=9)
    assert found.sentence == "Whether everything arrived is unknown: 1 file of the ledger could not be read."
    assert (found.word, found.tone) == ("unknown", Tone.BAD)
    assert [text.split()[0] for text in found.details] == [str(count) for count in words.values()]


def test_ledger_of_unreadable_files_is_not_empty() -> None:
    found = headline_of(None, dropped_rows=0, left_out={"unreadable": 2}, rows=0)
    assert found.sentence == "Whether everything arrived is unknown: 2 files of the ledger could not be read."
