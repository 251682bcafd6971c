"""Formats the results of the matrix as JSON, as Markdown and as a summary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .cells import quantile

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
#: Columns added up over all cells; those in `_FAULTS` must be zero.
_SUMS = ("attempted", "acknowledged", "ok", "recovered", "dead_lettered", "diverted")
_FAULTS = ("lost", "unexpected", "altered")
_COLUMNS = {
    "fault": "fault",
    "where": "where",
    "work": "work",
    "duplicate_detection": "dd",
    "fired": "fired",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "unexpected": "unexpected",
    "duplicated": "duplicated",
    "order_violations": "out of order",
    "dead_lettered": "expired",
    "diverted": "diverted",
    "failover_p50": "failover p50",
    "failover_p99": "p99",
    "drain_seconds": "drain",
    "seed": "seed",
}


def document_of(rows: list[dict[str, Any]], seed: int, seconds: float) -> dict[str, Any]:
    """The contents of `docs/proof.json` for these rows, in plain JSON types."""
    medians, maxima = (
        [row[name] for row in rows if row[name] is not None] for name in ("failover_p50", "failover_p99")
    )
    drains = [row["drain_seconds"] for row in rows]
    total = {word: _sum(rows, word) for word in (*_SUMS, *_FAULTS)}
    ordered = [row for row in rows if row["work"] == "session"]
    return {
        "matrix": {
            "seed": seed,
            "seconds": round(seconds, 1),
            "cells": len(rows),
            "good": sum(not row["problems"] for row in rows),
            "fired": sum(row["fired"] > 0 for row in rows),
            **total,
            "duplicated_with_detection": _sum((row for row in rows if row["duplicate_detection"]), "duplicated"),
            "duplicated_without_detection": _sum((row for row in rows if not row["duplicate_detection"]), "duplicated"),
            "order_violations_where_promised": _sum(ordered, "order_violations"),
            "failover_p50": quantile(medians, 0.5),
            "failover_p99": quantile(maxima, 0.99),
            "drain_p50": quantile(drains, 0.5),
            "drain_p99": quantile(drains, 0.99),
            "rows": rows,
        }
    }


def _sum(rows: Iterable[dict[str, Any]], word: str) -> int:
    return sum(row[word] or 0 for row in rows)


def summary(document: dict[str, Any]) -> str:
    """A short summary for the terminal and the top of the table."""
    totals = document["matrix"]
    return "\n".join(
        (
            f"{totals['good']:,} of {totals['cells']:,} cells are good; the fault fired in {totals['fired']:,}.",
            f"Acknowledged {totals['acknowledged']:,}, lost {totals['lost']:,}, unexpected {totals['unexpected']:,}, "
            f"altered {totals['altered']:,}, out of order where order is promised "
            f"{totals['order_violations_where_promised']:,}.",
            f"Duplicated {totals['duplicated_with_detection']:,} with duplicate detection, "
            f"{totals['duplicated_without_detection']:,} without; {totals['diverted']:,} went through the backlog.",
            f"Failover p50 {_seconds(totals['failover_p50'])}, p99 {_seconds(totals['failover_p99'])}; "
            f"drain p50 {_seconds(totals['drain_p50'])}, p99 {_seconds(totals['drain_p99'])}.",
        )
    )


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def table(document: dict[str, Any]) -> str:
    """The rows as Markdown, one table per profile."""
    rows = document["matrix"]["rows"]
    lines = [summary(document).replace("\n", "  \n"), ""]
    for profile in dict.fromkeys(row["profile"] for row in rows):
        of_profile = [row for row in rows if row["profile"] == profile]
        lines += [f"<details><summary>Profile {profile}: {len(of_profile)} cells</summary>", ""]
        lines += ["| " + " | ".join(_COLUMNS.values()) + " |", "|" + "---|" * len(_COLUMNS)]
        lines += ["| " + " | ".join(_cell(row[name]) for name in _COLUMNS) + " |" for row in of_profile]
        lines += ["", "</details>", ""]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def _row_by_row(document: dict[str, Any]) -> str:
    """JSON with one line per cell, so that diffs are readable."""
    rows = ",\n".join(json.dumps(row) for row in document["matrix"]["rows"])
    rest = json.dumps({**document, "matrix": {**document["matrix"], "rows": []}}, indent=1)
    return rest.replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


def write(document: dict[str, Any], folder: Path) -> None:
    """Write `proof.json`, and the table in `proof.md` between its markers, or at its end without markers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proof.json").write_text(_row_by_row(document), encoding="utf-8")
    page = folder / "proof.md"
    text = page.read_text(encoding="utf-8") if page.exists() else "# The proof\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{table(document)}{END}{after or chr(10)}", encoding="utf-8")
