"""Applies the outcomes of deliveries, and builds the outcomes that confirm them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec import performatives as amqp

from .error_conditions import NOT_IMPLEMENTED, BrokerError

if TYPE_CHECKING:
    from ..entities.inbox import Done
    from ..entities.queue import Queue


def apply_outcome(queue: Queue, token: bytes, state: Any, done: Done) -> None:
    """Apply the outcome of a disposition to a locked message; raises `BrokerError`."""
    if state is None or isinstance(state, amqp.Accepted):
        queue.complete(token, done)
    elif isinstance(state, amqp.Released):
        queue.release(token, done)
    elif isinstance(state, amqp.Modified):
        changed = state.message_annotations if isinstance(state.message_annotations, dict) else None
        changed = {str(key): value for key, value in changed.items()} if changed else None
        if state.undeliverable_here:
            queue.defer(token, changed, done)
        else:
            # Also without `delivery_failed`, which the SDKs for .NET and JavaScript leave out when they abandon.
            queue.abandon(token, changed, done)
    elif isinstance(state, amqp.Rejected):
        info = state.error.info if isinstance(state.error, amqp.Error) else None
        queue.dead_letter_locked(token, {str(key): value for key, value in (info or {}).items()}, done)
    else:
        raise BrokerError(NOT_IMPLEMENTED, "This outcome is not supported.")


def echo(state: Any) -> Any:
    """The outcome that confirms an outcome; None means accepted."""
    if state is None or isinstance(state, amqp.Accepted):
        return None
    if isinstance(state, amqp.Released):
        return amqp.Released()
    if isinstance(state, amqp.Modified):
        return amqp.Modified(state.delivery_failed, state.undeliverable_here)
    if isinstance(state, amqp.TransactionalState):
        outcome = echo(state.outcome)
        return amqp.TransactionalState(state.txn_id, amqp.Accepted() if outcome is None else outcome)
    return amqp.Rejected()
