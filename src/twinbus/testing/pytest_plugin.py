"""Defines the fixtures that pytest discovers when twinbus is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported on first use: pytest loads this plugin in every run
    from .embedded_namespaces import TwinNamespaces


@pytest.fixture
def twinbus_namespaces() -> Iterator[TwinNamespaces]:
    """A primary and a secondary Service Bus namespace, live on this machine, with outages and faults on demand."""
    from .embedded_namespaces import twin_namespaces

    with twin_namespaces() as twins:
        yield twins
