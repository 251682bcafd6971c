"""`twinbus ledger`: shows a ledger's rows, compacts its files, removes old days."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

from ..failures import exit_on_error
from ..options.storage_options import StorageOption, exit_on_store_error, storage_options
from ..text import aligned, counted, printable, size

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.ledger.ledger_reader import UnreadableFile

DEFAULT_LIMIT = 50
_CODES: dict[str, type[IntEnum]] = {
    "namespace": NamespaceRole,
    "operation": OperationKind,
    "stage": Stage,
    "outcome": Outcome,
}
_Code = TypeVar("_Code", bound=IntEnum)

app = typer.Typer(no_args_is_help=True, help="Show a ledger, compact its files, or remove old days.")

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Ledger: a folder, or a URL such as abfs://…")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


@app.command()
def show(
    path: PathArgument,
    entity: Annotated[
        str | None, typer.Option(help="Only rows whose entity or destination is this queue or topic.")
    ] = None,
    message_id: Annotated[str | None, typer.Option(help="Only rows of this message.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this operation, such as send, ping or complete.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, such as direct or backlog_send.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome: done, failed, unknown or empty.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of rows.")] = DEFAULT_LIMIT,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the newest rows of a ledger, oldest first.

    Example: twinbus ledger show ./ledger --entity orders --limit 20
    """
    with _ledger_options(storage_option) as options:
        codes = {
            "operation": _code(OperationKind, "--operation", operation),
            "stage": _code(Stage, "--stage", stage),
            "outcome": _code(Outcome, "--outcome", outcome),
        }
        from twinbus.ledger.ledger_reader import newest
        from twinbus.ledger.schema import message_key, pc

        conditions = [pc.field(column) == code.value for column, code in codes.items() if code is not None]
        if entity is not None:
            conditions.append((pc.field("entity") == entity) | (pc.field("destination") == entity))
        if message_id is not None:
            key = message_key(message_id)
            conditions.append((pc.field("message_key") == key) & (pc.field("message_id") == message_id))
        where = None
        for condition in conditions:
            where = condition if where is None else where & condition
        contents = newest(path, limit, where=where, storage_options=options)
    rows = [_readable(row) for row in contents.table.to_pylist()]
    if as_json:
        unreadable = [{"path": file.path, "reason": file.reason} for file in contents.unreadable]
        typer.echo(json.dumps({"rows": rows, "unreadable": unreadable}, ensure_ascii=False))
        return
    _print_unreadable(contents.unreadable)
    typer.echo(_table(rows) if rows else "no rows")


@app.command()
def compact(path: PathArgument, storage_option: StorageOption = None, as_json: JsonOption = False) -> None:
    """Merge the many small files of past days into a few large ones.

    Example: twinbus ledger compact ./ledger
    """
    with _ledger_options(storage_option) as options:
        from twinbus.ledger.compaction import compact as compact_ledger

        result = compact_ledger(path, storage_options=options)
    if as_json:
        unreadable = [{"path": file.path, "reason": file.reason} for file in result.unreadable]
        counts = {name: getattr(result, name) for name in ("replaced_files", "new_files", "rows", "removed_files")}
        typer.echo(json.dumps({**counts, "unreadable": unreadable}, ensure_ascii=False))
        return
    _print_unreadable(result.unreadable)
    typer.echo(
        f"{counted(result.rows, 'row')} of {counted(result.replaced_files, 'file')} merged into"
        f" {counted(result.new_files, 'file')}; {counted(result.removed_files, 'old file')} removed"
    )


@app.command()
def expire(
    path: PathArgument,
    before: Annotated[
        str, typer.Option(metavar="DAY", help="Remove the days before this one (UTC), such as 2026-11-16.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow --before today, which removes yesterday.")] = False,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the files of old days permanently.

    Run the pipeline first: its result tables keep these days. Files that arrive for them later are reported as late.

    Example: twinbus ledger expire ./ledger --before 2026-11-01 --dry-run
    """
    with _ledger_options(storage_option) as options:
        from twinbus.ledger.expiry import expire as expire_days
        from twinbus.ledger.expiry import parse_day

        result = expire_days(path, parse_day(before), dry_run=dry_run, force=force, storage_options=options)
    if as_json:
        days = [{"day": day.day.isoformat(), "files": day.files, "bytes": day.bytes} for day in result.days]
        document = {
            "before": result.before.isoformat(),
            "dry_run": dry_run,
            "days": days,
            "files": result.files,
            "bytes": result.bytes,
        }
        typer.echo(json.dumps(document))
        return
    if result.days:
        rows = [(day.day.isoformat(), f"{day.files:,}", size(day.bytes)) for day in result.days]
        typer.echo(aligned(("day", "files", "size"), rows, left=1))
    counts = f"{counted(len(result.days), 'day')}, {counted(result.files, 'file')}, {size(result.bytes)}"
    if dry_run:
        typer.echo(f"{counts} would be removed; nothing was removed")
    else:
        typer.echo(f"{counts} removed; days before {result.before} are expired")


@contextmanager
def _ledger_options(arguments: list[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the storage options; exit with one line on an error in them or in the block."""
    with exit_on_error("twinbus ledger"):
        options = storage_options(arguments)
    with exit_on_store_error("twinbus ledger", options):
        yield options


def _code(codes: type[_Code], option: str, name: str | None) -> _Code | None:
    if name is None:
        return None
    try:
        return codes[name.upper()]
    except KeyError:
        known = ", ".join(code.name.lower() for code in codes)
        raise ValueError(f"{option} must be one of {known}, not {name!r}") from None


def _print_unreadable(files: list[UnreadableFile]) -> None:
    for file in files:
        typer.echo(f"twinbus ledger: {file.path} was left out: {file.reason}", err=True)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with names for codes and strings for id and time. A code of a later release stays a number."""
    readable = dict(row)
    for column, codes in _CODES.items():
        code = row[column]
        readable[column] = codes(code).name.lower() if code in set(codes) else code
    readable["op_id"] = row["op_id"].hex()
    readable["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    return readable


def _table(rows: list[dict[str, Any]]) -> str:
    """Format one line per row; the longest column comes last."""
    headings = ("time (UTC)", "operation", "stage", "outcome", "latency", "bytes", "count", "entity, message, error")
    return aligned(headings, [_cells(row) for row in rows], left=4)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    at = datetime.fromisoformat(row["ts"]).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    entity = row["entity"]
    if row["destination"] not in (None, entity):
        entity = f"{entity} → {row['destination']}"
    latency = "" if row["latency_us"] is None else f"{row['latency_us'] / 1000:.1f} ms"
    details = "  ".join(filter(None, (entity, row["message_id"], row["error"])))
    figures = latency, row["bytes"], row["count"]
    return tuple(map(printable, (at, row["operation"], row["stage"], row["outcome"], *figures, details)))
