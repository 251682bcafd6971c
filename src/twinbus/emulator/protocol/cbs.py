"""Answers `$cbs`: accepts the tokens that clients put."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..auth.refusals import log_refusal, policies_in
from ..auth.security import UnauthorizedError, owner_of
from .addresses import path_of
from .error_conditions import ARGUMENT_ERROR, NOT_IMPLEMENTED, UNAUTHORIZED, BrokerError, not_found
from .requests import Request, Response, Subject

if TYPE_CHECKING:
    from ..server.namespace import Namespace
    from .connection import Connection


MAX_AUDIENCE = 1024


class CbsNode:
    """The `$cbs` request node."""

    max_request = 128 * 1024
    STATUS = "status-code"
    DESCRIPTION = "status-description"
    path: str | None = None

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def subject(self, request: Request) -> Subject:
        return Subject(path_of(str(request.properties.get("name", ""))))

    async def answer(self, request: Request, connection: Connection) -> Response:
        """Answer put-token: 202 for a good token, 401 for a bad one, 404 if the entity does not exist."""
        try:
            return self._put_token(request, connection)
        except BrokerError as error:
            audience = self.subject(request).path
            log_refusal(self._namespace, "a token for", audience, str(error), lambda: policies_in(request.body))
            raise

    def _put_token(self, request: Request, connection: Connection) -> Response:
        if request.text("operation") != "put-token":
            raise BrokerError(NOT_IMPLEMENTED, "$cbs knows the operation put-token.")
        audience = path_of(request.text("name"))
        if len(audience) > MAX_AUDIENCE:
            raise BrokerError(ARGUMENT_ERROR, f"'name' must have at most {MAX_AUDIENCE} characters after the host.")
        token = request.body
        if isinstance(token, bytes):
            token = token.decode("utf-8", "replace")
        if not isinstance(token, str):
            raise BrokerError(ARGUMENT_ERROR, "The body of put-token must be the token as a string.")
        try:
            grant = self._namespace.verify(str(token), audience)
        except UnauthorizedError as error:
            raise BrokerError(UNAUTHORIZED, error.message) from error
        if owner_of(audience) and self._namespace.entities.find(owner_of(audience)) is None:
            raise not_found(audience)
        connection.trust(audience.lower(), grant)
        return Response(202, "Accepted")
