"""Writes and compacts a ledger until killed: `python -m tests.ledger.compacting_process FOLDER NAME`.

Prints the number of durable rows, one line per round. Its clock advances by a day per round.
"""

from __future__ import annotations

import sys
from itertools import count

from tests.ledger.rows import DAY, NOON, a_send

from twinbus.ledger.compaction import compact
from twinbus.ledger.writer import LedgerWriter

ROWS = 5


def main(folder: str, name: str) -> None:
    for number in count():
        times = count(NOON + number * DAY)
        with LedgerWriter(folder, now_us=lambda times=times: next(times)) as writer:
            for row in range(number * ROWS, (number + 1) * ROWS):
                writer.record(a_send(f"{name}-{row}"))
                writer.request_flush().result()
        print((number + 1) * ROWS, flush=True)
        compact(folder, now_us=lambda number=number: NOON + (number + 1) * DAY)


if __name__ == "__main__":
    main(*sys.argv[1:])
