"""What rows of a task say that are about its pumps, not about one message."""

from __future__ import annotations

from typing import Final

#: Nothing is left that could be moved; or the time was over first.
FINISHED: Final = "pump_finished"
UNFINISHED: Final = "pump_unfinished"
FAILED: Final = "pump_failed"
LEDGER_FAILED: Final = "ledger_failed"
#: Another attempt at the same task went before, and could not tell what it had moved.
REPEATED: Final = "pump_repeated"
#: How many messages stay deferred, or locked by another client.
LEFT_DEFERRED: Final = "left_deferred"
HELD: Final = "held"
#: The task had no token for a destination.
NO_TOKEN: Final = "no_token"
