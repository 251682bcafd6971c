"""Outcomes in the rows of a task that are about its pumps, not about one message."""

from __future__ import annotations

from typing import Final

#: Nothing is left that can be moved; or the time was over before.
FINISHED: Final = "pump_finished"
UNFINISHED: Final = "pump_unfinished"
FAILED: Final = "pump_failed"
LEDGER_FAILED: Final = "ledger_failed"
#: This is not the first attempt of the task: the first one is lost, with the numbers of what it moved.
REPEATED: Final = "pump_repeated"
#: How many messages stay deferred, or locked by another client.
LEFT_DEFERRED: Final = "left_deferred"
HELD: Final = "held"
#: The task had no token for a destination.
NO_TOKEN: Final = "no_token"
