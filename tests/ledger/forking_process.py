"""Records in a process and its forked children: `python -m tests.ledger.forking_process FOLDER`.

Prints the number of rows that the parent and each child recorded.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading

from tests.ledger.rows import a_send

from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.writer import LedgerWriter

CHILDREN, ROWS = 3, 100


def record(writer: LedgerWriter, name: str) -> None:
    for number in range(ROWS):
        writer.record(a_send(f"{name}-{number}"))
    writer.close()


def main(folder: str) -> None:
    writer = LedgerWriter(folder, rotation=Rotation(rows=50, flush_seconds=0.0))
    is_stopping, number = threading.Event(), 0

    def record_in_parent() -> None:
        nonlocal number
        while not is_stopping.wait(0.001):
            writer.record(a_send(f"parent-{number}"))
            number += 1

    parent = threading.Thread(target=record_in_parent)
    parent.start()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=record, args=(writer, f"child-{child}")) for child in range(CHILDREN)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    is_stopping.set()
    parent.join()
    writer.close()
    print(number, *(ROWS if child.exitcode == 0 else child.exitcode for child in children))


if __name__ == "__main__":
    main(*sys.argv[1:])
