"""`twinbus ledger`: look into a ledger, and keep its files few."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

from .failing import failing
from .text import aligned, printable

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`, which the other commands do without
    from twinbus.ledger.reading import SetAside

DEFAULT_LIMIT = 50
_CODES: dict[str, type[IntEnum]] = {
    "namespace": NamespaceRole,
    "operation": OperationKind,
    "stage": Stage,
    "outcome": Outcome,
}
_Code = TypeVar("_Code", bound=IntEnum)

app = typer.Typer(no_args_is_help=True, help="Look into a ledger, and keep its files few.")

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The ledger's folder, or a URL such as abfs://…")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


@app.command()
def show(
    path: PathArgument,
    entity: Annotated[
        str | None, typer.Option(help="Only rows of this queue or topic: asked itself, or as the destination.")
    ] = None,
    message_id: Annotated[str | None, typer.Option(help="Only rows of this message.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this operation, such as send, ping or complete.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage, such as direct or backlog_send.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only this outcome: done, failed, unknown or empty.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows, the newest.")] = DEFAULT_LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Print the newest rows of a ledger, oldest first.

    Example: twinbus ledger show ./ledger --entity orders --limit 20
    """
    with failing("twinbus ledger"):
        kind = _code(OperationKind, "--operation", operation)
        at, end = _code(Stage, "--stage", stage), _code(Outcome, "--outcome", outcome)
        from twinbus.ledger.reading import newest
        from twinbus.ledger.schema import message_key, pc

        conditions = [
            pc.field(column) == code.value
            for column, code in (("operation", kind), ("stage", at), ("outcome", end))
            if code is not None
        ]
        if entity is not None:
            conditions.append((pc.field("entity") == entity) | (pc.field("destination") == entity))
        if message_id is not None:
            key = message_key(message_id)
            conditions.append((pc.field("message_key") == key) & (pc.field("message_id") == message_id))
        where = None
        for condition in conditions:
            where = condition if where is None else where & condition
        found = newest(path, limit, where=where)
    rows = [_readable(row) for row in found.table.to_pylist()]
    if as_json:
        aside = [{"path": one.path, "reason": one.reason} for one in found.set_aside]
        typer.echo(json.dumps({"rows": rows, "set_aside": aside}, ensure_ascii=False))
        return
    _tell(found.set_aside)
    typer.echo(_table(rows) if rows else "no rows")


@app.command()
def compact(path: PathArgument, as_json: JsonOption = False) -> None:
    """Make few large files of the many small ones of days that are over.

    Example: twinbus ledger compact ./ledger
    """
    with failing("twinbus ledger"):
        from twinbus.ledger.compact import compact as compact_ledger

        done = compact_ledger(path)
    if as_json:
        aside = [{"path": one.path, "reason": one.reason} for one in done.set_aside]
        counts = {name: getattr(done, name) for name in ("replaced_files", "new_files", "rows", "removed_files")}
        typer.echo(json.dumps({**counts, "set_aside": aside}, ensure_ascii=False))
        return
    _tell(done.set_aside)
    typer.echo(
        f"{done.rows:,} rows of {done.replaced_files:,} files are now in {done.new_files:,};"
        f" {done.removed_files:,} old files removed"
    )


def _code(codes: type[_Code], option: str, name: str | None) -> _Code | None:
    if name is None:
        return None
    try:
        return codes[name.upper()]
    except KeyError:
        known = ", ".join(one.name.lower() for one in codes)
        raise ValueError(f"{option} must be one of {known}, not {name!r}") from None


def _tell(set_aside: list[SetAside]) -> None:
    for one in set_aside:
        typer.echo(f"twinbus ledger: {one.path} was left out: {one.reason}", err=True)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """A row with names for its codes and text for its id and time. A code of a later release stays a number."""
    readable = dict(row)
    for column, codes in _CODES.items():
        code = row[column]
        readable[column] = codes(code).name.lower() if code in set(codes) else code
    readable["op_id"] = row["op_id"].hex()
    readable["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    return readable


def _table(rows: list[dict[str, Any]]) -> str:
    """A line for each row; what can be long stands at its end."""
    headings = ("time (UTC)", "operation", "stage", "outcome", "latency", "bytes", "count", "entity, message, error")
    return aligned(headings, [_cells(row) for row in rows], left=4)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    at = datetime.fromisoformat(row["ts"]).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    entity = row["entity"]
    if row["destination"] not in (None, entity):
        entity = f"{entity} → {row['destination']}"
    latency = "" if row["latency_us"] is None else f"{row['latency_us'] / 1000:.1f} ms"
    about = "  ".join(filter(None, (entity, row["message_id"], row["error"])))
    figures = latency, row["bytes"], row["count"]
    return tuple(map(printable, (at, row["operation"], row["stage"], row["outcome"], *figures, about)))
