"""The notebook of examples/ runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.ledger_files import START, an_operation, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples" / "pipeline.ipynb"


@pytest.mark.slow
def test_the_notebook_says_what_arrived(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger"
    put(ledger, [an_operation(START + number, message_id=f"m-{number}") for number in range(3)])
    (ledger / "notes.txt").touch()
    monkeypatch.setenv("TWINBUS_LEDGER", str(ledger))
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {"spark": spark}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # of no one's own ledger
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "left out: notes.txt: not in a day folder of a ledger" in said
    assert "run 1: 3 rows of 1 days" in said
    [row] = names["summary"].collect()
    assert (row["destination"], row["sum(ok)"]) == ("orders", 3)
    assert [tuple(row) for row in names["units"].collect()] == [("orders", "send", 3, 3)]
    spark.catalog.dropTempView("usage")
