"""Runs the live drill from the command line: `make live`.

TWINBUS_LIVE_PRIMARY and TWINBUS_LIVE_SECONDARY are connection strings of two namespaces, with Manage rights. LONG=1
adds checks that take a quarter of an hour, THROTTLE=1 a check that overloads the primary, ONLY=text selects checks by
name. Exit codes: 0 all as expected, 1 not all, 2 bad usage.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twinbus.pairing.namespace import Namespace

from .checks import Result, Verdict
from .drill import Drill
from .running import Outcome, choose, perform

VARIABLES = ("TWINBUS_LIVE_PRIMARY", "TWINBUS_LIVE_SECONDARY")
STYLES = {Verdict.AS_EXPECTED: "green", Verdict.DIFFERENT: "red", Verdict.UNCHECKED: "yellow"}


class BadUsageError(Exception):
    """The drill cannot start. The text gives the reason, without keys."""


def namespaces_of(environment: Mapping[str, str]) -> tuple[Namespace, Namespace]:
    """The two namespaces. Raises `BadUsageError` for missing or invalid connection strings."""
    namespaces = []
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        raise BadUsageError(
            f"{' and '.join(missing)} must be set: connection strings with Manage rights of two namespaces in which the"
            " drill may create entities. See docs/how-to/live.md."
        )
    for name in VARIABLES:
        try:
            namespace = Namespace.from_connection_string(environment[name])
        except ValueError as error:
            raise BadUsageError(f"{name}: {error}") from None
        if namespace.entity_path is not None:
            raise BadUsageError(f"{name}: expected the connection string of a namespace, got one with an EntityPath")
        namespaces.append(namespace)
    primary, secondary = namespaces
    if primary.fully_qualified_namespace.lower() == secondary.fully_qualified_namespace.lower():
        raise BadUsageError(f"{' and '.join(VARIABLES)}: expected two namespaces, got the same one twice")
    return primary, secondary


def table_of(outcome: Outcome) -> Table:
    table = Table(title="Behaviour of the service: expected and observed", show_lines=True)
    table.add_column("check", ratio=3)
    table.add_column("expected", ratio=4)
    table.add_column("seen", ratio=5)
    table.add_column("verdict", ratio=2)
    for result in outcome.results:
        table.add_row(
            *map(Text, (result.name, result.expected, result.seen)), Text(result.verdict, STYLES[result.verdict])
        )
    return table


def report(drill: Drill, outcome: Outcome) -> None:
    """Print the table, and one JSON object on the last line."""
    console = Console()
    console.print(table_of(outcome))
    for name, reason in outcome.left_out.items():
        console.print(f"not run: {name} ({reason})", markup=False)
    for path in outcome.left_behind:
        console.print(f"not removed: {path}; delete it by hand", markup=False)
    hosts = {"primary": drill.primary, "secondary": drill.secondary}
    facts = {name: namespace.fully_qualified_namespace for name, namespace in hosts.items()}
    print(drill.clean(json.dumps({**facts, "prefix": drill.prefix, **outcome.to_json()})))


def main() -> int:
    environment = os.environ
    progress = Console(stderr=True)
    try:
        drill = Drill(*namespaces_of(environment))
    except BadUsageError as error:
        progress.print(str(error), markup=False)
        return 2
    # The drill causes failures on purpose; hide their log lines.
    for name in ("azure", "twinbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    checks, left_out = choose(
        long=bool(environment.get("LONG")),
        throttle=bool(environment.get("THROTTLE")),
        only=environment.get("ONLY", ""),
    )
    progress.print(f"{len(checks)} checks; all created entities are named {drill.prefix}…", markup=False)

    def print_result(result: Result) -> None:
        progress.print(f"  {result.seconds:6.1f} s  {result.verdict}: {result.name}", markup=False)

    try:
        outcome = asyncio.run(perform(drill, checks, left_out, print_result))
    except KeyboardInterrupt:
        progress.print(f"Interrupted. Entities named {drill.prefix}… were removed as far as possible.", markup=False)
        return 1
    report(drill, outcome)
    return 0 if outcome.is_as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
