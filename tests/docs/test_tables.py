"""The page of result tables has every column and word of the code, and the queries over them find what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.query_rows import FOUND, MESSAGE_WORDS, blocks, expected, plain, write_results

from twinbus.spark.pipeline.day_planning import FIRST_PLAUSIBLE_DAY, Status
from twinbus.tables.verdict import WORDS

duckdb = pytest.importorskip("duckdb")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "tables.md").read_text("utf-8")
QUERIES_PAGE = (ROOT / "docs" / "how-to" / "query-the-tables.md").read_text("utf-8")
(_, VIEWS), *QUERIES = blocks(QUERIES_PAGE, "sql")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("results")
    write_results(made)
    return made


@pytest.fixture
def database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
    monkeypatch.chdir(folder)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(VIEWS)
        yield connection


def test_the_page_has_the_columns_and_words_of_the_code() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "tables_page.py"), "--check"]
    assert subprocess.run(check, capture_output=True, text=True).stderr == ""


def test_every_status_of_a_file_is_explained() -> None:
    assert [status for status in Status if f"\n| `{status}` |" not in PAGE] == []
    assert f"before {FIRST_PLAUSIBLE_DAY.year}" in PAGE


def test_every_query_has_an_expectation() -> None:
    assert len(QUERIES) == len(FOUND) >= 10


def test_every_query_finds_what_is_there_in_duckdb(database: duckdb.DuckDBPyConnection) -> None:
    for title, query in QUERIES:
        assert plain(database.execute(query).fetchall()) == expected(title), title


def test_the_view_of_messages_has_the_words_of_the_rule(database: duckdb.DuckDBPyConnection) -> None:
    (create,) = (query for title, query in QUERIES if title.startswith("One row per message"))
    database.execute(create)
    rows = database.execute(f"SELECT message_id, {', '.join(WORDS)} FROM messages").fetchall()
    found = {name: " ".join(word for word, holds in zip(WORDS, truths, strict=True) if holds) for name, *truths in rows}
    assert found == MESSAGE_WORDS


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_libraries_read_a_table_as_shown(library: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(folder)
    (code,) = (code for _, code in blocks(QUERIES_PAGE, "py") if f"import {library}" in code)
    names: dict[str, object] = {}
    exec(code, names)
    units = names["units"]
    by_entity = dict(units.rows()) if library == "polars" else units.to_dict()  # type: ignore[attr-defined]
    assert by_entity == {"Orders": 9, "orders": 6, "news/Subscriptions/all": 2, "bills": 1, "": 0}
