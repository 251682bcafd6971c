"""`twinbus ledger`: look into a ledger, and keep its files few."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from twinbus.ledger.errors import LedgerError, reason_of
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

from .exits import BAD_USAGE
from .text import printable

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
    kind, at, end = _code(OperationKind, operation), _code(Stage, stage), _code(Outcome, outcome)
    with _errors_in_a_line():
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
    Console(highlight=False, markup=False).print(_table(rows) if rows else "no rows")


@app.command()
def compact(path: PathArgument, as_json: JsonOption = False) -> None:
    """Make few large files of the many small ones of days that are over.

    Example: twinbus ledger compact ./ledger
    """
    with _errors_in_a_line():
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


def _code(codes: type[_Code], name: str | None) -> _Code | None:
    if name is None:
        return None
    try:
        return codes[name.upper()]
    except KeyError:
        known = ", ".join(one.name.lower() for one in codes)
        typer.echo(f"twinbus ledger: {name!r} is not one of {known}", err=True)
        raise typer.Exit(BAD_USAGE) from None


@contextmanager
def _errors_in_a_line() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        message, code = str(error), 1
    except ValueError as error:  # a URL that cannot be used
        message, code = str(error), BAD_USAGE
    except (OSError, ImportError) as error:
        message, code = reason_of(error) if isinstance(error, OSError) else str(error), 1
    else:
        return
    typer.echo(f"twinbus ledger: {message}", err=True)
    raise typer.Exit(code)


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


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("time (UTC)", "operation", "stage", "entity", "outcome", "message id"):
        table.add_column(name, overflow="fold")
    for name in ("bytes", "count", "latency"):
        table.add_column(name, justify="right")
    table.add_column("error", overflow="fold")
    for row in rows:
        at = datetime.fromisoformat(row["ts"]).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        entity = row["entity"]
        if row["destination"] not in (None, entity):
            entity = f"{entity} → {row['destination']}"
        latency = "" if row["latency_us"] is None else f"{row['latency_us'] / 1000:.1f} ms"
        cells = [at, row["operation"], row["stage"], entity, row["outcome"], row["message_id"] or ""]
        table.add_row(*map(printable, [*cells, row["bytes"], row["count"], latency, row["error"] or ""]))
    return table
