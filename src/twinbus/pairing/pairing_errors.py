"""Defines the errors of a pairing, beyond those of the SDK.

    ServiceBusError  (azure.servicebus.exceptions)
    └── TwinbusError
        ├── PairedClientFaultedError
        │   └── ForkedClientError
        ├── BacklogUnavailableError
        ├── BacklogConfigurationError
        ├── BacklogNotReadyError
        ├── NamespacesSwappedError
        ├── ScheduledInBacklogError
        ├── EntityFailedOverError
        ├── EntityNotFoundError    also a MessagingEntityNotFoundError
        ├── AttemptTimeoutError    also an OperationTimeoutError
        ├── NoFreeLinkError        also an OperationTimeoutError
        ├── HungCallsError         also an OperationTimeoutError
        └── EnvelopeTooLargeError  also a MessageSizeExceededError

Code that catches the SDK's `ServiceBusError` catches all of them. Invalid options raise `ValueError` or `TypeError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
)


class TwinbusError(ServiceBusError):
    """Base class of all errors of this package."""


class PairedClientFaultedError(TwinbusError):
    """The pairing has faulted: every call fails. `cause` says why; make a new client."""

    def __init__(self, reason: str, cause: BaseException | None = None, *, advice: str = "Make a new one.") -> None:
        because = f" Cause: {_in_short(cause)}." if cause else ""
        super().__init__(f"The paired client has faulted: {reason}.{because} {advice}", error=cause)
        self.reason = reason
        self.cause = cause
        self.__cause__ = cause


class ForkedClientError(PairedClientFaultedError):
    """The client is used in a process forked after it was made. `made_in` is the process that made it."""

    def __init__(self, made_in: int, process: int) -> None:
        super().__init__(
            f"it was made in process {made_in}, and this is its fork, process {process}",
            advice="Make the client after the fork: with gunicorn's preload_app in the hook post_fork, with"
            " multiprocessing in the worker function or in the initializer of the pool.",
        )
        self.made_in = made_in


class BacklogUnavailableError(TwinbusError):
    """The primary entity is unavailable and no backlog queue took the message.

    `primary_error` is why the primary failed (None if the failover was forced); `backlog_errors` maps the path of each
    queue that was tried, or is out of rotation, to its error. With `may_be_accepted` an attempt got no answer: the
    message may be stored, and a resend may arrive twice. Otherwise it is not stored.

    Messages that do not fit one batch are stored in parts. `accepted_ids` are the ids of the first messages, which were
    certainly stored before the error. Resend all messages with their ids: duplicate detection removes those.
    """

    def __init__(
        self,
        entity: str,
        primary_error: BaseException | None,
        backlog_errors: Mapping[str, BaseException],
        *,
        may_be_accepted: bool = False,
        message_ids: Sequence[str] = (),
        accepted: int = 0,
    ) -> None:
        not_tried = "not tried (failed over by hand, or earlier messages of the session are in the backlog)"
        primary = _in_short(primary_error) if primary_error else not_tried
        queues = "; ".join(f"{queue}: {_in_short(error)}" for queue, error in backlog_errors.items())
        subject = "The message"
        result = "may have been accepted: an attempt got no answer" if may_be_accepted else "was not accepted anywhere"
        if accepted:
            subject = f"The first {accepted} of {len(message_ids)} messages"
            result = "were accepted by the backlog, the others " + (
                "may have been: an attempt got no answer" if may_be_accepted else "were not"
            )
        super().__init__(
            f"{subject} for '{entity}' {result}. Primary: {primary}."
            f" Backlog: {queues or 'no queue was tried'}. Send it again later, with the same message_id.",
            error=primary_error,
        )
        self.entity = entity
        self.may_be_accepted = may_be_accepted
        self.accepted_ids = tuple(message_ids[:accepted])
        self.primary_error = primary_error
        self.backlog_errors = dict(backlog_errors)
        self.__cause__ = next(reversed(self.backlog_errors.values()), primary_error)


class BacklogConfigurationError(TwinbusError):
    """A backlog queue has a property that would lose or refuse messages. The queue is left unchanged."""

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
    """The backlog could not be made ready at the start, with the option `strict`."""

    def __init__(self, reason: str, cause: BaseException) -> None:
        super().__init__(f"The backlog is not ready: {reason}. Cause: {_in_short(cause)}.", error=cause)
        self.cause = cause
        self.__cause__ = cause


class NamespacesSwappedError(TwinbusError):
    """Primary and secondary look swapped. No backlog queue was created.

    `queue` is a backlog queue of the secondary that exists in the primary; `missing` is the first queue that the
    primary should have in the secondary. `primary` and `secondary` are the two hosts as given.
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
    """A message scheduled during a failover cannot be cancelled: its negative number names no message.

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
    """The entity is failed over, and the operation needs the primary. Try again after recovery."""

    def __init__(self, entity: str, action: str) -> None:
        super().__init__(f"Cannot {action}: '{entity}' is failed over, and the backlog cannot do it. Try again later.")
        self.entity = entity


class EntityNotFoundError(TwinbusError, MessagingEntityNotFoundError):
    """The namespace has no such queue, topic or subscription. `namespace` is its host."""

    def __init__(self, entity: str, namespace: str, cause: ServiceBusError) -> None:
        MessagingEntityNotFoundError.__init__(
            self,
            message=f"The namespace '{namespace}' has no entity '{entity}'. Check the name, or create the entity.",
            error=cause,
        )
        self.entity = entity
        self.namespace = namespace
        self.__cause__ = cause


class AttemptTimeoutError(TwinbusError, OperationTimeoutError):
    """An attempt got no answer within its timeout.

    The message may still have arrived, unless `is_unsent`: then no link was open.
    """

    def __init__(self, entity: str, seconds: float, *, is_unsent: bool = False) -> None:
        what = f"No link to '{entity}' was open" if is_unsent else f"'{entity}' did not answer"
        OperationTimeoutError.__init__(self, message=f"{what} within {seconds:.4g} s.")
        self.entity = entity
        self.seconds = seconds
        self.is_unsent = is_unsent


class NoFreeLinkError(TwinbusError, OperationTimeoutError):
    """The call timed out before it had a link: nothing was sent, and this says nothing about the namespace."""

    def __init__(self, entity: str, max_links: int, seconds: float, is_in_use: bool = True) -> None:
        if is_in_use:
            links, advice = "The link" if max_links == 1 else f"All {max_links} links", "Raise max_links, or allow"
            text = f"{links} of this sender to '{entity}' were in use by other calls for {seconds:.3g} s."
        else:
            text, advice = f"No link to '{entity}' was open within {seconds:.3g} s: it has not answered yet.", "Allow"
        OperationTimeoutError.__init__(
            self, message=f"{text} Nothing was tried: the message was not sent. {advice} a longer timeout."
        )
        self.entity = entity
        self.max_links = max_links
        self.seconds = seconds

    @classmethod
    def for_session(cls, entity: str, session: str, seconds: float) -> NoFreeLinkError:
        """Return the error for a call that earlier calls of its session kept waiting until its timeout."""
        error = cls(entity, 1, seconds)
        error.message = (
            f"Earlier calls for session '{session}' of '{entity}' took all of the call's {seconds:.3g} s. Nothing was"
            " tried: the message was not sent. Allow a longer timeout, or use more sessions."
        )
        error.args = (error.message,)
        return error


class HungCallsError(TwinbusError, OperationTimeoutError):
    """Abandoned calls hang in the SDK and fill all links: no more calls are made."""

    def __init__(self, entity: str, count: int) -> None:
        OperationTimeoutError.__init__(
            self,
            message=f"{count} calls to '{entity}' hang in the SDK, which offers no way to end them: no new link is"
            " opened until one of them returns.",
        )
        self.entity = entity
        self.count = count


class EnvelopeTooLargeError(TwinbusError, MessageSizeExceededError):
    """A message fits the primary entity but not the backlog, because of its envelope."""

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
