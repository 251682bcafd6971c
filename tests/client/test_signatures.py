"""The paired client is a drop-in for the SDK's: same methods and parameters, sync and async."""

from __future__ import annotations

import inspect
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from tests.sdk_connection import needs_sdk

import twinbus
import twinbus.aio

CLIENTS = {
    "sync": (twinbus.PairedServiceBusClient, azure.servicebus.ServiceBusClient),
    "aio": (twinbus.aio.PairedServiceBusClient, azure.servicebus.aio.ServiceBusClient),
}
RECEIVERS = {
    "sync": (twinbus.PairedReceiver, azure.servicebus.ServiceBusReceiver),
    "aio": (twinbus.aio.PairedReceiver, azure.servicebus.aio.ServiceBusReceiver),
}


def public_methods(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(kind, callable)
        if not name.startswith("_") and name != "from_connection_string"
    }


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    """Return names, kinds and defaults; the order of keyword-only parameters does not matter."""
    return {one.name: (one.kind, one.default) for one in inspect.signature(function).parameters.values()}


@needs_sdk((7, 14), "older versions take some of these parameters without naming them")
@pytest.mark.parametrize("side", CLIENTS)
def test_the_client_has_every_method_of_the_sdks_with_the_same_parameters(side: str) -> None:
    ours, theirs = map(public_methods, CLIENTS[side])
    assert {"get_queue_sender", "get_topic_sender", "get_queue_receiver", "get_subscription_receiver"} <= set(theirs)
    for name, method in theirs.items():
        assert parameters(ours[name]) == parameters(method), name
        assert inspect.iscoroutinefunction(ours[name]) == inspect.iscoroutinefunction(method), name


@pytest.mark.parametrize("side", RECEIVERS)
def test_the_receiver_has_every_method_of_the_sdks_with_the_same_parameters(side: str) -> None:
    kinds = RECEIVERS[side]
    assert issubclass(*kinds)
    ours, theirs = map(public_methods, kinds)
    for name, method in theirs.items():
        assert parameters(ours[name]) == parameters(method), name
        assert inspect.iscoroutinefunction(ours[name]) == inspect.iscoroutinefunction(method), name


@pytest.mark.parametrize("side", CLIENTS)
def test_the_client_is_a_context_manager_like_the_sdks(side: str) -> None:
    ours, theirs = CLIENTS[side]
    for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        assert hasattr(ours, name) == hasattr(theirs, name)


def test_both_sides_have_the_same_methods() -> None:
    sync, aio = (
        {name: parameters(method) for name, method in public_methods(CLIENTS[side][0]).items()} for side in CLIENTS
    )
    assert sync == aio
