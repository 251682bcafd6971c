"""Peers by other people."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.node import install


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """The folder with the packages that the scripts use."""
    cache = request.config.cache
    assert cache is not None
    return install(cache.mkdir("interop"))
