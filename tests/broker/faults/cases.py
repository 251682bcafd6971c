"""Which fault can strike which operation, what the SDK raises then, and what has happened all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from twinbus.broker import Fault, Kind, Operation


class Case(NamedTuple):
    """`error` is the SDK's exception, None if there is none. `done`: the operation was carried out all the same."""

    operation: Operation
    fault: Fault
    error: type[ServiceBusError] | None
    done: bool = False

    @property
    def name(self) -> str:
        extras = [self.fault.condition or "", "then reset" if self.fault.then_reset else ""]
        return " ".join([self.operation, self.fault.kind, *filter(None, extras)])

    def struck(self, entity: str | None) -> Fault:
        """The fault, for the next operation of this case only."""
        return replace(self.fault, entity=entity, on=frozenset({self.operation}), count=1)


_RESET = Fault(Kind.RESET)
_BLACKHOLE = Fault(Kind.BLACKHOLE)
_SLOW = Fault(Kind.SLOW, delay=0.1)
_DROP_ACK = Fault(Kind.DROP_ACK)
_DROP_ACK_THEN_RESET = Fault(Kind.DROP_ACK, then_reset=True)
_REJECT = Fault(Kind.REJECT)
_THROTTLE = Fault(Kind.THROTTLE)
_DETACH = Fault(Kind.DETACH)
_CLOSE = Fault(Kind.CLOSE)
_EXPIRE = Fault(Kind.EXPIRE)
_DISABLE = Fault(Kind.DISABLE)
_FILL = Fault(Kind.FILL)


def _rejected(condition: str) -> Fault:
    return Fault(Kind.REJECT, condition=condition)


ON_OPENING = [
    Case(Operation.TOKEN, _RESET, ServiceBusConnectionError),
    Case(Operation.TOKEN, _BLACKHOLE, OperationTimeoutError),
    Case(Operation.TOKEN, _SLOW, None),
    Case(Operation.TOKEN, _REJECT, ServiceBusAuthenticationError),
    Case(Operation.TOKEN, _THROTTLE, ServiceBusAuthenticationError),
    Case(Operation.TOKEN, _EXPIRE, ServiceBusAuthenticationError),
    Case(Operation.ATTACH, Fault(Kind.REFUSE), ServiceBusConnectionError),
    Case(Operation.ATTACH, _RESET, ServiceBusConnectionError),
    Case(Operation.ATTACH, _BLACKHOLE, OperationTimeoutError),
    Case(Operation.ATTACH, _SLOW, None),
    Case(Operation.ATTACH, _REJECT, ServiceBusError),
    Case(Operation.ATTACH, _rejected("amqp:not-found"), MessagingEntityNotFoundError),
    Case(Operation.ATTACH, _THROTTLE, ServiceBusServerBusyError),
    Case(Operation.ATTACH, _DETACH, ServiceBusConnectionError),
    Case(Operation.ATTACH, _CLOSE, ServiceBusError),
    Case(Operation.ATTACH, _EXPIRE, ServiceBusAuthorizationError),
    Case(Operation.ATTACH, _DISABLE, MessagingEntityDisabledError),
]
ON_SENDING = [
    Case(Operation.SEND, _RESET, ServiceBusConnectionError),
    Case(Operation.SEND, _BLACKHOLE, OperationTimeoutError),
    Case(Operation.SEND, _SLOW, None, done=True),
    Case(Operation.SEND, _DROP_ACK, OperationTimeoutError, done=True),
    Case(Operation.SEND, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(Operation.SEND, _REJECT, ServiceBusError),
    Case(Operation.SEND, _rejected("amqp:not-found"), MessagingEntityNotFoundError),
    Case(Operation.SEND, _rejected("amqp:unauthorized-access"), ServiceBusAuthorizationError),
    Case(Operation.SEND, _THROTTLE, ServiceBusServerBusyError),
    Case(Operation.SEND, _DETACH, ServiceBusConnectionError),
    Case(Operation.SEND, _CLOSE, ServiceBusConnectionError),
    Case(Operation.SEND, _EXPIRE, ServiceBusConnectionError),
    Case(Operation.SEND, _DISABLE, MessagingEntityDisabledError),
    Case(Operation.SEND, _FILL, ServiceBusQuotaExceededError),
]
ON_MANAGEMENT = [
    Case(Operation.MANAGEMENT, _RESET, ServiceBusConnectionError),
    Case(Operation.MANAGEMENT, _BLACKHOLE, OperationTimeoutError),
    Case(Operation.MANAGEMENT, _SLOW, None, done=True),
    Case(Operation.MANAGEMENT, _DROP_ACK, OperationTimeoutError, done=True),
    Case(Operation.MANAGEMENT, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(Operation.MANAGEMENT, _REJECT, ServiceBusError),
    Case(Operation.MANAGEMENT, _THROTTLE, ServiceBusServerBusyError),
    Case(Operation.MANAGEMENT, _CLOSE, ServiceBusError),
    Case(Operation.MANAGEMENT, _EXPIRE, ServiceBusError),
    Case(Operation.MANAGEMENT, _DISABLE, MessagingEntityDisabledError),
    Case(Operation.MANAGEMENT, _FILL, ServiceBusQuotaExceededError),
]
# A delivery that is reset stays locked, as if it was lost on the way; what the service refuses it gives again.
ON_RECEIVING = [
    Case(Operation.RECEIVE, _RESET, ServiceBusConnectionError, done=True),
    Case(Operation.RECEIVE, _SLOW, None, done=True),
    Case(Operation.RECEIVE, _DETACH, ServiceBusConnectionError),
    Case(Operation.RECEIVE, _CLOSE, ServiceBusError),
    Case(Operation.RECEIVE, _EXPIRE, ServiceBusAuthorizationError),
    Case(Operation.RECEIVE, _DISABLE, MessagingEntityDisabledError),
]
# After a detach the SDK settles through $management, and succeeds.
ON_SETTLING = [
    Case(Operation.SETTLE, _RESET, ServiceBusConnectionError),
    Case(Operation.SETTLE, _SLOW, None, done=True),
    Case(Operation.SETTLE, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(Operation.SETTLE, _REJECT, ServiceBusError),
    Case(Operation.SETTLE, _rejected("com.microsoft:message-lock-lost"), MessageLockLostError),
    Case(Operation.SETTLE, _THROTTLE, ServiceBusServerBusyError),
    Case(Operation.SETTLE, _DETACH, None, done=True),
    Case(Operation.SETTLE, _CLOSE, ServiceBusConnectionError),
    Case(Operation.SETTLE, _EXPIRE, ServiceBusError),
]
CASES = [*ON_OPENING, *ON_SENDING, *ON_MANAGEMENT, *ON_RECEIVING, *ON_SETTLING]
