"""What a sender tells the recorder: one row for each message of each attempt, for each is billed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Stage

from .core import Pairing
from .parcel import Parcel
from .recording import outcome_of


@contextmanager
def attempt_recorded(
    pairing: Pairing, kind: OperationKind, parcel: Parcel, sizes: list[int], queue: str | None = None
) -> Iterator[None]:
    """Record the attempt made within, and how it ended.

    `sizes` are the bytes of each message on the wire, `queue` is the backlog queue, None at the primary.
    """
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        latency = int((time.perf_counter() - started) * 1e6)
        for message_id, size in zip(parcel.message_ids, sizes, strict=True):
            pairing.recorder.record(
                Operation(
                    pairing=pairing.name,
                    client=pairing.client,
                    namespace=NamespaceRole.PRIMARY if queue is None else NamespaceRole.SECONDARY,
                    entity=queue or parcel.destination,
                    operation=kind,
                    stage=Stage.DIRECT if queue is None else Stage.BACKLOG_SEND,
                    outcome=outcome_of(error),
                    message_id=message_id,
                    destination=parcel.destination,
                    backlog_queue=queue,
                    attempt=parcel.attempts,
                    bytes=size,
                    error=None if error is None else type(error).__name__,
                    latency_us=latency,
                )
            )
