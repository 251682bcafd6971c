"""What every test of a command needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """A command sets up the logs of its process. Run in the process of the tests it must not do so for the others."""
    root, ours = logging.getLogger(), logging.getLogger("twinbus")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.captureWarnings(False)
