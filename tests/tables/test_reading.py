"""Tests reading result tables without Spark: which files count, and never a mixture of two runs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import RLock
from typing import Any
from uuid import uuid4

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.result_files import ResultFiles, parquet, table_of

from twinbus.ledger.schema import pa
from twinbus.tables.arrow_schemas import arrow_schema
from twinbus.tables.result_reader import Generation, Results, default_results, open_results, read_consistent
from twinbus.tables.table_errors import (
    DamagedTableError,
    NoResultsError,
    ResultsBusyError,
    ResultsFormatError,
    ResultsVersionError,
    StorageError,
)
from twinbus.tables.table_schemas import ACTIVITY, ARRIVALS, INPUTS, LATENCY, Table

DAY = date(2026, 11, 1)


def arrival(day: date, messages: int, **changes: Any) -> dict[str, Any]:
    return {"day": day, "destination": "events", "subscription": "events/a", "messages": messages, **changes}


@pytest.fixture
def memory() -> str:
    """Return a new folder in memory."""
    return f"memory://{uuid4().hex}"


class Clock:
    """A clock that moves only in `sleep`."""

    def __init__(self, on_sleep: Callable[[int], object] | None = None) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        self._on_sleep = on_sleep

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        if self._on_sleep is not None:
            self._on_sleep(len(self.sleeps))


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


# ---- rows ----


@pytest.mark.parametrize("is_local", [True, False])
def test_rows_have_the_day_of_their_folder(tmp_path: Path, memory: str, is_local: bool) -> None:
    url = str(tmp_path / "results") if is_local else memory
    files = ResultFiles(url)
    rows = [arrival(DAY, 1), arrival(DAY, 2), arrival(DAY + timedelta(days=1), 3)]
    files.write(ARRIVALS, rows)
    found = Results(url).read(ARRIVALS)
    assert found.schema == arrow_schema(ARRIVALS)
    assert found.to_pylist() == rows


def test_columns_are_read_in_the_requested_order(memory: str) -> None:
    ResultFiles(memory).write(ARRIVALS, [arrival(DAY, 7)])
    assert Results(memory).read(ARRIVALS, columns=["messages", "day"]).to_pylist() == [{"messages": 7, "day": DAY}]
    assert Results(memory).read(ARRIVALS, columns=["day"]).to_pylist() == [{"day": DAY}]


def test_missing_table_is_empty(tmp_path: Path, memory: str) -> None:
    for url in (str(tmp_path / "nothing"), memory):
        found = Results(url).read(LATENCY)
        assert (found.num_rows, found.schema) == (0, arrow_schema(LATENCY))


def test_bookkeeping_tables_store_their_day_in_the_file(memory: str) -> None:
    row = {"day": DAY, "file": "a.parquet", "status": "read", "rows": 3, "ids": [{"writer": 1, "lowest": 2}]}
    ResultFiles(memory).inputs([row])
    (found,) = Results(memory).read(INPUTS).to_pylist()
    assert (found["day"], found["rows"], found["ids"][0]["lowest"]) == (DAY, 3, 2)


def test_timestamps_of_spark_in_96_bits_and_other_types_are_cast(memory: str) -> None:
    moment = datetime(2026, 11, 1, 12, 30, 5, 123456, tzinfo=UTC)
    row = {"day": DAY, "minute": moment, "pairing": "p", "entity": "e", "kind": "ping", "count": 1}
    table = table_of(ACTIVITY, [{**row, "first_time": moment, "last_time": moment}]).drop_columns(["day"])
    table = table.set_column(table.schema.get_field_index("count"), "count", pa.array([1], pa.int32()))
    data = parquet(table, use_deprecated_int96_timestamps=True)
    ResultFiles(memory).put(f"activity/day={DAY}/part-0.parquet", data)
    (found,) = Results(memory).read(ACTIVITY).to_pylist()
    assert (found["first_time"], found["count"]) == (moment, 1)


def test_hidden_files_of_spark_are_ignored(memory: str) -> None:
    files = ResultFiles(memory)
    files.write(ARRIVALS, [arrival(DAY, 1)])
    data = parquet(table_of(ARRIVALS, [arrival(DAY, 99)]).drop_columns(["day"]))
    for path in (
        "arrivals/_SUCCESS",
        f"arrivals/.spark-staging-1/day={DAY}/part-1.parquet",
        f"arrivals/_temporary/0/day={DAY}/part-1.parquet",
        f"arrivals/day={DAY}/.part-1.parquet.crc",
        f"arrivals/day={DAY}/.part-1.parquet",
        f"arrivals/day={DAY}/_part-1.parquet",
        "arrivals_old/day=2026-11-01/part-1.parquet",
    ):
        files.put(path, data)
    assert Results(memory).read(ARRIVALS)["messages"].to_pylist() == [1]


@pytest.mark.parametrize(
    "path",
    ["part-0.parquet", "day=__HIVE_DEFAULT_PARTITION__/part-0.parquet", "day=20261101/a.parquet", "x/y/z.parquet"],
)
def test_data_outside_a_day_folder_is_an_error(memory: str, path: str) -> None:
    ResultFiles(memory).put(f"arrivals/{path}", parquet(table_of(ARRIVALS, [arrival(DAY, 1)])))
    with pytest.raises(DamagedTableError) as error:
        Results(memory).read(ARRIVALS)
    assert path in one_line(error)


days = st.integers(0, 6).map(lambda number: DAY + timedelta(days=number))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(days, st.integers(0, 3), st.integers(0, 2**62)), max_size=40),
    since=st.none() | days,
    until=st.none() | days,
)
def test_range_of_days_has_the_rows_of_these_days(
    rows: list[tuple[date, int, int]], since: date | None, until: date | None
) -> None:
    url = f"memory://{uuid4().hex}"
    files = ResultFiles(url)
    for number in range(4):  # several files a day
        mine = [arrival(day, messages) for day, file, messages in rows if file == number]
        files.write(ARRIVALS, mine, f"part-{number}.parquet")
    found = Results(url).read(ARRIVALS, since=since, until=until).to_pylist()
    wanted = [
        (day, messages)
        for day, _, messages in rows
        if (since is None or day >= since) and (until is None or day <= until)
    ]
    assert sorted((row["day"], row["messages"]) for row in found) == sorted(wanted)
    assert [row["day"] for row in found] == sorted(row["day"] for row in found)
    sums = Results(url).map_files(ARRIVALS, lambda part: sum(part["messages"].to_pylist()), since=since, until=until)
    assert sum(sums) == sum(messages for _, messages in wanted)


def test_large_files_are_read_in_parts(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.tables.result_reader.WHOLE_FILE_BYTES", 10)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *_: pytest.fail("the file was read whole"))
    ResultFiles(memory).write(ARRIVALS, [arrival(DAY, 5)])
    assert Results(memory).read(ARRIVALS)["messages"].to_pylist() == [5]


# ---- damage ----


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no table at all", b"PAR1 of something else PAR1"])
def test_damaged_file_is_named_with_the_reason(memory: str, data: bytes) -> None:
    files = ResultFiles(memory)
    files.generation()
    files.put(f"arrivals/day={DAY}/part-0.parquet", data)
    with pytest.raises(DamagedTableError) as error:
        Results(memory).read(ARRIVALS)
    assert f"{memory}/arrivals/day={DAY}/part-0.parquet cannot be read" in one_line(error)


def test_cut_file_is_damaged(memory: str) -> None:
    data = parquet(table_of(ARRIVALS, [arrival(DAY, 1)]).drop_columns(["day"]))
    for length in range(0, len(data), 97):
        ResultFiles(memory).put(f"arrivals/day={DAY}/part-0.parquet", data[:length])
        with pytest.raises(DamagedTableError):
            Results(memory).read(ARRIVALS)


def test_missing_column_and_wrong_type_are_named(memory: str) -> None:
    files = ResultFiles(memory)
    path = f"arrivals/day={DAY}/part-0.parquet"
    table = table_of(ARRIVALS, [arrival(DAY, 1)])
    files.put(path, parquet(table.drop_columns(["day", "messages"])))
    with pytest.raises(DamagedTableError, match="has no column messages"):
        Results(memory).read(ARRIVALS)
    files.put(path, parquet(pa.table({"destination": ["a"], "subscription": ["b"], "messages": ["many"]})))
    with pytest.raises(DamagedTableError, match="cannot be read"):
        Results(memory).read(ARRIVALS)


# ---- places ----


def test_results_are_found_beside_their_ledger(tmp_path: Path) -> None:
    ResultFiles(tmp_path / "ledger-results").generation()
    (tmp_path / "ledger" / "day=2026-11-01").mkdir(parents=True)
    assert open_results(tmp_path / "ledger").place == default_results(tmp_path / "ledger")
    assert open_results(tmp_path / "ledger-results").url == f"file://{tmp_path}/ledger-results"


def test_without_results_the_error_says_where_it_looked(tmp_path: Path, memory: str) -> None:
    for url in (str(tmp_path / "ledger"), memory):
        with pytest.raises(NoResultsError) as error:
            open_results(url)
        text = one_line(error)
        assert f"no results at {url}, nor at {url}-results" in text
        assert "twinbus pipeline run" in text
    with pytest.raises(NoResultsError, match="twinbus pipeline run"):
        read_consistent(Results(memory), lambda _: None)


def test_file_instead_of_a_folder_has_no_results(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("")
    with pytest.raises(NoResultsError):
        open_results(tmp_path / "ledger")


def test_unknown_protocol_and_empty_path_are_value_errors() -> None:
    with pytest.raises(ValueError, match="nosuch"):
        Results("nosuch://results")
    with pytest.raises(ValueError, match="must not be empty"):
        Results("")


class Guarded(MemoryFileSystem):
    """A store that requires a token."""

    protocol = "guarded"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in its base
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("guarded://", "memory://")))

    def __init__(self, token: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._token = token

    def _check(self) -> None:
        if self._token != "sesame":
            raise RuntimeError(f"{self._token} is wrong\nsecond line")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._check()
        return super().ls(path, detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        self._check()
        return super().cat_file(path, start, end, **options)


register_implementation("guarded", Guarded, clobber=True)


def test_storage_options_reach_the_file_system_but_no_error_text(memory: str) -> None:
    root = memory.removeprefix("memory://")
    guarded = Guarded(token="sesame")
    guarded.pipe_file(f"/{root}/arrivals/day={DAY}/a.parquet", parquet(table_of(ARRIVALS, []).drop_columns(["day"])))
    assert Results(f"guarded://{root}", {"token": "sesame"}).exists()
    with pytest.raises(StorageError) as error:
        Results(f"guarded://{root}", {"token": "wrong-secret"}).exists()
    assert "wrong-secret" not in one_line(error)
    assert f"guarded://{root}: cannot be read: RuntimeError" in str(error.value)


def test_secrets_of_a_url_are_hidden(memory: str) -> None:
    with pytest.raises(NoResultsError) as error:
        open_results(f"{memory}?sig=secret")
    assert "secret" not in str(error.value)


# ---- generations ----


def test_generation_is_the_row_that_was_written(memory: str) -> None:
    ResultFiles(memory).generation(number=7, horizon_days=3)
    found = Results(memory).generation()
    assert found is not None
    assert (found.number, found.horizon_days, found.is_complete) == (7, 3, True)
    assert found.started == datetime(2026, 11, 8, tzinfo=UTC)


def test_missing_or_double_generation_is_none(memory: str) -> None:
    files = ResultFiles(memory)
    assert Results(memory).generation() is None
    files.generation()
    data = parquet(table_of(INPUTS, []))
    files.put("_generation/.part-1.parquet", data)
    files.put("_generation/_SUCCESS", b"")
    assert Results(memory).generation() is not None
    files.put("_generation/part-00001.parquet", MemoryFileSystem().cat_file(_only_file(memory)))
    assert Results(memory).generation() is None


def _only_file(url: str) -> str:
    (found,) = [path for path in MemoryFileSystem().find(f"{url}/_generation") if "/part-" in path]
    return str(found)


@pytest.mark.parametrize(("version", "age"), [(3, "a later release"), (1, "an earlier release")])
def test_tables_of_another_version_are_refused(memory: str, version: int, age: str) -> None:
    ResultFiles(memory).generation(version=version, twinbus="9.9", state="writing")
    with pytest.raises(ResultsVersionError) as error:
        read_consistent(Results(memory), lambda _: None)
    assert f"{age} of twinbus (9.9)" in one_line(error)


def test_another_format_needs_spark(memory: str) -> None:
    files = ResultFiles(memory)
    files.generation(format="delta")
    with pytest.raises(ResultsFormatError) as error:
        read_consistent(Results(memory), lambda _: None)
    assert "'delta'" in one_line(error)
    assert "twinbus.spark.read_table" in str(error.value)
    files.generation()
    files.put("_generation/_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(ResultsFormatError, match="'delta'"):
        Results(memory).generation()


def test_complete_tables_are_read_at_once(memory: str) -> None:
    ResultFiles(memory).generation(number=4)
    clock = Clock()
    assert (
        read_consistent(Results(memory), lambda generation: generation.number, clock=clock.time, sleep=clock.sleep) == 4
    )
    assert clock.sleeps == []


def test_reader_waits_for_a_running_write(memory: str) -> None:
    files = ResultFiles(memory)
    files.generation(state="writing", number=1)
    waits: list[str] = []

    def on_sleep(number: int) -> None:
        if number == 2:
            files.remove("_generation")
        if number == 4:
            files.generation(number=2)

    files.write(ARRIVALS, [arrival(DAY, 1)])
    clock = Clock(on_sleep)
    found = read_consistent(
        Results(memory),
        lambda generation: generation.number,
        clock=clock.time,
        sleep=clock.sleep,
        on_wait=lambda: waits.append("wait"),
    )
    assert (found, len(clock.sleeps), waits) == (2, 4, ["wait"])


@pytest.mark.parametrize(
    ("state", "words"), [("writing", "2026-11-08 00:00:00 UTC"), (None, "`_generation` is missing")]
)
def test_an_interrupted_run_is_an_error_after_a_minute(memory: str, state: str | None, words: str) -> None:
    files = ResultFiles(memory)
    files.write(ARRIVALS, [arrival(DAY, 1)])
    if state is not None:
        files.generation(state=state)
    clock = Clock()
    with pytest.raises(ResultsBusyError) as error:
        read_consistent(Results(memory), lambda _: None, clock=clock.time, sleep=clock.sleep)
    text = one_line(error)
    assert words in text
    assert "if it was interrupted, run `twinbus pipeline run` again" in text
    assert clock.now - 100 == pytest.approx(60)
    assert max(clock.sleeps) <= 5


def test_vanished_file_is_retried_and_then_named(memory: str) -> None:
    files = ResultFiles(memory)
    files.generation()
    files.write(ARRIVALS, [arrival(DAY, 1)])
    results = Results(memory)

    class Forgetful(Results):
        def _find(self, folder: str) -> dict[str, int | None]:
            return {f"{folder}/day={DAY}/gone.parquet": 10}

        def generation(self) -> Generation | None:
            return results.generation()

    clock, forgetful = Clock(), Forgetful(memory)
    with pytest.raises(DamagedTableError, match=r"gone\.parquet is missing"):
        read_consistent(forgetful, lambda _: forgetful.read(ARRIVALS), clock=clock.time, sleep=clock.sleep)
    assert clock.now - 100 == pytest.approx(60)


def test_reader_does_not_wait_for_damaged_tables(memory: str) -> None:
    files = ResultFiles(memory)
    files.generation()
    files.put(f"arrivals/day={DAY}/part-0.parquet", b"nothing")
    clock, results = Clock(), Results(memory)
    with pytest.raises(DamagedTableError):
        read_consistent(results, lambda _: results.read(ARRIVALS), clock=clock.time, sleep=clock.sleep)
    assert clock.sleeps == []


def test_reader_gives_up_if_tables_keep_changing(memory: str) -> None:
    files = ResultFiles(memory)
    files.generation(number=0)
    clock, numbers = Clock(), itertools.count(1)
    with pytest.raises(ResultsBusyError, match="changed the results while they were read"):
        read_consistent(
            Results(memory), lambda _: files.generation(number=next(numbers)), clock=clock.time, sleep=clock.sleep
        )


class Shared(MemoryFileSystem):
    """A store in which a writer takes some steps at each request of a reader."""

    protocol = "shared"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    writer: Iterator[None] = iter(())
    pace: Iterator[int] = iter(())
    turn = RLock()
    is_writing = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("shared://", "memory://")))

    @classmethod
    def let_writer_work(cls, steps: int) -> None:
        with cls.turn:
            if not cls.is_writing:
                cls.is_writing = True
                for _ in range(steps):
                    next(cls.writer, None)
                cls.is_writing = False

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self.let_writer_work(next(self.pace, 1))
        return super().ls(path, detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        self.let_writer_work(next(self.pace, 1))
        return super().cat_file(path, start, end, **options)


register_implementation("shared", Shared, clobber=True)
_TABLES: tuple[Table, ...] = (ARRIVALS, LATENCY)


def _written(files: ResultFiles, number: int) -> Iterator[None]:
    """A run in single visible steps: partitions are deleted and written again between two generations."""
    files.remove("_generation")
    yield
    files.generation(number=number - 1, state="writing")
    yield
    for offset in range(3):
        day = DAY + timedelta(days=offset)
        files.remove(f"arrivals/day={day}")
        yield
        files.write(ARRIVALS, [arrival(day, number)], f"part-{number}-{offset}.parquet")
        yield
        files.remove(f"latency/day={day}")
        yield
        files.write(LATENCY, [{"day": day, "count": number}], f"part-{number}-{offset}.parquet")
        yield
    files.remove("_generation")
    yield
    files.generation(number=number)
    yield from [None] * 10  # the time between two runs


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_never_sees_two_runs_at_once(seed: int) -> None:
    dice = random.Random(seed)
    url = f"shared://{uuid4().hex}"
    files = ResultFiles(url)
    Shared.is_writing = True
    for _ in _written(files, 1):
        pass
    Shared.is_writing = False
    Shared.writer = itertools.chain.from_iterable(_written(files, number) for number in range(2, 8))
    Shared.pace = iter([dice.choice((0, 0, 1, 8)) for _ in range(100)])
    results, clock = Results(url), Clock(lambda _: Shared.let_writer_work(5))

    def read(generation: Generation) -> tuple[int, list[int]]:
        arrivals, latency = results.read(ARRIVALS), results.read(LATENCY)
        return generation.number, [*arrivals["messages"].to_pylist(), *latency["count"].to_pylist()]

    number, seen = read_consistent(results, read, clock=clock.time, sleep=clock.sleep)
    assert seen == [number] * 6


def test_files_are_read_at_the_same_time(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ResultFiles(memory)
    files.write(ARRIVALS, [arrival(DAY + timedelta(days=offset), 1) for offset in range(16)])
    whole = MemoryFileSystem.cat_file

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.05)
        return whole(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow)
    began = time.monotonic()
    assert Results(memory).read(ARRIVALS).num_rows == 16
    assert time.monotonic() - began < 0.6  # 0.8 s one after the other
