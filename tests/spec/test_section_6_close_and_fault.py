"""SPEC 6: close and fault for both kinds of client. The real grace period: tests/client/test_close_and_fault.py."""

from __future__ import annotations

import time

import pytest
from tests.spec.namespace_pair import Client, NamespacePair, eventually, new_message

from twinbus import Condition, Faulted, PairedClientFaultedError, Route
from twinbus.client import runtime
from twinbus.emulator import Fault, FaultKind

GRACE = 0.4  # seconds, instead of the real five
LONG_GRACE = 2.0  # long enough to close a client within it on a busy machine


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "GRACE", GRACE)


def conditions(client: Client) -> tuple[Condition, Condition, Condition]:
    status = client.status()
    return status.condition, status.primary_condition, status.secondary_condition


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("closed_side", ["primary", "secondary"])
def test_partner_of_closed_client_with_syphon_is_faulted_and_raises(
    namespaces: NamespacePair, kind: str, closed_side: str
) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, enable_syphon=True) as client:
        sender, receiver = client.get_queue_sender(queue.path), client.get_queue_receiver(queue.path)
        sender.send_messages(new_message())
        getattr(client, closed_side).close()
        cause = client.seen.next(Faulted).error
        partner = "secondary" if closed_side == "primary" else "primary"
        closed, faulted = Condition.CLOSED, Condition.FAULTED
        expected = (closed, faulted) if closed_side == "primary" else (faulted, closed)
        assert conditions(client) == (faulted, *expected)
        for call in (
            lambda: sender.send_messages(new_message()),
            lambda: sender.schedule_messages(new_message(), None),
            sender.create_message_batch,
            receiver.receive_messages,
            lambda: client.get_queue_sender(queue.path),
            lambda: client.fail_over(queue.path),
            lambda: getattr(client, partner).get_queue_sender(queue.path),
        ):
            with pytest.raises(PairedClientFaultedError, match=f"the {closed_side} client was closed"):
                call()
        assert isinstance(cause, PairedClientFaultedError)
        assert f"{closed_side} client was closed" in (client.status().fault or "")


@pytest.mark.usefixtures("short_grace")
def test_partner_of_faulted_client_with_syphon_is_faulted_with_cause(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind, enable_syphon=True) as client:
        client.secondary.fault("out of order", OSError("for good"))
        eventually(lambda: conditions(client)[1] is Condition.FAULTED)
        with pytest.raises(PairedClientFaultedError, match="secondary client has faulted") as raised:
            client.primary.get_queue_sender("orders")
        causes, error = [], raised.value
        while error is not None:
            causes.append(str(error))
            error = error.__cause__  # type: ignore[assignment]
        assert "for good" in causes[-1]


def test_partner_closed_within_the_grace_period_is_not_faulted(
    namespaces: NamespacePair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "GRACE", LONG_GRACE)
    with namespaces.client(kind, enable_syphon=True) as client:
        client.primary.close()
        client.secondary.close()
        time.sleep(1.5 * LONG_GRACE)
        assert conditions(client) == (Condition.CLOSED, Condition.CLOSED, Condition.CLOSED)
        assert client.status().fault is None


@pytest.mark.usefixtures("short_grace")
def test_lost_connection_is_not_a_fault(namespaces: NamespacePair, kind: str) -> None:
    queue = namespaces.queue(namespaces.new_name())
    with namespaces.client(kind, enable_syphon=True) as client:
        sender = client.get_queue_sender(queue.path)
        sender.send_messages(new_message())
        for side in (namespaces.primary, namespaces.secondary):
            side.call(side.namespace.faults.add, Fault(FaultKind.RESET, seconds=GRACE))
        time.sleep(3 * GRACE)
        assert conditions(client) == (Condition.OPEN,) * 3
        assert sender.send_messages(new_message()).route is Route.PRIMARY


@pytest.mark.usefixtures("short_grace")
def test_closing_one_client_without_syphon_leaves_partner_open(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind) as client:
        client.secondary.close()
        time.sleep(2 * GRACE)
        assert conditions(client) == (Condition.OPEN, Condition.OPEN, Condition.CLOSED)
        queue = namespaces.queue(namespaces.new_name())
        assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.PRIMARY
