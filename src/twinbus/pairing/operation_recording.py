"""Records operations at the brokers, and classifies their outcome."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from azure.core.exceptions import HttpResponseError
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Recorder, Stage

from .failover.error_classification import Cause, cause_of


class Records(Protocol):
    """A source of records: a pairing, or a receiver without one."""

    @property
    def name(self) -> str: ...

    @property
    def client(self) -> str: ...

    @property
    def recorder(self) -> Recorder: ...


@contextmanager
def recorded(
    pairing: Records, kind: OperationKind, stage: Stage, namespace: NamespaceRole, entity: str, **columns: Any
) -> Iterator[None]:
    """Record the operation in the `with` block and its outcome; `columns` are further fields."""
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        record(pairing, kind, stage, namespace, entity, started, error, **columns)


def record(
    pairing: Records,
    kind: OperationKind,
    stage: Stage,
    namespace: NamespaceRole,
    entity: str,
    started: float,
    error: BaseException | None = None,
    **columns: Any,
) -> None:
    """Record an operation that began at `started` of `time.perf_counter` and has just ended."""
    pairing.recorder.record(
        Operation(
            pairing=pairing.name,
            client=pairing.client,
            namespace=namespace,
            entity=entity,
            operation=kind,
            stage=stage,
            error=None if error is None else type(error).__name__,
            latency_us=int((time.perf_counter() - started) * 1e6),
            **{"outcome": outcome_of(error), **columns},
        )
    )


def outcome_of(error: BaseException | None) -> Outcome:
    """Return done, failed, or unknown: without an answer, the operation may still have succeeded."""
    if error is None:
        return Outcome.DONE
    if isinstance(error, (TimeoutError, OperationTimeoutError)) or not isinstance(error, Exception):
        return Outcome.UNKNOWN
    if isinstance(error, HttpResponseError) or cause_of(error) is not Cause.UNAVAILABLE:
        return Outcome.FAILED
    return Outcome.UNKNOWN
