"""Bounds how long a synchronous credential may take.

Python cannot stop a foreign call, so it runs on a daemon thread. There is at most one such thread per credential and
scope: the next call that needs the token waits for the same result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from azure.servicebus.exceptions import ServiceBusConnectionError

from ..forks import watch_forks
from .deadline import is_given_up, seconds_left

#: Seconds for a credential; an attempt ends after `attempt_timeout` anyway.
TOKEN_TIMEOUT = 60.0
#: Seconds between two checks whether the waiting call was abandoned.
LOOK_EVERY = 0.1


def no_token(seconds: float) -> ServiceBusConnectionError:
    """Return the error for a slow credential: an SDK error, because the SDK logs others with a traceback."""
    return ServiceBusConnectionError(message=f"The credential gave no token within {seconds:g} s")


class BoundedCredential:
    """A credential whose `get_token` raises at the caller's deadline, or after `seconds`.

    It also raises soon after the call was abandoned because its link was closed.
    """

    def __init__(self, credential: Any, seconds: float) -> None:
        self._credential = credential
        self._seconds = seconds

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return the credential's token.

        Raises:
            ServiceBusConnectionError: it took too long.
        """
        seconds = seconds_left(self._seconds)
        ends = time.monotonic() + seconds
        answer = _requests.ask(self._credential, scopes, options)
        while not answer.done() and not is_given_up() and (left := ends - time.monotonic()) > 0:
            wait((answer,), min(left, LOOK_EVERY))
        if not answer.done():
            raise no_token(seconds)
        return answer.result()


class AwaitedCredential:
    """A synchronous credential for an asynchronous client; `get_token` can be cancelled, and raises after `seconds`."""

    def __init__(self, credential: Any, seconds: float) -> None:
        self._credential = credential
        self._seconds = seconds

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return the credential's token.

        Raises:
            ServiceBusConnectionError: it took too long.
        """
        answer = asyncio.wrap_future(_requests.ask(self._credential, scopes, options))
        try:
            async with asyncio.timeout(self._seconds):
                # A cancelled caller must not cancel the request for others.
                return await asyncio.shield(answer)
        except TimeoutError:
            raise no_token(self._seconds) from None


class _Requests:
    """The running calls of `get_token`."""

    def __init__(self) -> None:
        self.forked()
        watch_forks(self)

    def forked(self) -> None:
        """Reset in a forked child, which has none of the threads."""
        self._lock = threading.Lock()
        self._answers: dict[tuple[Any, ...], Future[Any]] = {}

    def ask(self, credential: Any, scopes: tuple[str, ...], options: dict[str, Any]) -> Future[Any]:
        """Return the token's future, which may be running already."""
        key = id(credential), scopes, repr(options)
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                answer = self._answers[key] = Future()
                get = partial(credential.get_token, *scopes, **options)
                work = partial(self._answer, key, answer, get)
                threading.Thread(target=work, name="twinbus-token", daemon=True).start()
        return answer

    def _answer(self, key: tuple[Any, ...], answer: Future[Any], get: Callable[[], Any]) -> None:
        try:
            token, error = get(), None
        except Exception as raised:
            token, error = None, raised
        except BaseException as raised:  # SystemExit, say, which would end the event loop of the waiting caller
            token, error = None, ServiceBusConnectionError(message=f"The credential raised {raised!r}")
        with self._lock:
            del self._answers[key]
        if error is None:
            answer.set_result(token)
        else:
            answer.set_exception(error)


_requests = _Requests()
