"""How a request is refused: the service's status codes and words for what went wrong."""

from __future__ import annotations

from collections.abc import Mapping

from twinbus.broker.admin.markup import InvalidMarkup
from twinbus.broker.admin.registry import EntityExists, EntityNotFound
from twinbus.broker.bounds import InvalidDescription
from twinbus.broker.security import Unauthorized
from twinbus.broker.store import StoreError

_CONFLICT = "You're requesting an operation that isn't allowed in the resource's current state."


class Refusal(Exception):  # noqa: N818 - an answer, not a mistake of the program
    """A request that is answered with an error. `detail` is shown to the client: it must hold no secret."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


Refused = Refusal | Unauthorized | InvalidDescription | InvalidMarkup | EntityExists | EntityNotFound | StoreError


def refusal_for(error: Refused) -> Refusal:
    """The answer to a request that failed with `error`."""
    match error:
        case Refusal():
            return error
        case Unauthorized():
            return Refusal(401, error.message)
        case InvalidDescription():
            return Refusal(400, f"SubCode=40000. {error.message}")
        case InvalidMarkup():
            return Refusal(400, f"SubCode=40000. {error}")
        case EntityExists():
            return Refusal(409, f"SubCode=40900. Conflict. {_CONFLICT} {error}")
        case EntityNotFound():
            return Refusal(404, f"SubCode=40400. Not Found. {error}")
        case StoreError():
            return Refusal(500, f"SubCode=50000. {error}.")
