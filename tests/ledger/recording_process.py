"""Records into a ledger until it is killed: `python -m tests.ledger.recording_process FOLDER NAME`.

Each line it prints is the number of the last row that a flush has declared durable.
"""

from __future__ import annotations

import random
import sys

from tests.ledger.rows import a_send

from twinbus.ledger.durable_rows import Proof
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.writer import LedgerWriter


def main(folder: str, name: str) -> None:
    seeded = random.Random(name)
    # Telemetry is written as well, so that there are files of both kinds under way when it is killed.
    writer = LedgerWriter(folder, rotation=Rotation(rows=200, flush_seconds=0.0))
    proof = Proof(writer)
    number = 0
    while True:
        for _ in range(seeded.randrange(1, 400)):
            proof.record(a_send(f"{name}-{number}"))
            number += 1
        proof.flush()
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
