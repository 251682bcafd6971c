"""Runs part of the fault matrix with real processes, the real SDK and the proxy; tests plans and reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proof.__main__ import app
from proof.checker import check
from proof.history import History
from proof.matrix.catalogue import CATALOGUE, plans
from proof.matrix.cells import Cell, Result, quantile
from proof.matrix.matrix_report import BEGIN, END, document_of, summary, write
from proof.matrix.traffic import SENDERS
from typer.testing import CliRunner

#: One cell per family of faults, with the most critical work.
REPRESENTATIVE = (
    "azure/reset-before-ack/primary/session/*",
    "azure/refuse/primary/batch/*",
    "azure/refuse/both/topic/*",
    "azure/kill-after-commit/primary/single/*",
    "azure/drain-settle-ack-dropped/secondary/single/*",
    "azure/callers-64-cancelled/primary/session/*",
    "azure/queue-forbidden/secondary/batch/*",
)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_accepted_message_is_lost_in_representative_cells() -> None:
    command = [sys.executable, "-m", "proof", "matrix", "--seed", "1", "--json"]
    for pattern in REPRESENTATIVE:
        command += ["--only", pattern]
    # In a separate process, because interrupted receivers of the SDK leak sockets.
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)["matrix"]["rows"]
    assert len(rows) == len(REPRESENTATIVE)
    assert all(row["fired"] and row["acknowledged"] and row["lost"] == row["unexpected"] == 0 for row in rows)
    assert any(row["diverted"] for row in rows)


PLANTED = """
from twinbus.pairing.sending._async.delivery import Delivery
from proof.__main__ import app

async def forget(self, parcel, session, index, budget):
    self._pool(index)
    parcel.stored = len(parcel.message_ids)

Delivery._store = forget  # diverted messages are acknowledged but not stored
app(["matrix", "--only", "default/refuse/primary/single/*", "--json"])
"""


@pytest.mark.slow
def test_acknowledging_unstored_messages_is_detected() -> None:
    run = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    (row,) = json.loads(run.stdout)["matrix"]["rows"]
    assert row["fired"] > 0
    # The primary may have stored a message of an interrupted call before it was diverted.
    assert 0 < row["diverted"] - SENDERS <= row["lost"] <= row["diverted"]


def test_every_fault_has_cells_with_unique_names() -> None:
    cells = [cell for plan in plans() for cell in plan.cells]
    assert {cell.fault for cell in cells} == {entry.name for entry in CATALOGUE}
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.profile for cell in cells} - {"clock"} == {"default", "azure", "impatient"}
    assert len(cells) >= 1000


def test_catalogue_covers_many_callers_and_queue_states() -> None:
    faults = {entry.name for entry in CATALOGUE}
    assert faults >= {f"callers-{count}-{ms}ms" for count in (8, 64) for ms in (30, 200)}
    assert faults >= {f"callers-{word}" for word in ("8-cancelled", "64-impatient", "blocked", "starved")}
    assert faults >= {f"queue-{state}" for state in ("full", "disabled", "deleted", "forbidden", "slow")}


def test_next_seed_swaps_duplicate_detection() -> None:
    now, then = ([cell for plan in plans(seed=seed) for cell in plan.cells] for seed in (4, 5))
    assert all(cell.detects is not other.detects for cell, other in zip(now, then, strict=True))
    again = [cell for plan in plans(seed=4) for cell in plan.cells]
    assert now == again


def test_pattern_selects_cells_and_unknown_pattern_is_bad_usage() -> None:
    run = CliRunner().invoke(app, ["matrix", "--list", "--only", "azure/kill/primary/s*"])
    assert [line.split("/")[3] for line in run.stdout.split()] == ["single", "session", "scheduled"]
    run = CliRunner().invoke(app, ["matrix", "--only", "nothing"])
    assert run.exit_code == 2
    assert "no cell matches 'nothing'" in run.stderr


def _row(work: str, *, lost: bool) -> dict[str, Any]:
    history = History()
    history.attempt("orders", "1")
    history.acknowledge("orders", "1")
    if not lost:
        history.receive("orders", "1", 1)
    history.drained()
    cell = Cell("refuse", "primary", work, True, "default", 7)  # type: ignore[arg-type]
    result = Result(cell, fired=2, verdict=check(history), failover_seconds=[0.5, 0.7], drain_seconds=1.25)
    return result.to_json()


def test_write_replaces_only_the_text_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "proof.md"
    page.write_text(f"# The proof\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    document = document_of([_row("single", lost=False), _row("topic", lost=True)], 3, 10.0)
    write(document, tmp_path)
    text = page.read_text()
    assert text.startswith("# The proof\n\nBefore.\n\n" + BEGIN)
    assert text.endswith(END + "\n\nAfter.\n")
    assert "old" not in text
    assert "| refuse | primary | single | on | 2 | 1 | 0 |" in text
    assert "| refuse | primary | topic | on | 2 | 1 | 1 |" in text
    write(document, tmp_path)
    assert page.read_text() == text
    assert json.loads((tmp_path / "proof.json").read_text()) == document


def test_summary_adds_up_lost_messages() -> None:
    document = document_of([_row("single", lost=False), _row("topic", lost=True)], 3, 10.0)
    assert document["matrix"]["lost"] == 1
    assert "Acknowledged 2, lost 1, unexpected 0" in summary(document)


def test_failover_times_are_quantiles() -> None:
    row = _row("single", lost=False)
    assert (row["failover_p50"], row["failover_p99"]) == (0.5, 0.7)
    document = document_of([row, {**row, "failover_p50": None, "failover_p99": None}], 3, 10.0)
    assert (document["matrix"]["failover_p50"], document["matrix"]["failover_p99"]) == (0.5, 0.7)
    assert quantile([], 0.5) is None
