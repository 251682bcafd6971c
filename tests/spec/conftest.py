"""Fixtures: two namespaces, and the kind of client, so that every rule is tested for both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.spec.namespace_pair import KINDS, NamespacePair


@pytest.fixture(scope="module")
def shared_namespaces() -> Iterator[NamespacePair]:
    with NamespacePair.open() as opened:
        yield opened


@pytest.fixture
def namespaces(shared_namespaces: NamespacePair) -> Iterator[NamespacePair]:
    """The module's namespaces, without faults of the previous test."""
    yield shared_namespaces
    shared_namespaces.clear()
    shared_namespaces.primary.namespace.deliver_pings = False


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
