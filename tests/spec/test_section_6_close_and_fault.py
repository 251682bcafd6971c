"""SPEC 6 for both kinds of client. The five seconds themselves: tests/client/test_close_and_fault.py."""

from __future__ import annotations

import time

import pytest
from tests.spec.house import Client, House, eventually, text

from twinbus import Condition, Faulted, PairedClientFaultedError, Route
from twinbus.broker import Fault, Kind
from twinbus.client import runtime

GRACE = 0.4  # where the real five seconds need not be waited for
ENOUGH = 2.0  # where something is done within them, on a busy machine too


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "GRACE", GRACE)


def conditions(client: Client) -> tuple[Condition, Condition, Condition]:
    status = client.status()
    return status.condition, status.primary_condition, status.secondary_condition


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("ended", ["primary", "secondary"])
def test_with_the_syphon_the_partner_of_a_closed_client_is_faulted_and_every_later_call_raises(
    house: House, kind: str, ended: str
) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, enable_syphon=True) as client:
        sender, receiver = client.get_queue_sender(queue.path), client.get_queue_receiver(queue.path)
        sender.send_messages(text())
        getattr(client, ended).close()
        cause = client.seen.next(Faulted).error
        partner = "secondary" if ended == "primary" else "primary"
        closed, faulted = Condition.CLOSED, Condition.FAULTED
        expected = (closed, faulted) if ended == "primary" else (faulted, closed)
        assert conditions(client) == (faulted, *expected)
        for call in (
            lambda: sender.send_messages(text()),
            lambda: sender.schedule_messages(text(), None),
            sender.create_message_batch,
            receiver.receive_messages,
            lambda: client.get_queue_sender(queue.path),
            lambda: client.fail_over(queue.path),
            lambda: getattr(client, partner).get_queue_sender(queue.path),
        ):
            with pytest.raises(PairedClientFaultedError, match=f"the {ended} client was closed"):
                call()
        assert isinstance(cause, PairedClientFaultedError)
        assert f"{ended} client was closed" in (client.status().fault or "")


@pytest.mark.usefixtures("short")
def test_with_the_syphon_the_partner_of_a_faulted_client_is_faulted_with_the_cause(house: House, kind: str) -> None:
    with house.client(kind, enable_syphon=True) as client:
        client.secondary.fault("out of order", OSError("for good"))
        eventually(lambda: conditions(client)[1] is Condition.FAULTED)
        with pytest.raises(PairedClientFaultedError, match="secondary client has faulted") as raised:
            client.primary.get_queue_sender("orders")
        causes, error = [], raised.value
        while error is not None:
            causes.append(str(error))
            error = error.__cause__  # type: ignore[assignment]
        assert "for good" in causes[-1]


def test_a_partner_that_is_closed_within_the_time_is_not_faulted(
    house: House, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "GRACE", ENOUGH)
    with house.client(kind, enable_syphon=True) as client:
        client.primary.close()
        client.secondary.close()
        time.sleep(1.5 * ENOUGH)
        assert conditions(client) == (Condition.CLOSED, Condition.CLOSED, Condition.CLOSED)
        assert client.status().fault is None


@pytest.mark.usefixtures("short")
def test_a_lost_connection_is_not_a_fault(house: House, kind: str) -> None:
    queue = house.queue(house.a_name())
    with house.client(kind, enable_syphon=True) as client:
        sender = client.get_queue_sender(queue.path)
        sender.send_messages(text())
        for side in (house.primary, house.secondary):
            side.call(side.namespace.faults.add, Fault(Kind.RESET, seconds=GRACE))
        time.sleep(3 * GRACE)
        assert conditions(client) == (Condition.OPEN,) * 3
        assert sender.send_messages(text()).route is Route.PRIMARY


@pytest.mark.usefixtures("short")
def test_without_the_syphon_nothing_happens_to_the_partner(house: House, kind: str) -> None:
    with house.client(kind) as client:
        client.secondary.close()
        time.sleep(2 * GRACE)
        assert conditions(client) == (Condition.OPEN, Condition.OPEN, Condition.CLOSED)
        queue = house.queue(house.a_name())
        assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.PRIMARY
