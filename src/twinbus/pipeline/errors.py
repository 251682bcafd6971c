"""What can go wrong before or in a pipeline's work.

PipelineError
├── SparkMissing       pyspark, or what Spark Connect needs, is not installed
├── JavaMissing        there is no Java that this Spark runs on
├── SparkNotStarted    Spark did not start, or the cluster cannot be reached
├── WorkersUnprepared  Spark's workers cannot import this twinbus
├── DrainFailed        the backlog could not be drained
├── NoResults          nobody has run the pipeline on a ledger yet
└── ResultsDamaged     something in a store of results cannot be read
"""

from __future__ import annotations


class PipelineError(Exception):
    """The pipeline cannot do its work."""


class SparkMissing(PipelineError, ImportError):  # noqa: N818 - what it is
    """PySpark, or what it needs for Spark Connect, is not installed."""

    def __init__(self, message: str = "this needs Spark: pip install 'twinbus[spark]'") -> None:
        super().__init__(message)


class JavaMissing(PipelineError):  # noqa: N818 - what it is
    """There is no Java that this Spark runs on."""


class SparkNotStarted(PipelineError):  # noqa: N818 - what happened
    """Spark did not start, or the cluster cannot be reached."""


class WorkersUnprepared(PipelineError):  # noqa: N818 - what they are
    """Spark's Python workers have no twinbus, or another version of it."""


class DrainFailed(PipelineError):  # noqa: N818 - what happened
    """The backlog could not be drained; the text says why."""


class NoResults(PipelineError):  # noqa: N818 - what it is
    """Nobody has run the pipeline on this ledger yet."""


class ResultsDamaged(PipelineError):  # noqa: N818 - what they are
    """Something in the store of results is missing or cannot be read."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the results are damaged: {what}; remove them and run `twinbus pipeline run` again")
