"""Slices that are sorted out and judged by ranges of keys say what a plain loop over all rows says: without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.reconciling import DAY, NOON, QUEUE, received, row, sent, write

from twinbus.ledger.layout import folder_of
from twinbus.ledger.recorder import Operation, OperationKind, Outcome, Stage
from twinbus.pipeline.files import survey
from twinbus.pipeline.judging import Counts, Rules
from twinbus.pipeline.places import DayPlaces, Places
from twinbus.pipeline.reconciliation_tasks import Kept, judging, number_of, sort_slice
from twinbus.pipeline.results import Results
from twinbus.pipeline.slices import slices_of
from twinbus.pipeline.summary import ANOMALIES
from twinbus.pipeline.verdict import WORDS, Facts, Verdict, judge

#: Letters of paths do not matter; `news` is a topic.
QUEUES, SUBSCRIPTIONS = ("orders", "Orders", "other"), ("news/Subscriptions/a", "news/subscriptions/b")
IDS = ("m1", "m2", "m3")
#: m1 and m2 share a key.
KEYS = {"m1": 42, "m2": 42}
#: Two days, and few times, so that rows meet.
TIMES = st.sampled_from([-DAY // 4, 0, 1, 1_000, DAY // 4, DAY - 5, DAY])
OUTCOMES = st.sampled_from([Outcome.DONE, Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN])


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    found: list[Operation] = []
    for _ in range(draw(st.integers(0, 14))):
        name, at = draw(st.sampled_from(IDS)), draw(TIMES)
        to = draw(st.sampled_from([*QUEUES, "news"]))
        match draw(st.integers(0, 6)):
            case 0 | 1:
                found.append(sent(to, name, at, draw(OUTCOMES)))
            case 2:
                where = draw(st.sampled_from(SUBSCRIPTIONS if to == "news" else (to, f"{to}/$DeadLetterQueue")))
                found += received(where, name, draw(st.sampled_from([1, 1, 2, None])), at)
            case 3:
                stage, outcome = Stage.BACKLOG_SEND, draw(OUTCOMES)
                found.append(row(OperationKind.SEND, stage, QUEUE, name, at, destination=to, outcome=outcome))
            case 4:
                stage, outcome = Stage.PRIMARY_SEND, draw(OUTCOMES)
                found.append(row(OperationKind.SEND, stage, to, name, at, destination=to, outcome=outcome))
            case 5:
                kind = draw(st.sampled_from([OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER]))
                is_planned = kind is OperationKind.DEAD_LETTER and draw(st.booleans())
                outcome = Outcome.PLANNED if is_planned else Outcome.DONE
                found.append(row(kind, Stage.BACKLOG_RECEIVE, QUEUE, name, at, destination=to, outcome=outcome))
            case _:
                found.append(row(OperationKind.SCHEDULE, Stage.DIRECT, to, name, at, destination=to))
    # Some rows are there twice.
    return found + [one for one in found if draw(st.integers(0, 9)) == 0]


# ---- the plain loop ----


def place(one: Operation) -> tuple[str, str | None]:
    """The destination and the subscription that a row is about."""
    if one.stage is not Stage.PRIMARY_RECEIVE:
        return (one.destination or one.entity).lower(), None
    topic, mark, _ = one.entity.lower().partition("/subscriptions/")
    return topic, one.entity.lower() if mark else None


def is_arrival(one: Operation) -> bool:
    is_got = one.operation is OperationKind.RECEIVE and one.outcome is Outcome.DONE
    return one.stage is Stage.PRIMARY_RECEIVE and is_got and "/$" not in one.entity


def expected(rows: Iterable[Operation], drained: bool, patience_us: int) -> dict[tuple[str, str], Verdict]:
    """What holds for each destination and id."""
    unique = {one.op_id: one for one in rows}.values()
    messages: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    reports: defaultdict[str, list[int]] = defaultdict(list)
    for one in unique:
        if one.stage is Stage.PRIMARY_RECEIVE and not is_arrival(one):
            continue
        assert one.message_id is not None
        messages[place(one)[0], one.message_id].append(one)
        if is_arrival(one):
            reports[place(one)[0]].append(one.ts)
    return {key: judge(facts(some, reports.get(key[0]), drained, patience_us)) for key, some in messages.items()}


def facts(rows: Sequence[Operation], reports: Sequence[int] | None, drained: bool, patience_us: int) -> Facts:
    done = [one for one in rows if one.outcome is Outcome.DONE]
    sends = [one for one in rows if one.stage in (Stage.DIRECT, Stage.BACKLOG_SEND)]
    accepted = [one for one in done if one.stage in (Stage.DIRECT, Stage.PRIMARY_SEND)]
    numbers: defaultdict[str | None, set[int | None]] = defaultdict(set)
    for one in rows:
        if is_arrival(one):
            numbers[place(one)[1]].add(one.sequence_number)
    count = max(map(len, numbers.values()), default=0)
    last = max((one.ts for one in accepted), default=None)
    is_scheduled = any(one.operation is OperationKind.SCHEDULE for one in rows)
    by_receivers = reports is not None and (count > 0 or last is None or last >= min(reports))
    went_on = reports is not None and last is not None and max(reports) >= last + patience_us
    of_backlog = [one.operation for one in done if one.stage is Stage.BACKLOG_RECEIVE]
    return Facts(
        sends=len(sends),
        acknowledged=sum(one.outcome is Outcome.DONE for one in sends),
        accepted=len(accepted),
        held=sum(one.stage in (Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND) for one in rows),
        completed=of_backlog.count(OperationKind.COMPLETE),
        dead=sum(
            one.operation is OperationKind.DEAD_LETTER and one.outcome in (Outcome.DONE, Outcome.PLANNED)
            for one in rows
            if one.stage is Stage.BACKLOG_RECEIVE
        ),
        received=count,
        by_receivers=int(by_receivers),
        is_over=int(drained or (went_on and not is_scheduled)),
    )


# ---- what the tasks say ----


def found(folder: Path, most: int, ranges: int, drained: bool, patience_us: int) -> tuple[Counter[str], set[str]]:
    """How many have each word, by destination and word; and all anomalies, as texts."""
    view, results = survey(folder / "ledger"), Results.open(folder / "results")
    made = [
        sort_slice(view.store, results, "made", one)
        for day, files in view.days.items()
        for one in slices_of(day, files, most)
    ]
    days: defaultdict[str, list[DayPlaces]] = defaultdict(list)
    for one in made:
        days[one.day].append(one.places)
    places = Places({day: DayPlaces.of(parts) for day, parts in days.items()})
    kept = Kept(
        results,
        [one.files for one in made],
        frozenset((number_of(day), destination) for day, destination in places.doubtful),
        Rules(places.reported, drained, patience_us),
    )
    parts = [judging(kept, "anomalies", ranges)(number) for number in range(ranges)]
    counts = Counts.of(parts)
    settled = places.settled()
    settled.subtract(counts.settled)
    words = Counter({f"{name} {word}": count for name, of in counts.words.items() for word, count in of.items()})
    for name, count in settled.items():
        words.update({f"{name} {word}": count for word in ("attempted", "acknowledged", "ok")})
    rows = results.table([one["anomalies"] for one in parts if one["anomalies"]], ANOMALIES).to_pylist()
    return words, {f"{one['destination']} {one['message_id']} {one['word']}" for one in rows}


@pytest.mark.slow
@settings(max_examples=60)
@given(operations(), st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from([0, 500, DAY]))
def test_slices_say_what_a_plain_loop_says(
    rows: list[Operation], most: int, ranges: int, drained: bool, patience_us: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Three files with ranges of times that overlap.
        for number in range(3):
            write(folder / "ledger", rows[number::3], number + 1, keys=KEYS)
        if not rows:
            (folder / "ledger").mkdir()
        words, anomalies = found(folder, most, ranges, drained, patience_us)
    verdicts = expected(rows, drained, patience_us)
    counted = Counter(
        f"{destination} {word}"
        for (destination, _), verdict in verdicts.items()
        for word in WORDS
        if getattr(verdict, word)
    )
    assert +words == counted
    listed = ("lost", "unexpected", "duplicated", "recovered", "in_flight", "dead_lettered")
    assert anomalies == {
        f"{destination} {one} {word}"
        for (destination, one), verdict in verdicts.items()
        for word in listed
        if getattr(verdict, word)
    }


def test_a_message_that_is_settled_in_one_slice_is_judged_with_what_another_tells(tmp_path: Path) -> None:
    rows = [sent("orders", "m1"), *received("orders", "m1", 1), *received("orders", "m1", 2, DAY // 4)]
    write(tmp_path / "ledger", rows)
    assert folder_of(NOON) == folder_of(NOON + DAY // 4)
    words, anomalies = found(tmp_path, 3, 1, drained=False, patience_us=0)
    assert words["orders ok"] == words["orders duplicated"] == 1
    assert anomalies == {"orders m1 duplicated"}


def test_a_copy_of_a_row_does_not_open_a_message(tmp_path: Path) -> None:
    rows = [sent("orders", "m1"), *received("orders", "m1", 1)]
    write(tmp_path / "ledger", rows)
    write(tmp_path / "ledger", rows, 2)
    view = survey(tmp_path / "ledger")
    [(day, files)] = view.days.items()
    [made] = (sort_slice(view.store, Results.open(tmp_path / "r"), "made", one) for one in slices_of(day, files))
    assert set(made.files) == {"received"}
