"""Errors of the pipeline and of the drain; those of runs are in `pipeline/run_errors.py`.

PipelineError
├── SparkMissingError       pyspark, or what Spark Connect needs, is not installed
├── JavaMissingError        there is no Java that this Spark runs on
├── SparkNotStartedError    Spark did not start, or the cluster cannot be reached
├── WorkersUnpreparedError  Spark's workers cannot import this twinbus
└── DrainFailedError        the backlog could not be drained
"""

from __future__ import annotations


class PipelineError(Exception):
    """The pipeline cannot do its work."""


class SparkMissingError(PipelineError, ImportError):
    """PySpark, or what it needs for Spark Connect, is not installed."""

    def __init__(
        self, message: str = "this needs the extra `spark`: pip install '.[spark]' in a checkout of twinbus"
    ) -> None:
        super().__init__(message)


class JavaMissingError(PipelineError):
    """There is no Java that this Spark runs on."""


class SparkNotStartedError(PipelineError):
    """Spark did not start, or the cluster cannot be reached."""


class WorkersUnpreparedError(PipelineError):
    """Spark's Python workers have no twinbus, or another version of it."""


class DrainFailedError(PipelineError):
    """The backlog could not be drained; the text says why."""
