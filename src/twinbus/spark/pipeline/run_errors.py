"""Errors of pipeline runs."""

from __future__ import annotations

from twinbus.spark.pipeline_errors import PipelineError


class LedgerUnreachableError(PipelineError):
    """Spark finds no ledger at this place."""


class LedgerReadError(PipelineError):
    """A file of the ledger exists and could not be read, although it was tried several times."""


class ResultsUnreachableError(PipelineError):
    """There are no results at this place, or Spark cannot write any there, or not in this format."""


class ResultsVersionError(PipelineError):
    """The results were written by a later release of twinbus."""


class ResultsLockedError(PipelineError):
    """Another run is writing these results."""


class ResultsLostError(PipelineError):
    """Days of the tables were removed that cannot be computed again."""
