"""Lists fault cases by fault point: the error the SDK raises, and whether the operation was done."""

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

from twinbus.emulator import Fault, FaultKind, FaultPoint


class Case(NamedTuple):
    """`error` is the SDK's exception or None; `done` tells whether the operation was done anyway."""

    operation: FaultPoint
    fault: Fault
    error: type[ServiceBusError] | None
    done: bool = False

    @property
    def name(self) -> str:
        extras = [self.fault.condition or "", "then reset" if self.fault.then_reset else ""]
        return " ".join([self.operation, self.fault.kind, *filter(None, extras)])

    def struck(self, entity: str | None) -> Fault:
        """The fault, limited to the next operation of this case."""
        return replace(self.fault, entity=entity, on=frozenset({self.operation}), count=1)


_RESET = Fault(FaultKind.RESET)
_BLACKHOLE = Fault(FaultKind.BLACKHOLE)
_SLOW = Fault(FaultKind.SLOW, delay=0.1)
_DROP_ACK = Fault(FaultKind.DROP_ACK)
_DROP_ACK_THEN_RESET = Fault(FaultKind.DROP_ACK, then_reset=True)
_REJECT = Fault(FaultKind.REJECT)
_THROTTLE = Fault(FaultKind.THROTTLE)
_DETACH = Fault(FaultKind.DETACH)
_CLOSE = Fault(FaultKind.CLOSE)
_EXPIRE = Fault(FaultKind.EXPIRE)
_DISABLE = Fault(FaultKind.DISABLE)
_FILL = Fault(FaultKind.FILL)


def _rejected(condition: str) -> Fault:
    return Fault(FaultKind.REJECT, condition=condition)


ON_OPENING = [
    Case(FaultPoint.TOKEN, _RESET, ServiceBusConnectionError),
    Case(FaultPoint.TOKEN, _BLACKHOLE, OperationTimeoutError),
    Case(FaultPoint.TOKEN, _SLOW, None),
    Case(FaultPoint.TOKEN, _REJECT, ServiceBusAuthenticationError),
    Case(FaultPoint.TOKEN, _THROTTLE, ServiceBusAuthenticationError),
    Case(FaultPoint.TOKEN, _EXPIRE, ServiceBusAuthenticationError),
    Case(FaultPoint.ATTACH, Fault(FaultKind.REFUSE), ServiceBusConnectionError),
    Case(FaultPoint.ATTACH, _RESET, ServiceBusConnectionError),
    Case(FaultPoint.ATTACH, _BLACKHOLE, OperationTimeoutError),
    Case(FaultPoint.ATTACH, _SLOW, None),
    Case(FaultPoint.ATTACH, _REJECT, ServiceBusError),
    Case(FaultPoint.ATTACH, _rejected("amqp:not-found"), MessagingEntityNotFoundError),
    Case(FaultPoint.ATTACH, _THROTTLE, ServiceBusServerBusyError),
    Case(FaultPoint.ATTACH, _DETACH, ServiceBusConnectionError),
    Case(FaultPoint.ATTACH, _CLOSE, ServiceBusError),
    Case(FaultPoint.ATTACH, _EXPIRE, ServiceBusAuthorizationError),
    Case(FaultPoint.ATTACH, _DISABLE, MessagingEntityDisabledError),
]
ON_SENDING = [
    Case(FaultPoint.SEND, _RESET, ServiceBusConnectionError),
    Case(FaultPoint.SEND, _BLACKHOLE, OperationTimeoutError),
    Case(FaultPoint.SEND, _SLOW, None, done=True),
    Case(FaultPoint.SEND, _DROP_ACK, OperationTimeoutError, done=True),
    Case(FaultPoint.SEND, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(FaultPoint.SEND, _REJECT, ServiceBusError),
    Case(FaultPoint.SEND, _rejected("amqp:not-found"), MessagingEntityNotFoundError),
    Case(FaultPoint.SEND, _rejected("amqp:unauthorized-access"), ServiceBusAuthorizationError),
    Case(FaultPoint.SEND, _THROTTLE, ServiceBusServerBusyError),
    Case(FaultPoint.SEND, _DETACH, ServiceBusConnectionError),
    Case(FaultPoint.SEND, _CLOSE, ServiceBusConnectionError),
    Case(FaultPoint.SEND, _EXPIRE, ServiceBusConnectionError),
    Case(FaultPoint.SEND, _DISABLE, MessagingEntityDisabledError),
    Case(FaultPoint.SEND, _FILL, ServiceBusQuotaExceededError),
]
ON_MANAGEMENT = [
    Case(FaultPoint.MANAGEMENT, _RESET, ServiceBusConnectionError),
    Case(FaultPoint.MANAGEMENT, _BLACKHOLE, OperationTimeoutError),
    Case(FaultPoint.MANAGEMENT, _SLOW, None, done=True),
    Case(FaultPoint.MANAGEMENT, _DROP_ACK, OperationTimeoutError, done=True),
    Case(FaultPoint.MANAGEMENT, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(FaultPoint.MANAGEMENT, _REJECT, ServiceBusError),
    Case(FaultPoint.MANAGEMENT, _THROTTLE, ServiceBusServerBusyError),
    Case(FaultPoint.MANAGEMENT, _CLOSE, ServiceBusError),
    Case(FaultPoint.MANAGEMENT, _EXPIRE, ServiceBusError),
    Case(FaultPoint.MANAGEMENT, _DISABLE, MessagingEntityDisabledError),
    Case(FaultPoint.MANAGEMENT, _FILL, ServiceBusQuotaExceededError),
]
# After a reset the delivery stays locked, as if lost in flight; a refused delivery is released.
ON_RECEIVING = [
    Case(FaultPoint.RECEIVE, _RESET, ServiceBusConnectionError, done=True),
    Case(FaultPoint.RECEIVE, _SLOW, None, done=True),
    Case(FaultPoint.RECEIVE, _DETACH, ServiceBusConnectionError),
    Case(FaultPoint.RECEIVE, _CLOSE, ServiceBusError),
    Case(FaultPoint.RECEIVE, _EXPIRE, ServiceBusAuthorizationError),
    Case(FaultPoint.RECEIVE, _DISABLE, MessagingEntityDisabledError),
]
# After a detach the SDK settles through $management, and succeeds.
ON_SETTLING = [
    Case(FaultPoint.SETTLE, _RESET, ServiceBusConnectionError),
    Case(FaultPoint.SETTLE, _SLOW, None, done=True),
    Case(FaultPoint.SETTLE, _DROP_ACK_THEN_RESET, ServiceBusConnectionError, done=True),
    Case(FaultPoint.SETTLE, _REJECT, ServiceBusError),
    Case(FaultPoint.SETTLE, _rejected("com.microsoft:message-lock-lost"), MessageLockLostError),
    Case(FaultPoint.SETTLE, _THROTTLE, ServiceBusServerBusyError),
    Case(FaultPoint.SETTLE, _DETACH, None, done=True),
    Case(FaultPoint.SETTLE, _CLOSE, ServiceBusConnectionError),
    Case(FaultPoint.SETTLE, _EXPIRE, ServiceBusError),
]
CASES = [*ON_OPENING, *ON_SENDING, *ON_MANAGEMENT, *ON_RECEIVING, *ON_SETTLING]
