"""Generates ledgers with weeks of traffic and outages, for benchmarks and tests.

    python -m bench.ledgers build/ledger --rows 20_000_000 --seed 7

`generate` returns what a correct report must say (`Expected`). The same seed gives the same rows. Rows are generated in
blocks of messages with their own random numbers, so that several processes can share the work. The last line printed is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

from bench.ledger_shape import DAY, Expected, Shape
from bench.ledger_traffic import Block, Dice, in_range, rest_operations

from twinbus.ledger.layout import FileName, day_of, folder_of
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.ledger.schema import new_file_writer, pa, pc, to_batch
from twinbus.ledger.store import open_store
from twinbus.tables.billed_units import BILLED, SIZED, UNIT_BYTES, is_transferred

ROW_GROUP = 131_072


def generate(folder: Path | str, shape: Shape, *, workers: int = 1) -> Expected:
    """Write a ledger, with several processes if `workers` is above 1."""
    expected = _write_rest(str(folder), shape)
    tasks = [(str(folder), shape, number) for number in range(-(-shape.messages // shape.block))]
    if workers == 1:
        for task in tasks:
            expected.add(_write_block(task))
        return expected
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for block in pool.map(_write_block, tasks):
            expected.add(block)
    return expected


def _write_rest(folder: str, shape: Shape) -> Expected:
    expected = Expected()
    operations = list(rest_operations(shape, expected))
    table = pa.Table.from_batches([to_batch(operations)]).sort_by("ts")
    _write(folder, shape, -1, table, expected)
    return expected


def _write_block(task: tuple[str, Shape, int]) -> Expected:
    folder, shape, number = task
    block = Block(shape, number)
    _write(folder, shape, number, block.make(), block.expected)
    return block.expected


def _write(folder: str, shape: Shape, number: int, table: pa.Table, expected: Expected) -> None:
    """Write the rows into their day folders, repeat some of them, and count them."""
    dice = Dice(shape.seed, number, 2)
    times = table["ts"].cast(pa.int64())
    day = times[0].as_py() // DAY
    while day <= times[-1].as_py() // DAY:
        rows = table.filter(in_range(times, day * DAY, (day + 1) * DAY))
        if rows.num_rows:
            _put(folder, shape, 2 * (number + 1), rows, expected)
            _count(rows, expected)
            expected.rows += rows.num_rows
            repeated = rows.filter(pc.less(dice.below(rows.num_rows, 1_000), shape.repeats))
            if repeated.num_rows:
                _put(folder, shape, 2 * (number + 1) + 1, repeated, expected)
        day += 1


def _put(folder: str, shape: Shape, number: int, rows: pa.Table, expected: Expected) -> None:
    data = pa.BufferOutputStream()
    with new_file_writer(data) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    first, last = (rows["ts"][at].cast(pa.int64()).as_py() for at in (0, -1))
    name = FileName(last, f"{shape.seed & (2**64 - 1):016x}", 1, number)
    open_store(folder).put(folder_of(first), str(name), data.getvalue())
    expected.rows_in_files += rows.num_rows
    expected.files += 1


def _count(rows: pa.Table, expected: Expected) -> None:
    """Count the rows of one day, by codes and by billed usage."""
    text = day_of(folder_of(rows["ts"][0].cast(pa.int64()).as_py()))
    assert text is not None
    day = date.fromisoformat(text)
    sized = pc.is_in(rows["operation"], pa.array([int(kind) for kind in SIZED], pa.int8()))
    units = pc.if_else(sized, pc.divide(pc.add(rows["bytes"], UNIT_BYTES - 1), UNIT_BYTES), 1)
    slim = rows.select(["namespace", "stage", "operation", "outcome", "bytes"])
    slim = slim.append_column("billed_entity", pc.coalesce(rows["destination"], rows["entity"]))
    slim = slim.append_column("units", pc.max_element_wise(units, 1))
    keys = ["namespace", "stage", "operation", "outcome", "billed_entity"]
    for row in slim.group_by(keys).aggregate([("units", "sum"), ("bytes", "sum"), ([], "count_all")]).to_pylist():
        role, stage = NamespaceRole(row["namespace"]), Stage(row["stage"])
        kind, outcome = OperationKind(row["operation"]), Outcome(row["outcome"])
        expected.operations[role, stage, kind, outcome] += row["count_all"]
        if stage is Stage.LEDGER or outcome not in BILLED:
            continue
        key = day, role, row["billed_entity"], stage
        expected.usage[*key, "operations"] += row["units_sum"]
        expected.usage[*key, "unanswered"] += row["units_sum"] if outcome is Outcome.UNKNOWN else 0
        expected.usage[*key, "transferred"] += row["bytes_sum"] if is_transferred(role, kind, outcome) else 0


def _main() -> None:
    parser = argparse.ArgumentParser(description="Generate a ledger for benchmarks and tests.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="number of processes (default: %(default)s)"
    )
    for name in ("rows", "seed", "entities", "clients", "days", "outages", "trouble", "lost", "unexpected", "repeats"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape, name), help="default: %(default)s")
    settings = vars(parser.parse_args())
    folder, workers = settings.pop("folder"), settings.pop("workers")
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"expected an empty folder, got {folder}; choose another one")
    started = time.perf_counter()
    expected = generate(folder, Shape(**settings), workers=workers)
    seconds = time.perf_counter() - started
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
    print(f"{expected.rows:,} rows in {expected.files:,} files, {size / 1e6:,.0f} MB, in {seconds:.1f} s")
    counts = {name: getattr(expected, name) for name in ("rows", "rows_in_files", "files", "attempted", "acknowledged")}
    words = ("lost", "unexpected", "duplicated", "recovered", "in_flight", "redelivered")
    print(json.dumps({**counts, "ok": expected.ok, **{name: len(getattr(expected, name)) for name in words}}))


if __name__ == "__main__":
    _main()
