"""Tests the names of files and folders, and the selection of files to read."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tests.ledger.rows import DAY, NOON

from twinbus.ledger.layout import (
    END_OF_TIME_US,
    FileName,
    Selection,
    day_of,
    decode_claims,
    encode_claims,
    end_of_day_us,
    folder_of,
    is_hidden,
    parse_sidecar,
    parse_temp,
    select,
    sidecar_name,
    temp_name,
)


def test_file_name_contains_time_writer_process_and_number() -> None:
    name = FileName(NOON + 123456, "5f0c9a1b2d3e4f60", 4711, 12)
    assert str(name) == "20261116T120000.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet"
    compacted = FileName(NOON, "5f0c9a1b2d3e4f60", 4711, 12, is_compacted=True)
    assert str(compacted) == "20261116T120000.000000Z-5f0c9a1b2d3e4f60-4711-12.compacted.parquet"


@given(
    st.integers(0, END_OF_TIME_US - 1),
    st.binary(min_size=8, max_size=8).map(bytes.hex),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_file_name_round_trips(at: int, writer: str, pid: int, number: int, is_compacted: bool) -> None:
    name = FileName(at, writer, pid, number, is_compacted)
    assert FileName.parse(str(name)) == name
    assert parse_temp(temp_name(str(name))) == name
    assert FileName.parse(temp_name(str(name))) is None
    assert is_hidden(temp_name(str(name)))
    assert not is_hidden(str(name))
    sidecar = sidecar_name(str(name))
    assert not is_hidden(sidecar)
    assert FileName.parse(sidecar) is None
    assert parse_sidecar(sidecar) == (name if is_compacted else None)
    assert parse_temp(temp_name(sidecar)) == (name if is_compacted else None)
    assert parse_sidecar(str(name)) is None


@given(st.sets(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1)))
def test_claims_round_trip(names: set[str]) -> None:
    assert set(decode_claims(encode_claims(names))) == names


@given(st.binary())
def test_decode_claims_accepts_any_bytes(content: bytes) -> None:
    assert "" not in decode_claims(content)


@given(st.integers(0, END_OF_TIME_US - 1), st.integers(0, END_OF_TIME_US - 1))
def test_file_names_sort_by_time(first: int, second: int) -> None:
    writer = "0" * 16
    assert (str(FileName(first, writer, 1, 1)) < str(FileName(second, writer, 1, 1))) == (first < second)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "part-00000-of-00001.snappy.parquet",
        "20261116T120000.123456Z-5f0c9a1b2d3e4f60-4711-12.csv",
        "20261399T120000.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet",
        "20261116T120000.123456Z-5F0C9A1B2D3E4F60-4711-12.parquet",
        "20261116T120000.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet.crc",
        "\N{FULLWIDTH DIGIT TWO}0261116T120000.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet",
    ],
)
def test_parse_rejects_foreign_file_names(name: str) -> None:
    assert FileName.parse(name) is None


@pytest.mark.parametrize(
    ("ts", "folder"),
    [
        (0, "day=1970-01-01"),
        (NOON, "day=2026-11-16"),
        (NOON + DAY // 2 - 1, "day=2026-11-16"),
        (NOON + DAY // 2, "day=2026-11-17"),
        (END_OF_TIME_US - 1, "day=9999-12-31"),
    ],
)
def test_folder_of_row_is_its_utc_day(ts: int, folder: str) -> None:
    assert folder_of(ts) == folder
    day = day_of(folder)
    assert day is not None
    assert end_of_day_us(day) - DAY <= ts < end_of_day_us(day)


@pytest.mark.parametrize("folder", ["", "day=", "day=2026-13-01", "day=2026-1-1", "hour=3", "_spark_metadata"])
def test_day_of_rejects_foreign_folders(folder: str) -> None:
    assert day_of(folder) is None


def test_select_without_compacted_files_reads_all() -> None:
    assert select(["b", "a"], {}) == Selection(live=["a", "b"])


def test_select_skips_files_replaced_by_compacted_file() -> None:
    assert select(["a", "b", "c", "x"], {"x": ["a", "b", "gone"]}) == Selection(
        live=["c", "x"], replaced={"a": "x", "b": "x"}
    )


def test_select_prefers_first_name_of_conflicting_compacted_files() -> None:
    selection = select(["a", "b", "c", "x", "y"], {"x": ["a", "b"], "y": ["b", "c"]})
    assert selection == Selection(live=["c", "x"], replaced={"a": "x", "b": "x"}, void=["y"])


def test_select_accepts_compacted_file_that_replaces_another() -> None:
    selection = select(["a", "b", "c", "x", "y"], {"x": ["a", "b"], "y": ["a", "b", "c", "x"]})
    assert selection == Selection(live=["y"], replaced={"a": "y", "b": "y", "c": "y", "x": "y"})


KEEP = 100


class Survey(NamedTuple):
    """The files that a compaction saw, with the real time and the time of its own clock."""

    real_time: int
    local_time: int
    selection: Selection
    orphans: list[str]


class Compactors(RuleBasedStateMachine):
    """Runs concurrent compactions with differing clocks and speeds: every row must count exactly once."""

    surveys = Bundle("surveys")
    started = Bundle("started")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.files: dict[str, set[int]] = {}
        self.sidecars: dict[str, set[str]] = {}
        self.compacted: set[str] = set()
        self.rows = 0

    def _name(self, time: int) -> str:
        self.number += 1
        return f"{time:09}-{self.number:06}"

    def _selection(self) -> Selection:
        compacted = [name for name in self.files if name in self.compacted]
        return select(self.files, {name: self.sidecars.get(name, set()) for name in compacted})

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        for _ in range(count):
            self.files[self._name(self.now)] = {self.rows}
            self.rows += 1

    @rule(seconds=st.integers(1, KEEP))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(target=surveys, skew=st.integers(-KEEP // 10, KEEP // 10))
    def survey(self, skew: int) -> Survey:
        orphans = [name for name in self.sidecars if name not in self.files]
        return Survey(self.now, max(0, self.now + skew), self._selection(), orphans)

    @rule(target=surveys, survey=surveys, data=st.data())
    def remove_old_files(self, survey: Survey, data: st.DataObject) -> object:
        """Remove old files; may be killed after any step. Gives up if the survey is too old."""
        if self.now - survey.real_time > KEEP // 2:
            return multiple()
        old = [name for name, by in survey.selection.replaced.items() if int(by[:9]) < survey.local_time - KEEP]
        orphans = [name for name in survey.orphans if int(name[:9]) < survey.local_time - KEEP]
        steps = [(self.files, name) for name in survey.selection.void]
        # Replaced files may be removed in any order.
        for name in data.draw(st.sets(st.sampled_from(old))) if old else ():
            steps.append((self.files, name))
        steps = [step for files, name in steps for step in ((files, name), (self.sidecars, name))]
        steps += [(self.sidecars, name) for name in orphans]
        for names, name in steps[: data.draw(st.integers(0, len(steps)))]:
            names.pop(name, None)
            self.every_row_counts_exactly_once()
        return survey

    @rule(target=started, survey=surveys, data=st.data())
    def start_compaction(self, survey: Survey, data: st.DataObject) -> object:
        """Read the inputs and write the sidecar. If the file is never published, the compaction was killed."""
        live = survey.selection.live
        inputs = data.draw(st.sets(st.sampled_from(live), min_size=2)) if len(live) > 1 else set()
        if not inputs or self.now - survey.real_time > KEEP // 2 or not inputs <= set(self.files):
            return multiple()
        name = self._name(survey.local_time)
        inherited = {replaced for replaced, by in survey.selection.replaced.items() if by in inputs}
        self.sidecars[name] = inputs | inherited
        return survey.real_time, name, set.union(*(self.files[source] for source in inputs))

    @rule(compaction=consumes(started))
    def publish(self, compaction: tuple[int, str, set[int]]) -> None:
        """Write the compacted file, unless the compaction took too long."""
        real_time, name, rows = compaction
        if self.now - real_time <= KEEP // 2:
            self.files[name] = rows
            self.compacted.add(name)

    @invariant()
    def every_row_counts_exactly_once(self) -> None:
        live_rows = [row for name in self._selection().live for row in self.files[name]]
        assert sorted(live_rows) == list(range(self.rows))


TestCompactors = Compactors.TestCase
TestCompactors.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
