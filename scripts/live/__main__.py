"""The drill from the command line: `make live`.

TWINBUS_LIVE_PRIMARY and TWINBUS_LIVE_SECONDARY are the connection strings of two namespaces, with Manage rights.
LONG=1 adds the checks that wait a quarter of an hour, THROTTLE=1 the one that overloads the primary, ONLY=text keeps
those with the text in their name. Exit code 0: all as expected; 1: not all; 2: bad usage.
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

from twinbus.pairing.namespaces import Namespace

from .checks import Result, Verdict
from .drill import Drill
from .running import Outcome, choose, perform

VARIABLES = ("TWINBUS_LIVE_PRIMARY", "TWINBUS_LIVE_SECONDARY")
STYLES = {Verdict.AS_EXPECTED: "green", Verdict.DIFFERENT: "red", Verdict.UNCHECKED: "yellow"}


class BadUsage(Exception):  # noqa: N818 - what it is
    """The drill cannot begin; the text says why, without a key."""


def namespaces_of(environment: Mapping[str, str]) -> tuple[Namespace, Namespace]:
    """The two namespaces. Raises `BadUsage`."""
    found = []
    missing = [name for name in VARIABLES if not environment.get(name)]
    if missing:
        raise BadUsage(
            f"{' and '.join(missing)} must be set: connection strings, with Manage rights, of two namespaces that the"
            " drill may make entities in. See docs/live.md."
        )
    for name in VARIABLES:
        try:
            namespace = Namespace.from_connection_string(environment[name])
        except ValueError as error:
            raise BadUsage(f"{name}: {error}") from None
        if namespace.entity_path is not None:
            raise BadUsage(f"{name}: the connection string must be the namespace's, not that of one entity")
        found.append(namespace)
    primary, secondary = found
    if primary.fully_qualified_namespace.lower() == secondary.fully_qualified_namespace.lower():
        raise BadUsage(f"{' and '.join(VARIABLES)} must be two namespaces, not the same")
    return primary, secondary


def table_of(outcome: Outcome) -> Table:
    table = Table(title="What the service does, and what we took it to do", show_lines=True)
    table.add_column("check", ratio=3)
    table.add_column("expected", ratio=4)
    table.add_column("seen", ratio=5)
    table.add_column("verdict", ratio=2)
    for one in outcome.results:
        table.add_row(*map(Text, (one.name, one.expected, one.seen)), Text(one.verdict, STYLES[one.verdict]))
    return table


def report(drill: Drill, outcome: Outcome) -> None:
    """The table, and as the last line one JSON object."""
    console = Console()
    console.print(table_of(outcome))
    for name, why in outcome.left_out.items():
        console.print(f"left out: {name} ({why})", markup=False)
    for path in outcome.left_behind:
        console.print(f"could not be removed: {path}", markup=False)
    hosts = {"primary": drill.primary, "secondary": drill.secondary}
    facts = {name: namespace.fully_qualified_namespace for name, namespace in hosts.items()}
    print(drill.clean(json.dumps({**facts, "prefix": drill.prefix, **outcome.to_json()})))


def main() -> int:
    environment = os.environ
    progress = Console(stderr=True)
    try:
        drill = Drill(*namespaces_of(environment))
    except BadUsage as error:
        progress.print(str(error), markup=False)
        return 2
    # What the SDK logs of failures that are brought about here on purpose is no news.
    for name in ("azure", "twinbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    checks, left_out = choose(
        long=bool(environment.get("LONG")),
        throttle=bool(environment.get("THROTTLE")),
        only=environment.get("ONLY", ""),
    )
    progress.print(f"{len(checks)} checks; everything made is called {drill.prefix}…", markup=False)

    def tell(result: Result) -> None:
        progress.print(f"  {result.seconds:6.1f} s  {result.verdict}: {result.name}", markup=False)

    try:
        outcome = asyncio.run(perform(drill, checks, left_out, tell))
    except KeyboardInterrupt:
        progress.print(f"Broken off. What is called {drill.prefix}… was removed, as far as it could be.", markup=False)
        return 1
    report(drill, outcome)
    return 0 if outcome.is_as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
