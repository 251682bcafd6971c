"""Small ledgers, file by file."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twinbus.ledger.layout import FileName, folder_of
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import encode, pa, to_batch
from twinbus.ledger.store import open_store

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * SECOND
_numbers = iter(range(1, 10**9))


def an_operation(ts: int, **columns: Any) -> Operation:
    """A send to the primary that was done, unless the columns say otherwise."""
    given: dict[str, Any] = {
        "pairing": "contoso",
        "client": "client-1",
        "namespace": NamespaceRole.PRIMARY,
        "entity": "orders",
        "operation": OperationKind.SEND,
        "stage": Stage.DIRECT,
        "outcome": Outcome.DONE,
        "bytes": 1_000,
        "latency_us": 2_000,
    }
    return Operation(ts=ts, **{**given, **columns})


def some_operations(seed: int, count: int, start: int = START, hours: int = 3) -> list[Operation]:
    """Operations of all kinds and sizes, in the order of their times."""
    dice = random.Random(seed)
    times = sorted(dice.randrange(start, start + hours * HOUR) for _ in range(count))
    return [_any_operation(dice, ts) for ts in times]


def _any_operation(dice: random.Random, ts: int) -> Operation:
    entity = dice.choice(["orders", "bills", "contoso/x-servicebus-transfer/3"])
    return an_operation(
        ts,
        client=dice.choice(["client-1", "client-2"]),
        namespace=dice.choice([NamespaceRole.PRIMARY, NamespaceRole.SECONDARY]),
        entity=entity,
        destination=dice.choice([None, "orders", "events"]),
        operation=dice.choice([one for one in OperationKind if one is not OperationKind.DROPPED]),
        stage=dice.choice(list(Stage)),
        outcome=dice.choice(list(Outcome)),
        message_id=f"m-{dice.randrange(50)}",
        bytes=dice.choice([0, 1, 65_536, 65_537, 200_000]),
        count=dice.choice([0, 1, 1, 3]),
        latency_us=dice.choice([None, 1, 900, 70_000]),
    )


def put(ledger: Path, operations: Iterable[Operation], *, compacted: bool = False) -> Path:
    """Write rows of one day as a file of the ledger."""
    rows: Sequence[Operation] = list(operations)
    number = next(_numbers)
    name = FileName(rows[-1].ts, "00000000000000aa", 1, number, is_compacted=compacted)
    table = pa.Table.from_batches([to_batch(rows)])
    folder = folder_of(rows[0].ts)
    open_store(ledger).put(folder, str(name), encode(table))
    return ledger / folder / str(name)
