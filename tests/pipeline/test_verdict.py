"""The words of reconciliation, against a model that goes through a message's history event by event."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.tables.verdict import ANOMALIES, WORDS, Facts, judge

DONE, FAILED, UNKNOWN = "done", "failed", "unknown"
#: What can happen to a message, as the ledger tells it.
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["direct", "divert", "move"]), st.sampled_from([DONE, FAILED, UNKNOWN])),
    st.sampled_from([("take", DONE), ("complete", DONE), ("dead_letter", DONE)]),
    st.tuples(st.just("receive"), st.integers(1, 3)),
)
HISTORIES = st.lists(EVENTS, max_size=8)


def facts_of(history: list[tuple[str, str | int]], by_receivers: bool, is_over: bool) -> Facts:
    def count(*names: str, outcome: str | None = None) -> int:
        return sum(name in names and outcome in (None, how) for name, how in history)

    return Facts(
        sends=count("direct", "divert"),
        acknowledged=count("direct", "divert", outcome=DONE),
        accepted=count("direct", "move", outcome=DONE),
        held=count("take", "move", "complete", "dead_letter"),
        completed=count("complete"),
        dead=count("dead_letter"),
        received=len({how for name, how in history if name == "receive"}),
        by_receivers=by_receivers,
        is_over=is_over,
    )


def words_by_hand(history: list[tuple[str, str | int]], by_receivers: bool, is_over: bool) -> set[str]:
    """Jepsen's checker: who was told what, and what came out, as sets and bags."""
    told_yes = [event for event in history if event in (("direct", DONE), ("divert", DONE))]
    tried = [event for event in history if event[0] in ("direct", "divert")]
    in_syphon = [event for event in history if event[0] in ("take", "move", "complete", "dead_letter")]
    at_primary = [event for event in history if event in (("direct", DONE), ("move", DONE))]
    out: list[object] = (
        list({event for event in history if event[0] == "receive"}) if by_receivers else list(at_primary)
    )
    words = set()
    if tried or in_syphon:
        words.add("attempted")
        if out:
            words.add("ok")
        elif not told_yes and not in_syphon:
            words.add("unconfirmed")
        elif ("dead_letter", DONE) in history and not at_primary:
            words.add("dead_lettered")
        elif is_over or (("complete", DONE) in history and not at_primary):
            words.add("lost")
        else:
            words.add("in_flight")
        if out and not told_yes:
            words.add("recovered")
    elif out:
        words.add("unexpected")
    if told_yes:
        words.add("acknowledged")
    if len(out) > 1:
        words.add("duplicated")
    return words


@given(history=HISTORIES, by_receivers=st.booleans(), is_over=st.booleans())
def test_the_words_are_those_of_a_count_by_hand(
    history: list[tuple[str, str | int]], by_receivers: bool, is_over: bool
) -> None:
    verdict = judge(facts_of(history, by_receivers, is_over))
    assert {word for word in WORDS if getattr(verdict, word)} == words_by_hand(history, by_receivers, is_over)


@given(history=HISTORIES, by_receivers=st.booleans(), is_over=st.booleans())
def test_an_attempted_message_has_exactly_one_fate(
    history: list[tuple[str, str | int]], by_receivers: bool, is_over: bool
) -> None:
    verdict = judge(facts_of(history, by_receivers, is_over))
    fates = [verdict.ok, verdict.lost, verdict.in_flight, verdict.dead_lettered, verdict.unconfirmed]
    assert sum(fates) == (1 if verdict.attempted else 0)
    assert not (verdict.unexpected and verdict.attempted)


SENT = Facts(sends=1, acknowledged=1, accepted=1)
DIVERTED = Facts(sends=1, acknowledged=1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(), set()),
        (SENT, {"attempted", "acknowledged", "ok"}),
        (replace(SENT, received=1, by_receivers=True), {"attempted", "acknowledged", "ok"}),
        (replace(SENT, by_receivers=True), {"attempted", "acknowledged", "in_flight"}),
        (replace(SENT, by_receivers=True, is_over=True), {"attempted", "acknowledged", "lost"}),
        (DIVERTED, {"attempted", "acknowledged", "in_flight"}),
        (replace(DIVERTED, is_over=True), {"attempted", "acknowledged", "lost"}),
        # Completed, and no move: the ledger itself says that it is gone.
        (replace(DIVERTED, held=2, completed=1), {"attempted", "acknowledged", "lost"}),
        (replace(DIVERTED, held=2, dead=1), {"attempted", "acknowledged", "dead_lettered"}),
        # A dead letter that was sent again and accepted is none any more.
        (replace(DIVERTED, held=3, dead=1, accepted=1), {"attempted", "acknowledged", "ok"}),
        (replace(DIVERTED, held=3, dead=1, accepted=1, by_receivers=True), {"attempted", "acknowledged", "in_flight"}),
        (Facts(sends=3), {"attempted", "unconfirmed"}),
        (Facts(sends=1, received=1, by_receivers=True), {"attempted", "ok", "recovered"}),
        # The sender was killed before its row was written, but the message lay in the backlog.
        (Facts(held=2, accepted=1), {"attempted", "ok", "recovered"}),
        (Facts(received=1, by_receivers=True), {"unexpected"}),
        (Facts(received=2, by_receivers=True), {"unexpected", "duplicated"}),
        (replace(SENT, accepted=2), {"attempted", "acknowledged", "ok", "duplicated"}),
        # Accepted twice, but the receivers, who know better, got it once: duplicate detection has worked.
        (replace(SENT, accepted=2, received=1, by_receivers=True), {"attempted", "acknowledged", "ok"}),
    ],
)
def test_each_rule(facts: Facts, words: set[str]) -> None:
    assert {word for word, holds in asdict(judge(facts)).items() if holds} == words


def test_what_somebody_should_look_at_is_some_of_the_words() -> None:
    assert set(ANOMALIES) < set(WORDS)
