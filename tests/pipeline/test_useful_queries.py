"""The queries of docs/how-to/query-the-tables.md run in Spark SQL as they are, and find the same as in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.docs.query_rows import MESSAGE_WORDS, blocks, expected, plain, write_results

from twinbus.tables.verdict import WORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "query-the-tables.md").read_text("utf-8")


def test_every_query_finds_what_is_there_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    write_results(tmp_path)
    (views,) = (code for _, code in blocks(PAGE, "py") if "read_table" in code)
    session = spark.newSession()
    exec(views.replace('"ledger-results', f'"{tmp_path}/ledger-results'), {"spark": session})
    for title, query in blocks(PAGE, "sql")[1:]:
        assert plain(session.sql(query).collect()) == expected(title), title
    rows = session.sql(f"SELECT message_id, {', '.join(WORDS)} FROM messages").collect()
    found = {name: " ".join(word for word, holds in zip(WORDS, truths, strict=True) if holds) for name, *truths in rows}
    assert found == MESSAGE_WORDS
