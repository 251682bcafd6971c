"""A backlog queue that does not take messages leaves the rotation, and the message goes to the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.pairing.paired import KINDS, Pair, Stage, text

from twinbus.emulator import FaultKind, FaultPoint, QueueDescription
from twinbus.pairing.events import BacklogQueueRetired
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import AttemptTimeoutError, BacklogUnavailableError

TIMEOUT = 3.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(stage: Stage, kind: str) -> Iterator[Pair]:
    with stage.pair(kind, attempt_timeout=TIMEOUT, create_backlog=False) as made:
        made.pairing.fail_over(made.path)
        made.events.clear()
        yield made
        stage.clear()


def set_status(pair: Pair, index: int, status: str) -> None:
    namespace, path = pair.secondary.namespace, pair.pairing.queue_path(index)
    found = namespace.find(path)
    assert found is not None
    description = found.description
    assert isinstance(description, QueueDescription)
    pair.secondary.run(namespace.update(replace(description, status=status)))


def delete(pair: Pair, index: int) -> None:
    pair.secondary.run(pair.secondary.namespace.delete(pair.pairing.queue_path(index)))


# What can be wrong with a queue, and what the SDK makes of it when a link is open and when it is not.
TROUBLES: dict[str, Callable[[Pair, int], object]] = {
    "unreachable": lambda pair, index: [pair.strike_queue(index, kind) for kind in (FaultKind.REFUSE, FaultKind.RESET)],
    "silent": lambda pair, index: pair.strike_queue(index, FaultKind.BLACKHOLE),
    "full": lambda pair, index: pair.strike_queue(index, FaultKind.FILL),
    "disabled": lambda pair, index: set_status(pair, index, "Disabled"),
    "send-disabled": lambda pair, index: set_status(pair, index, "SendDisabled"),
    "deleted": delete,
    "forbidden": lambda pair, index: pair.strike_queue(
        index,
        FaultKind.REJECT,
        condition="amqp:unauthorized-access",
        on=frozenset({FaultPoint.ATTACH, FaultPoint.SEND}),
    ),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["new link", "open link"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_message_goes_to_another_queue_and_every_sender_learns_of_it(
    pair: Pair, trouble: str, is_open: bool
) -> None:
    sender = pair.sender()
    if is_open:
        first = next(
            index for index in range(3) if pair.pairing.queue_path(index) == sender.send_messages(text()).queue
        )
    else:
        picked = pair.pairing.choose_queue(sender._delivery._choice)
        assert picked is not None
        first = picked
    before = sum(pair.stored)
    TROUBLES[trouble](pair, first)
    receipt = sender.send_messages(text("stored elsewhere"))
    path = pair.pairing.queue_path(first)
    assert (receipt.route, receipt.queue != path) == (Route.BACKLOG, True)
    if trouble == "silent" and is_open:
        # An open link that does not answer proves nothing by itself: the pairing will ask.
        assert pair.events.all(BacklogQueueRetired) == []
    else:
        assert [event.queue for event in pair.events.all(BacklogQueueRetired)] == [path]
        others = {pair.sender().send_messages(text()).queue for _ in range(4)}
        assert path not in others
    if trouble not in ("deleted", "silent"):
        assert sum(pair.stored) > before


@pytest.mark.parametrize("trouble", ["disabled", "deleted", "forbidden", "full"])
def test_with_order_session_a_queue_that_refuses_is_skipped_for_a_new_session(
    stage: Stage, kind: str, trouble: str
) -> None:
    with stage.pair(kind, order="session", create_backlog=False) as pair:
        pair.pairing.fail_over(pair.path)
        sender = pair.sender()
        queue = sender.send_messages(text(session_id="a")).queue
        index = next(index for index in range(3) if pair.pairing.queue_path(index) == queue)
        TROUBLES[trouble](pair, index)
        with pytest.raises(BacklogUnavailableError):  # rather nowhere than out of order
            sender.send_messages(text(session_id="a"))
        receipts = [sender.send_messages(text(session_id=f"new-{number}")) for number in range(6)]
        assert queue not in {receipt.queue for receipt in receipts}
        stage.clear()


def test_if_no_queue_is_left_the_error_has_every_cause(pair: Pair) -> None:
    pair.strike_queue(0, FaultKind.FILL)
    set_status(pair, 1, "Disabled")
    delete(pair, 2)
    with pytest.raises(BacklogUnavailableError, match="was not accepted anywhere") as raised:
        pair.sender().send_messages(text())
    names = {path.rsplit("/", 1)[1]: type(error).__name__ for path, error in raised.value.backlog_errors.items()}
    assert names == {
        "0": "ServiceBusQuotaExceededError",
        "1": "MessagingEntityDisabledError",
        "2": "EntityNotFoundError",
    }
    assert not raised.value.may_be_accepted


def test_unanswered_attempt_may_be_accepted(pair: Pair) -> None:
    for index in range(3):
        pair.strike_queue(index, FaultKind.DROP_ACK, on=frozenset({FaultPoint.SEND}))
    with pytest.raises(BacklogUnavailableError, match="may have been accepted") as raised:
        pair.sender().send_messages(text())
    assert raised.value.may_be_accepted
    assert {type(error) for error in raised.value.backlog_errors.values()} == {AttemptTimeoutError}
    assert sum(pair.stored) == 3
