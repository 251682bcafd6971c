"""Records into a ledger until killed: `python -m tests.ledger.recording_process FOLDER NAME`.

Prints the number of durable rows after each flush.
"""

from __future__ import annotations

import random
import sys

from tests.ledger.rows import a_send

from twinbus.ledger.durable_rows import Proof
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.writer import LedgerWriter


def main(folder: str, name: str) -> None:
    rng = random.Random(name)
    # A low row limit, so that a kill may hit files that are written at the limit as well as files of a flush.
    writer = LedgerWriter(folder, rotation=Rotation(rows=200, flush_seconds=0.0))
    proof = Proof(writer)
    number = 0
    while True:
        for _ in range(rng.randrange(1, 400)):
            proof.record(a_send(f"{name}-{number}"))
            number += 1
        proof.flush()
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
