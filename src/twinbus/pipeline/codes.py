"""One number for what a row of the ledger is: rows are looked up in small tables instead of being asked one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa

Array = np.ndarray[Any, Any]

#: Numbers are below this.
CODES = 1 << 15
#: Stands for a code of the ledger that nobody knows yet.
_UNKNOWN = 31


def code_of(stage: int, operation: int, outcome: int) -> int:
    """The number for stage, operation and outcome."""
    return stage << 10 | operation << 5 | outcome


def codes_of(rows: pa.Table) -> Array:
    """The numbers of rows."""
    stage, operation, outcome = (_known(rows[name].to_numpy()) for name in ("stage", "operation", "outcome"))
    return stage.astype(np.int16) << 10 | operation.astype(np.int16) << 5 | outcome


def _known(codes: Array) -> Array:
    if codes.min(initial=0) >= 0 and codes.max(initial=0) < _UNKNOWN:
        return codes
    return np.where((codes >= 0) & (codes < _UNKNOWN), codes, _UNKNOWN)


def stages(codes: Array) -> Array:
    return codes >> 10


def operations(codes: Array) -> Array:
    return codes >> 5 & 31


def outcomes(codes: Array) -> Array:
    return codes & 31


def table_of(value_of: Callable[[Stage, OperationKind, Outcome], Any], kind: type = bool) -> Array:
    """What something is for each number; for what nobody knows, nothing."""
    found: Array = np.zeros(CODES, kind)
    for stage in Stage:
        for operation in OperationKind:
            for outcome in Outcome:
                found[code_of(stage, operation, outcome)] = value_of(stage, operation, outcome)
    return found
