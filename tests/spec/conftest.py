"""Every test of a rule that both kinds of client have to keep runs for both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.spec.house import KINDS, House


@pytest.fixture(scope="module")
def namespaces() -> Iterator[House]:
    with House.open() as opened:
        yield opened


@pytest.fixture
def house(namespaces: House) -> Iterator[House]:
    """The namespaces of a module, without the faults of the test before."""
    yield namespaces
    namespaces.clear()
    namespaces.primary.namespace.deliver_pings = False


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
