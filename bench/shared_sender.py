"""Measures shared sender shared by many callers, with slow sends: a part of `make bench-pairing`.

The first table compares one sender with default options and 64 callers at 30 ms per send with a first-come,
first-served pool of 16 plain SDK senders, alternately. The second shows how many senders and links are worthwhile. The
delay is added by the namespace, a `twinbus serve` process. `python -m bench.shared_sender` prints only these two
tables.
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
SECONDS = 2.0 if QUICK else 6.0  # per round
BURSTS = 1 if QUICK else 5
CELL_SECONDS = 2.0 if QUICK else 8.0  # per cell of the second table
DELAYS = (DELAY,) if QUICK else (0.01, DELAY, 0.1)
#: Number of senders, and links per sender.
SIZES = ((1, 1), (1, 4), (1, 16), (1, 64), (4, 1), (4, 4), (4, 16))
#: Aims: minimum sends per second, minimum ratio to the plain pool, and maximum seconds.
AIM_RATE, AIM_RATIO, AIM_P99, AIM_BURST = 400.0, 0.9, 0.25, 3.0
#: Links count as opened when there was no new shared for `STEADY` seconds, at the latest after `LONGEST_GROWTH`.
STEADY, LONGEST_GROWTH = 2.0, 30.0
QUEUE = "orders"


def served(folder: Path) -> Served:
    """A server process with a primary and a secondary, not started yet."""
    return Served(
        folder,
        'durability = "memory"\n[namespaces.standby]\nport = 0\n'
        f'[namespaces.contoso]\nport = 0\nqueues = ["{QUEUE}"]\n',
    )


@contextmanager
def slowed(server: Served, delay: float) -> Iterator[None]:
    """Delay every send to the primary by `delay` seconds."""
    fault = server.control("POST", "namespaces/contoso/faults", {"kind": "slow", "delay": delay, "on": ["send"]})
    try:
        yield
    finally:
        server.control("DELETE", f"namespaces/contoso/faults/{fault['id']}")


def wait_for_links(server: Served, log: Log) -> None:
    """Wait until the links are open and as many calls have ended as there are callers."""
    count, since, deadline = -1, time.monotonic(), time.monotonic() + LONGEST_GROWTH
    while time.monotonic() < deadline:
        time.sleep(0.1)
        connections = server.control("GET", "namespaces")["contoso"]["connections"]
        if connections != count:
            count, since = connections, time.monotonic()
        if time.monotonic() - since >= STEADY and len(log.calls) >= CALLERS:
            return


# ---- shared sender and the plain pool ----


@dataclass
class Shared:
    """Figures of shared sender with 64 callers, and of the plain pool."""

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
    """Measure alternate rounds on open senders, then bursts on senders that are not open yet."""
    ours: list[list[float]] = []
    plain: list[list[float]] = []
    bursts: list[float] = []
    plain_bursts: list[float] = []
    logs: list[Log] = []
    events = 0
    with slowed(server, DELAY):
        with callers.paired(1) as paired, callers.plain(LINKS) as plain_send:
            for sends in (paired.sends, [plain_send]):  # warm-up: opens the links
                with callers.calling(sends, CALLERS) as log:
                    wait_for_links(server, log)
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
        ratio=statistics.median(
            len(our_calls) / len(plain_calls) for our_calls, plain_calls in zip(ours, plain, strict=True)
        ),
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
        time.sleep(CALLERS / LINKS * DELAY)  # until each caller has had a turn
        return _window(log, SECONDS), log


def _window(log: Log, seconds: float) -> list[float]:
    begin = time.perf_counter()
    time.sleep(seconds)
    return log.between(begin, begin + seconds)


def _burst(callers: Callers, sends: list[Send]) -> tuple[float, Log]:
    began = time.perf_counter()
    log = callers.burst(sends, BURST)
    return time.perf_counter() - began, log


# ---- number of senders and links ----


class Cell(NamedTuple):
    """Sends per second, and the 99th percentile of call durations."""

    rate: float
    p99: float


def measure_sizes(callers: Callers, server: Served) -> dict[tuple[int, int], list[Cell]]:
    """Measure shared cell per delay, for each number of senders and links."""
    cells_by_size: dict[tuple[int, int], list[Cell]] = {}
    for senders, links in SIZES:
        cells = []
        with callers.paired(senders, max_links=links) as paired:
            for delay in DELAYS:
                with slowed(server, delay), callers.calling(paired.sends, CALLERS) as log:
                    wait_for_links(server, log)
                    calls = _window(log, CELL_SECONDS)
                if log.errors or log.diverted:
                    print(f"{senders} x {links}: {log.diverted} diverted, {log.failed()} failed", file=sys.stderr)
                cells.append(Cell(len(calls) / CELL_SECONDS, percentile(calls, 0.99)))
        print(callers.name, senders, links, *cells, file=sys.stderr)
        cells_by_size[senders, links] = cells
    return cells_by_size


# ---- the report ----


class Results(NamedTuple):
    shared: dict[str, Shared]
    sizes: dict[str, dict[tuple[int, int], list[Cell]]]


def measure(folder: Path) -> Results:
    """Measure both tables, for tasks and for threads."""
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
    """Print both tables; return the figures of the first."""
    table = Table(title=f"shared shared sender, {CALLERS} callers, {DELAY * 1000:.0f} ms per send, {ROUNDS} rounds")
    names = list(results.shared)
    for heading in ("", *(f"{name}{of}" for name in names for of in ("", f", {LINKS} plain")), "aim"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in zip(*(_rows(results.shared[name]) for name in names), strict=True):
        table.add_row(row[0].label, *(cell for kind in row for cell in (kind.ours, kind.plain)), row[0].aim)
    console.print(table)
    table = Table(title=f"sends/s and p99 in seconds, {CALLERS} callers in all")
    table.add_column("senders x max_links")
    for name in results.sizes:
        for delay in DELAYS:
            table.add_column(f"{name}, {delay * 1000:.0f} ms", justify="right")
    for senders, links in SIZES:
        cells = (cell for sizes in results.sizes.values() for cell in sizes[senders, links])
        table.add_row(f"{senders} x {links}", *(f"{cell.rate:,.0f} / {cell.p99:.2f}" for cell in cells))
    console.print(table)
    return {f"shared_{name}_{key}": value for name in names for key, value in _summary(results.shared[name]).items()}


class _Row(NamedTuple):
    label: str
    ours: str
    plain: str
    aim: str


def _rows(shared: Shared) -> list[_Row]:
    def seconds(share: float) -> tuple[str, str]:
        return f"{percentile(shared.calls, share):.3f}", f"{percentile(shared.plain_calls, share):.3f}"

    return [
        _Row("sends/s", f"{shared.rate:,.0f}", f"{shared.plain_rate:,.0f}", f">= {AIM_RATE:.0f}"),
        _Row("ratio to the plain pool", f"{shared.ratio:.3f}", "", f">= {AIM_RATIO}"),
        _Row("p50, s", *seconds(0.5), ""),
        _Row("p99, s", *seconds(0.99), f"<= {AIM_P99}"),
        _Row(
            f"{BURST} concurrent calls, cold, s", _most(shared.bursts), _most(shared.plain_bursts), f"<= {AIM_BURST:g}"
        ),
        _Row("diverted", str(shared.diverted), "", "0"),
        _Row("failed", str(shared.failed), "", "0"),
        _Row("events", str(shared.events), "", "0"),
    ]


def _most(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f}, at most {max(seconds):.2f}"


def _summary(shared: Shared) -> dict[str, float]:
    return {
        "rate": round(shared.rate),
        "ratio": round(shared.ratio, 3),
        "p50": round(percentile(shared.calls, 0.5), 3),
        "p99": round(percentile(shared.calls, 0.99), 3),
        "burst": round(max(shared.bursts), 2),
        "diverted": shared.diverted,
        "failed": shared.failed,
        "events": shared.events,
    }


def main() -> None:
    logging.getLogger("twinbus").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-") as folder:
        results = measure(Path(folder))
    print(json.dumps(report(results, Console(width=120))))


if __name__ == "__main__":
    main()
