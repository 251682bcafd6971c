"""Bounds how long a synchronous credential may take: it may wait for a network of its own.

Python cannot end a call of other people's code: that goes on in a thread of its own, which does not keep the process
from ending. There is at most one such thread for each credential and scope, however often it is given up on: the next
call that needs the token waits for the same answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from ..forks import watch_forks
from .deadline import is_given_up, seconds_left

#: Seconds that a credential may take; an attempt is given up on after `attempt_timeout` anyway.
TOKEN_TIMEOUT = 60.0
#: Seconds between two looks whether the call that waits for a token was given up.
LOOK_EVERY = 0.1


class BoundedCredential:
    """A credential whose `get_token` raises at the deadline of the call that needs the token, or after `seconds`.

    It also raises soon after that call was given up, because its link was closed.
    """

    def __init__(self, credential: Any, seconds: float) -> None:
        self._credential = credential
        self._seconds = seconds

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """As the credential's.

        Raises:
            ConnectionAbortedError: it took too long.
        """
        seconds = seconds_left(self._seconds)
        ends = time.monotonic() + seconds
        answer = _requests.ask(self._credential, scopes, options)
        while not answer.done() and not is_given_up() and (left := ends - time.monotonic()) > 0:
            wait((answer,), min(left, LOOK_EVERY))
        if not answer.done():
            raise ConnectionAbortedError(f"no token within {seconds:g} s")
        return answer.result()


class AwaitedCredential:
    """A synchronous credential for an asynchronous client; `get_token` can be cancelled, and raises after `seconds`."""

    def __init__(self, credential: Any, seconds: float) -> None:
        self._credential = credential
        self._seconds = seconds

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """As the credential's.

        Raises:
            ConnectionAbortedError: it took too long.
        """
        answer = asyncio.wrap_future(_requests.ask(self._credential, scopes, options))
        try:
            async with asyncio.timeout(self._seconds):
                # Cancelled, it must not take the answer away from others who wait for the same.
                return await asyncio.shield(answer)
        except TimeoutError:
            raise ConnectionAbortedError(f"no token within {self._seconds:g} s") from None


class _Requests:
    """The calls of `get_token` under way."""

    def __init__(self) -> None:
        self.forked()
        watch_forks(self)

    def forked(self) -> None:
        """A forked child has none of the threads that ask."""
        self._lock = threading.Lock()
        self._answers: dict[tuple[Any, ...], Future[Any]] = {}

    def ask(self, credential: Any, scopes: tuple[str, ...], options: dict[str, Any]) -> Future[Any]:
        """The answer to this question, which may be under way already."""
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
        except BaseException as raised:
            token, error = None, raised
        with self._lock:
            del self._answers[key]
        if error is None:
            answer.set_result(token)
        else:
            answer.set_exception(error)


_requests = _Requests()
