"""Fixtures for third-party clients and servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop import node, older_sdk


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """The folder with the Node packages of the scripts."""
    cache = request.config.cache
    assert cache is not None
    return node.install(cache.mkdir("interop"))


@pytest.fixture(scope="session")
def older_python(request: pytest.FixtureRequest) -> Path:
    """A Python with an older Service Bus SDK."""
    cache = request.config.cache
    assert cache is not None
    return older_sdk.install(cache.mkdir("interop"))
