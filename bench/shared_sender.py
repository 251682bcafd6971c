"""What one sender does for many callers, where each send takes the service some time: a part of `make bench-pairing`.

The first table is one sender with default options and 64 callers at 30 ms a send, in turns with 16 plain SDK senders
that are handed out first come, first served. The second shows how many senders and links are worth while. The delay is
the namespace's own, a `twinbus serve` process. `python -m bench.shared_sender` makes these two tables alone.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.callers import AsyncCallers, Callers, Log, Send, ThreadCallers, percentile
from bench.served import Served
from rich.console import Console
from rich.table import Table

QUICK = bool(os.environ.get("QUICK"))
CALLERS = 64
LINKS = 16  # the default of `max_links`
DELAY = 0.03
BURST = 600
ROUNDS = 2 if QUICK else 7
SECONDS = 2.0 if QUICK else 6.0  # of one round
BURSTS = 1 if QUICK else 5
CELL_SECONDS = 2.0 if QUICK else 8.0  # of one cell of the second table
DELAYS = (DELAY,) if QUICK else (0.01, DELAY, 0.1)
#: Senders, and links of each.
SIZES = ((1, 1), (1, 4), (1, 16), (1, 64), (4, 1), (4, 4), (4, 16))
#: The least sends a second, share of the plain pool's rate, and the most seconds.
AIM_RATE, AIM_RATIO, AIM_P99, AIM_BURST = 400.0, 0.9, 0.25, 3.0
#: Links have been opened when there were no new ones for this long, and are not waited for longer than that.
STEADY, LONGEST_GROWTH = 2.0, 30.0
QUEUE = "orders"


def served(folder: Path) -> Served:
    """A server process with a primary and a secondary, which is to be started."""
    return Served(
        folder,
        'durability = "memory"\n[namespaces.standby]\nport = 0\n'
        f'[namespaces.contoso]\nport = 0\nqueues = ["{QUEUE}"]\n',
    )


@contextmanager
def slowed(server: Served, delay: float) -> Iterator[None]:
    """Let every send to the primary take this many seconds longer."""
    fault = server.control("POST", "namespaces/contoso/faults", {"kind": "slow", "delay": delay, "on": ["send"]})
    try:
        yield
    finally:
        server.control("DELETE", f"namespaces/contoso/faults/{fault['id']}")


def let_grow(server: Served, log: Log) -> None:
    """Wait until the links are open, and each caller has waited for its turn once."""
    count, since, ends = -1, time.monotonic(), time.monotonic() + LONGEST_GROWTH
    while time.monotonic() < ends:
        time.sleep(0.1)
        found = server.control("GET", "namespaces")["contoso"]["connections"]
        if found != count:
            count, since = found, time.monotonic()
        if time.monotonic() - since >= STEADY and len(log.calls) >= CALLERS:
            return


# ---- one sender and the plain pool ----


@dataclass
class Shared:
    """One sender with 64 callers, and the plain pool beside it."""

    rate: float
    plain_rate: float
    ratio: float
    calls: list[float]
    plain_calls: list[float]
    bursts: list[float]
    plain_bursts: list[float]
    diverted: int
    failed: int
    events: int


def measure_shared(callers: Callers, server: Served) -> Shared:
    """Rounds in turns, warm; then bursts on senders that are not open yet."""
    ours: list[list[float]] = []
    plain: list[list[float]] = []
    bursts: list[float] = []
    plain_bursts: list[float] = []
    logs: list[Log] = []
    events = 0
    with slowed(server, DELAY):
        with callers.paired(1) as paired, callers.plain(LINKS) as plain_send:
            for sends in (paired.sends, [plain_send]):  # not counted: the links are opened
                with callers.calling(sends, CALLERS) as log:
                    let_grow(server, log)
                logs += [log] if sends is paired.sends else []
            for number in range(ROUNDS):
                if number % 2:
                    plain.append(_round(callers, [plain_send])[0])
                calls, log = _round(callers, paired.sends)
                ours.append(calls)
                logs.append(log)
                if not number % 2:
                    plain.append(_round(callers, [plain_send])[0])
            events += len(paired.events)
        for _ in range(BURSTS):
            with callers.paired(1) as paired:
                seconds, log = _burst(callers, paired.sends)
                bursts.append(seconds)
                logs.append(log)
                events += len(paired.events)
            with callers.plain(LINKS) as plain_send:
                plain_bursts.append(_burst(callers, [plain_send])[0])
    return Shared(
        rate=statistics.median(map(len, ours)) / SECONDS,
        plain_rate=statistics.median(map(len, plain)) / SECONDS,
        ratio=statistics.median(len(own) / len(theirs) for own, theirs in zip(ours, plain, strict=True)),
        calls=sorted(seconds for calls in ours for seconds in calls),
        plain_calls=sorted(seconds for calls in plain for seconds in calls),
        bursts=bursts,
        plain_bursts=plain_bursts,
        diverted=sum(log.diverted for log in logs),
        failed=sum(len(log.errors) for log in logs),
        events=events,
    )


def _round(callers: Callers, sends: list[Send]) -> tuple[list[float], Log]:
    with callers.calling(sends, CALLERS) as log:
        time.sleep(CALLERS / LINKS * DELAY)  # until each caller has waited for its turn
        return _window(log, SECONDS), log


def _window(log: Log, seconds: float) -> list[float]:
    begin = time.perf_counter()
    time.sleep(seconds)
    return log.between(begin, begin + seconds)


def _burst(callers: Callers, sends: list[Send]) -> tuple[float, Log]:
    began = time.perf_counter()
    log = callers.burst(sends, BURST)
    return time.perf_counter() - began, log


# ---- how many senders and links ----


class Cell(NamedTuple):
    """Sends a second, and the seconds that 99 % of the calls do not exceed."""

    rate: float
    p99: float


def measure_sizes(callers: Callers, server: Served) -> dict[tuple[int, int], list[Cell]]:
    """For each number of senders and links a cell for each delay."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for senders, links in SIZES:
        cells = []
        with callers.paired(senders, max_links=links) as paired:
            for delay in DELAYS:
                with slowed(server, delay), callers.calling(paired.sends, CALLERS) as log:
                    let_grow(server, log)
                    calls = _window(log, CELL_SECONDS)
                if log.errors or log.diverted:
                    print(f"{senders} x {links}: {log.diverted} diverted, {log.failed()} failed", file=sys.stderr)
                cells.append(Cell(len(calls) / CELL_SECONDS, percentile(calls, 0.99)))
        print(callers.name, senders, links, *cells, file=sys.stderr)
        found[senders, links] = cells
    return found


# ---- the report ----


class Results(NamedTuple):
    shared: dict[str, Shared]
    sizes: dict[str, dict[tuple[int, int], list[Cell]]]


def measure(folder: Path) -> Results:
    """Both tables, for tasks and for threads."""
    shared, sizes = {}, {}
    with ExitStack() as stack:
        server = stack.enter_context(served(folder))
        strings = server.connection_strings["contoso"], server.connection_strings["standby"]
        for kind in (AsyncCallers, ThreadCallers):
            callers = kind(*strings, QUEUE)
            shared[callers.name] = measure_shared(callers, server)
            print(callers.name, "shared:", _summary(shared[callers.name]), file=sys.stderr)
            sizes[callers.name] = measure_sizes(callers, server)
            callers.close()
    return Results(shared, sizes)


def report(results: Results, console: Console) -> dict[str, float]:
    """Print both tables, and return the figures of the first."""
    table = Table(title=f"one shared sender, {CALLERS} callers, {DELAY * 1000:.0f} ms per send, {ROUNDS} rounds")
    names = list(results.shared)
    for heading in ("", *(f"{name}{of}" for name in names for of in ("", f", {LINKS} plain")), "aim"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in zip(*(_rows(results.shared[name]) for name in names), strict=True):
        table.add_row(row[0].label, *(cell for one in row for cell in (one.ours, one.plain)), row[0].aim)
    console.print(table)
    table = Table(title=f"sends/s and p99 in seconds, {CALLERS} callers in all")
    table.add_column("senders x max_links")
    for name in results.sizes:
        for delay in DELAYS:
            table.add_column(f"{name}, {delay * 1000:.0f} ms", justify="right")
    for senders, links in SIZES:
        cells = (cell for found in results.sizes.values() for cell in found[senders, links])
        table.add_row(f"{senders} x {links}", *(f"{cell.rate:,.0f} / {cell.p99:.2f}" for cell in cells))
    console.print(table)
    return {f"shared_{name}_{key}": value for name in names for key, value in _summary(results.shared[name]).items()}


class _Row(NamedTuple):
    label: str
    ours: str
    plain: str
    aim: str


def _rows(one: Shared) -> list[_Row]:
    def seconds(share: float) -> tuple[str, str]:
        return f"{percentile(one.calls, share):.3f}", f"{percentile(one.plain_calls, share):.3f}"

    return [
        _Row("sends/s", f"{one.rate:,.0f}", f"{one.plain_rate:,.0f}", f">= {AIM_RATE:.0f}"),
        _Row("of the plain pool", f"{one.ratio:.3f}", "", f">= {AIM_RATIO}"),
        _Row("p50, s", *seconds(0.5), ""),
        _Row("p99, s", *seconds(0.99), f"<= {AIM_P99}"),
        _Row(f"{BURST} calls at once, cold, s", _most(one.bursts), _most(one.plain_bursts), f"<= {AIM_BURST:g}"),
        _Row("diverted", str(one.diverted), "", "0"),
        _Row("failed", str(one.failed), "", "0"),
        _Row("events", str(one.events), "", "0"),
    ]


def _most(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f}, at most {max(seconds):.2f}"


def _summary(one: Shared) -> dict[str, float]:
    return {
        "rate": round(one.rate),
        "ratio": round(one.ratio, 3),
        "p50": round(percentile(one.calls, 0.5), 3),
        "p99": round(percentile(one.calls, 0.99), 3),
        "burst": round(max(one.bursts), 2),
        "diverted": one.diverted,
        "failed": one.failed,
        "events": one.events,
    }


def main() -> None:
    logging.getLogger("twinbus").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder:
        results = measure(Path(folder))
    print(json.dumps(report(results, Console(width=120))))


if __name__ == "__main__":
    main()
