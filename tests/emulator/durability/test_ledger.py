"""The checker of the crash tests detects every kind of violation."""

from __future__ import annotations

from tests.emulator.durability.ledger import DeletingLedger, Ledger, StoredMessage

from twinbus.emulator.storage.schema import State


def _stored(message_id: str, state: State = State.ACTIVE, dead: bool = False) -> StoredMessage:
    return StoredMessage(message_id, state, dead, 1, None, 10, None)


def test_unconfirmed_operations_may_have_happened_or_not() -> None:
    ledger = Ledger(
        attempted={"a", "b", "c", "d"},
        acknowledged={"a", "b", "c"},
        completing={"a"},
        deferring={"b"},
        dead_lettering={"c"},
    )
    assert not ledger.verify([_stored("b", State.DEFERRED), _stored("c", dead=True)])
    assert not ledger.verify([_stored("a"), _stored("b"), _stored("c"), _stored("d")])


def test_missing_acknowledged_message_is_lost() -> None:
    assert Ledger(attempted={"a"}, acknowledged={"a"}).verify([]).lost == {"a"}


def test_completed_message_that_reappears_is_resurrected() -> None:
    ledger = Ledger(attempted={"a", "b"}, completing={"a", "b"}, completed={"a", "b"})
    ledger.arrived("b")
    assert ledger.verify([_stored("a")]).resurrected == {"a", "b"}


def test_message_stored_twice_is_duplicated() -> None:
    ledger = Ledger(attempted={"a"}, dead_lettering={"a"})
    assert ledger.verify([_stored("a"), _stored("a", dead=True)]).duplicated == {"a"}


def test_message_without_a_send_is_unexpected() -> None:
    assert Ledger().verify([_stored("a")]).unexpected == {"a"}


def test_deferred_or_dead_lettered_message_in_another_state_is_misplaced() -> None:
    both = {"a", "b"}
    ledger = Ledger(both, both, deferring={"a"}, deferred={"a"}, dead_lettering={"b"}, dead_lettered={"b"})
    assert ledger.verify([_stored("a"), _stored("b")]).misplaced == both
    assert not ledger.verify([_stored("a", State.DEFERRED), _stored("b", dead=True)])


def test_deleting_receiver_may_lose_only_messages_in_flight() -> None:
    ledger = DeletingLedger(attempted={"a", "b"}, acknowledged={"a", "b"}, under_way=2)
    assert not ledger.verify([])
    ledger.under_way = 1
    assert ledger.verify([]).lost == {"a", "b"}


def test_a_deleting_receiver_must_not_get_a_message_twice() -> None:
    ledger = DeletingLedger(attempted={"a"}, acknowledged={"a"})
    ledger.arrived("a")
    assert ledger.verify([_stored("a")]).resurrected == {"a"}
    ledger.arrived("a")
    assert ledger.verify([]).duplicated == {"a"}
