"""Maps errors to HTTP responses with the service's status codes and texts."""

from __future__ import annotations

from collections.abc import Mapping

from twinbus.emulator.admin.markup import InvalidMarkupError
from twinbus.emulator.admin.registry import EntityExistsError, NoSuchEntityError
from twinbus.emulator.auth.security import UnauthorizedError
from twinbus.emulator.storage.store import StoreError
from twinbus.servicebus.property_bounds import InvalidDescriptionError

_CONFLICT = "You're requesting an operation that isn't allowed in the resource's current state."


class RequestError(Exception):
    """A request to answer with an error status. `detail` is sent to the client and must not contain secrets."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


AnyRequestError = (
    RequestError
    | UnauthorizedError
    | InvalidDescriptionError
    | InvalidMarkupError
    | EntityExistsError
    | NoSuchEntityError
    | StoreError
)


def request_error_for(error: AnyRequestError) -> RequestError:
    """The HTTP error for a request that failed with `error`."""
    match error:
        case RequestError():
            return error
        case UnauthorizedError():
            return RequestError(401, error.message)
        case InvalidDescriptionError():
            return RequestError(400, f"SubCode=40000. {error.message}")
        case InvalidMarkupError():
            return RequestError(400, f"SubCode=40000. {error}")
        case EntityExistsError():
            return RequestError(409, f"SubCode=40900. Conflict. {_CONFLICT} {error}")
        case NoSuchEntityError():
            return RequestError(404, f"SubCode=40400. Not Found. {error}")
        case StoreError():
            return RequestError(500, f"SubCode=50000. {error}.")
