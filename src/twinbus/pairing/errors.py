"""What can go wrong in a pairing, beyond the errors of the SDK.

    ServiceBusError  (azure.servicebus.exceptions)
    └── TwinbusError
        ├── PairedClientFaultedError
        ├── BacklogUnavailableError
        ├── BacklogConfigurationError
        ├── BacklogNotReadyError
        ├── NamespacesSwappedError
        ├── ScheduledInBacklogError
        ├── EntityFailedOverError
        ├── AttemptTimeoutError    also an OperationTimeoutError
        └── EnvelopeTooLargeError  also a MessageSizeExceededError

Code that catches the SDK's `ServiceBusError` catches all of them. Bad options are a `ValueError` or `TypeError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusError


class TwinbusError(ServiceBusError):
    """The base of all errors of this package."""


class PairedClientFaultedError(TwinbusError):
    """The pairing was faulted, and every later call fails. `cause` says why; make a new client."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        because = f" Cause: {_in_short(cause)}." if cause else ""
        super().__init__(f"The paired client has faulted: {reason}.{because} Make a new one.", error=cause)
        self.reason = reason
        self.cause = cause
        self.__cause__ = cause


class BacklogUnavailableError(TwinbusError):
    """The primary entity cannot be used and no backlog queue took the message: it is stored nowhere.

    `primary_error` is why the primary was given up (None if the failover was forced), `backlog_errors` maps the path
    of each queue that was tried, or is out of rotation, to what went wrong there.
    """

    def __init__(
        self, entity: str, primary_error: BaseException | None, backlog_errors: Mapping[str, BaseException]
    ) -> None:
        primary = _in_short(primary_error) if primary_error else "failed over by hand"
        queues = "; ".join(f"{queue}: {_in_short(error)}" for queue, error in backlog_errors.items())
        super().__init__(
            f"The message for '{entity}' was not accepted anywhere. Primary: {primary}."
            f" Backlog: {queues or 'no queue was tried'}. Send it again later.",
            error=primary_error,
        )
        self.entity = entity
        self.primary_error = primary_error
        self.backlog_errors = dict(backlog_errors)
        self.__cause__ = next(reversed(self.backlog_errors.values()), primary_error)


class BacklogConfigurationError(TwinbusError):
    """A backlog queue exists with a property that would lose or refuse messages. It is left as it is."""

    def __init__(self, queue: str, property_name: str, value: object, why: str) -> None:
        super().__init__(
            f"The backlog queue '{queue}' cannot be used: its {property_name} is {value!r}, and {why}."
            " Change the queue, or delete it once it is empty."
        )
        self.queue = queue
        self.property_name = property_name
        self.value = value
        self.why = why


class BacklogNotReadyError(TwinbusError):
    """At start-up the backlog could not be made ready, and the options say `strict`."""

    def __init__(self, reason: str, cause: BaseException) -> None:
        super().__init__(f"The backlog is not ready: {reason}. Cause: {_in_short(cause)}.", error=cause)
        self.cause = cause
        self.__cause__ = cause


class NamespacesSwappedError(TwinbusError):
    """Primary and secondary seem to be exchanged, and no backlog queue was created.

    `queue` is a backlog queue of the secondary that exists in the primary; `missing` is the first one that the primary
    should have in the secondary. `primary` and `secondary` are the two hosts, as they were given.
    """

    def __init__(self, primary: str, secondary: str, queue: str, missing: str) -> None:
        super().__init__(
            f"Primary and secondary look swapped: '{primary}', given as the primary, holds the backlog queue '{queue}',"
            f" which belongs to '{secondary}', given as the secondary; and that one holds no backlog queue of its"
            " primary. Nothing was created. Exchange the two. If each is meant to be the other's secondary, create"
            f" the queue '{missing}' in '{secondary}'."
        )
        self.primary = primary
        self.secondary = secondary
        self.queue = queue
        self.missing = missing


class ScheduledInBacklogError(TwinbusError):
    """Messages scheduled during a failover cannot be cancelled: their numbers are negative and name no message.

    `sequence_numbers` are those that were refused; nothing was cancelled.
    """

    def __init__(self, entity: str, sequence_numbers: Sequence[int]) -> None:
        numbers = ", ".join(map(str, sequence_numbers))
        super().__init__(
            f"Cannot cancel {numbers} of '{entity}': negative numbers stand for messages that were scheduled through"
            " the backlog while the entity was failed over. Nothing was cancelled; leave those numbers out."
        )
        self.entity = entity
        self.sequence_numbers = tuple(sequence_numbers)


class EntityFailedOverError(TwinbusError):
    """The entity is failed over, and what was asked for can be done at the primary only. Ask again when it is back."""

    def __init__(self, entity: str, what: str) -> None:
        super().__init__(f"Cannot {what}: '{entity}' is failed over, and the backlog cannot do it. Try again later.")
        self.entity = entity


class AttemptTimeoutError(TwinbusError, OperationTimeoutError):
    """One attempt took longer than `attempt_timeout` and was broken off. The message may have arrived all the same."""

    def __init__(self, entity: str, seconds: float) -> None:
        OperationTimeoutError.__init__(
            self, message=f"The attempt to reach '{entity}' was broken off after {seconds:g} s."
        )
        self.entity = entity
        self.seconds = seconds


class EnvelopeTooLargeError(TwinbusError, MessageSizeExceededError):
    """A message fits the primary entity but not the backlog: the envelope adds to its size."""

    def __init__(self, entity: str, size: int, limit: int, overhead: int) -> None:
        MessageSizeExceededError.__init__(
            self,
            message=f"The message for '{entity}' has {size} bytes in the backlog, {overhead} of them for the envelope;"
            f" the limit is {limit} bytes.",
        )
        self.entity = entity
        self.size = size
        self.limit = limit
        self.overhead = overhead


def _in_short(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
