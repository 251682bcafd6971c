"""Errors of pipeline runs."""

from __future__ import annotations

from twinbus.spark.pipeline_errors import PipelineError


class LedgerUnreachableError(PipelineError):
    """Spark finds no ledger at this place."""


class ResultsUnreachableError(PipelineError):
    """Spark cannot write results at this place, or not in this format."""


class ResultsLockedError(PipelineError):
    """Another run is writing these results."""


class ResultsVersionError(PipelineError):
    """The results were written by a later release of twinbus."""


class ResultsLostError(PipelineError):
    """Days of the tables were removed that cannot be computed again."""


class LedgerReadError(PipelineError):
    """A file of the ledger exists and could not be read, although it was tried several times."""


class LedgerChangedError(PipelineError):
    """Files of the ledger disappeared while a run was reading them."""


class NoTablesError(PipelineError):
    """There are no result tables at this place."""
