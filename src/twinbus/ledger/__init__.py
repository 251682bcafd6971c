"""Records every broker operation that is billed or serves as proof, one row each."""

from __future__ import annotations

from .recorder import (
    DurableRecorder,
    MemoryRecorder,
    NamespaceRole,
    NullRecorder,
    Operation,
    OperationKind,
    Outcome,
    Recorder,
    Stage,
    send_operation,
)

__all__ = [
    "DurableRecorder",
    "MemoryRecorder",
    "NamespaceRole",
    "NullRecorder",
    "Operation",
    "OperationKind",
    "Outcome",
    "Recorder",
    "Stage",
    "send_operation",
]
