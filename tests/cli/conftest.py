"""What every test of a command needs."""

from __future__ import annotations

from tests.untouched_logging import untouched_logging

__all__ = ["untouched_logging"]
