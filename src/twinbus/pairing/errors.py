"""What can go wrong in a pairing, beyond the errors of the SDK.

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

Code that catches the SDK's `ServiceBusError` catches all of them. Bad options are a `ValueError` or `TypeError`.
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
    """The base of all errors of this package."""


class PairedClientFaultedError(TwinbusError):
    """The pairing was faulted, and every later call fails. `cause` says why; make a new client."""

    def __init__(self, reason: str, cause: BaseException | None = None, *, advice: str = "Make a new one.") -> None:
        because = f" Cause: {_in_short(cause)}." if cause else ""
        super().__init__(f"The paired client has faulted: {reason}.{because} {advice}", error=cause)
        self.reason = reason
        self.cause = cause
        self.__cause__ = cause


class ForkedClientError(PairedClientFaultedError):
    """The client is used in a process that was forked after it was made. `made_in` is the process that has made it."""

    def __init__(self, made_in: int, process: int) -> None:
        super().__init__(
            f"it was made in process {made_in}, and this is a fork of that, process {process}",
            advice="Make the client after the fork: with gunicorn's preload_app in the hook post_fork, with"
            " multiprocessing in the worker function or in the initializer of the pool.",
        )
        self.made_in = made_in


class BacklogUnavailableError(TwinbusError):
    """The primary entity cannot be used and no backlog queue took the message.

    `primary_error` is why the primary was given up (None if the failover was forced), `backlog_errors` maps the path
    of each queue that was tried, or is out of rotation, to what went wrong there. With `may_be_accepted` an attempt got
    no answer: the message may be stored all the same, and sent again it may arrive twice. Otherwise it is nowhere.

    Messages that do not fit one batch are stored in parts. `accepted_ids` are the ids of those that were stored for
    certain before the error, from the first on. Sent again all with their ids, duplicate detection removes those.
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
        primary = _in_short(primary_error) if primary_error else "failed over by hand"
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
    """One attempt got no answer in its time and was given up.

    The message may have arrived all the same, unless `is_unsent`: then there was not even a link.
    """

    def __init__(self, entity: str, seconds: float, *, is_unsent: bool = False) -> None:
        what = f"No link to '{entity}' was open" if is_unsent else f"'{entity}' did not answer"
        OperationTimeoutError.__init__(self, message=f"{what} within {seconds:.4g} s.")
        self.entity = entity
        self.seconds = seconds
        self.is_unsent = is_unsent


class NoFreeLinkError(TwinbusError, OperationTimeoutError):
    """The call's time was over before it had a link of its own: nothing was sent, and this says nothing about the
    namespace. Raise `max_links`, use more senders, or give calls more time."""

    def __init__(self, entity: str, max_links: int, seconds: float) -> None:
        links = "The link" if max_links == 1 else f"All {max_links} links"
        OperationTimeoutError.__init__(
            self,
            message=f"{links} of this sender to '{entity}' were in use by other calls for {seconds:.3g} s. Nothing was"
            " tried: the message was not sent. Raise max_links, or allow a longer timeout.",
        )
        self.entity = entity
        self.max_links = max_links
        self.seconds = seconds

    @classmethod
    def for_session(cls, entity: str, session: str, seconds: float) -> NoFreeLinkError:
        """Earlier calls of the same session took all of the call's time, where order within sessions is kept."""
        error = cls(entity, 1, seconds)
        error.message = (
            f"Earlier calls for session '{session}' of '{entity}' took all of the call's {seconds:.3g} s. Nothing was"
            " tried: the message was not sent. Allow a longer timeout, or use more sessions."
        )
        error.args = (error.message,)
        return error


class HungCallsError(TwinbusError, OperationTimeoutError):
    """Calls that were given up on still hang in the SDK, as many as there may be links: no more are made."""

    def __init__(self, entity: str, count: int) -> None:
        OperationTimeoutError.__init__(
            self,
            message=f"{count} calls to '{entity}' hang in the SDK, which offers no way to end them: no new link is"
            " opened until one of them returns.",
        )
        self.entity = entity
        self.count = count


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
