"""The fixtures that pytest finds by itself when twinbus is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # loaded when a test asks for it: the plugin is there in every run of pytest
    from .namespaces import TwinNamespaces


@pytest.fixture
def twinbus_namespaces() -> Iterator[TwinNamespaces]:
    """A primary and a secondary Service Bus namespace, live on this machine, that can be broken on purpose."""
    from .namespaces import twin_namespaces

    with twin_namespaces() as twins:
        yield twins
