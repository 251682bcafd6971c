"""Repeat runs of the pipeline while a ledger grows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .run import RunResult
from .run_errors import LedgerUnreachableError, ResultsLockedError, ResultsUnreachableError, ResultsVersionError

logger = logging.getLogger("twinbus.spark")

SHORTEST_INTERVAL, LONGEST_INTERVAL = 1.0, 86_400.0
#: How often in a row a run may fail before watching ends.
MOST_FAILURES = 5
LONGEST_PAUSE = 60.0


class Watch:
    """Runs, one after the other, until `stop`.

    Args:
        run: One run of the pipeline.
        interval: Seconds from the end of a run to the start of the next.
        on_run: Called with the result of every run.
    """

    def __init__(self, run: Callable[[], RunResult], interval: float, on_run: Callable[[RunResult], None]) -> None:
        self._run = run
        self._interval = interval
        self._on_run = on_run
        self._stop = threading.Event()

    def stop(self) -> None:
        """End when the run that is under way is done. From any thread, or a signal handler."""
        self._stop.set()

    def go(self) -> None:
        """Watch until `stop`. After several failed runs, raises what the last one has raised."""
        failures = 0
        while not self._stop.is_set():
            pause = self._interval
            try:
                result = self._run()
            except ResultsLockedError as error:  # the claim of a killed run ends by itself
                logger.warning("%s", error)
            except (LedgerUnreachableError, ResultsUnreachableError, ResultsVersionError):
                raise
            except Exception as error:
                failures += 1
                if failures == MOST_FAILURES:
                    raise
                pause = min(LONGEST_PAUSE, 2.0**failures)
                logger.warning("A run of the pipeline failed, the next one is in %d seconds: %s", pause, error)
            else:
                failures = 0
                self._on_run(result)
            self._stop.wait(pause)


def check_interval(interval: float) -> None:
    """Raise ValueError for an interval out of its bounds."""
    if not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
        raise ValueError(
            f"interval must be from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:g} seconds, got {interval:g}"
        )
