"""The names of the primary namespace and of its backlog queues: SPEC section 2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.servicebus.entity_paths import (
    MAX_PRIMARY_NAME,
    BacklogPath,
    backlog_path,
    check_primary_name,
    entity_key,
    parse_backlog_path,
    primary_name_of,
)

names = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?\Z")


@pytest.mark.parametrize(
    "host",
    [
        "contoso.servicebus.windows.net",
        "contoso.servicebus.windows.net:5671",
        "Contoso.ServiceBus.windows.net",
        "contoso.servicebus.windows.net.",
        "contoso",
        "contoso:5672",
    ],
)
def test_the_primary_is_named_by_the_first_label_of_its_host(host: str) -> None:
    assert primary_name_of(host) == "contoso"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:5673",
        "10.0.0.4",
        "::1",
        "[::1]",
        "[::1]:5673",
        "fe80::1",
        "localhost",
        "localhost:5673",
        "",
    ],
)
def test_ip_address_has_no_name(host: str) -> None:
    assert primary_name_of(host) is None


def test_a_backlog_queue_is_named_after_the_primary_and_its_index() -> None:
    assert backlog_path("contoso", 0) == "contoso/x-servicebus-transfer/0"


@given(names, st.integers(0, 10**6))
def test_path_gives_back_its_parts(name: str, index: int) -> None:
    assert parse_backlog_path(backlog_path(name, index)) == BacklogPath(name, index)


def test_the_path_of_a_backlog_queue_is_not_case_sensitive() -> None:
    assert parse_backlog_path("Contoso/X-ServiceBus-Transfer/7") == BacklogPath("Contoso", 7)


@pytest.mark.parametrize(
    "path",
    [
        "orders",
        "contoso/x-servicebus-transfer",
        "contoso/x-servicebus-transfer/",
        "contoso/x-servicebus-transfer/07",
        "contoso/x-servicebus-transfer/-1",
        "contoso/x-servicebus-transfer/٣",
        "contoso/x-servicebus-transfer/1/2",
        "a/contoso/x-servicebus-transfer/1",
        "/x-servicebus-transfer/1",
        "contoso/x-servicebus-transfer/1\n",
    ],
)
def test_other_paths_are_not_backlog_queues(path: str) -> None:
    assert parse_backlog_path(path) is None


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a-", "a b", "ä", "a\n", "a" * (MAX_PRIMARY_NAME + 1)])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"primary_name must be 1 to {MAX_PRIMARY_NAME} letters"):
        check_primary_name(name)
    with pytest.raises(ValueError, match="primary_name"):
        backlog_path(name, 0)


def test_a_negative_index_is_refused() -> None:
    with pytest.raises(ValueError, match="index must be at least 0, not -1"):
        backlog_path("contoso", -1)


def test_two_spellings_of_a_path_are_one_entity() -> None:
    assert entity_key("/Sales/Orders/") == entity_key("sales/orders") == "sales/orders"
