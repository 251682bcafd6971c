"""A fixture for tests of what sets up the logs of its process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Commands and tasks set up the logs of their process. In that of the tests they must not do so for the others."""
    root, ours = logging.getLogger(), logging.getLogger("twinbus")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.captureWarnings(False)
