"""Bounds how long a synchronous credential may take: it may wait for a network of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from .deadline import seconds_left

_lock = threading.Lock()
_asked: dict[tuple[Any, ...], Future[Any]] = {}


class BoundedCredential:
    """A credential whose `get_token` raises at the deadline of the call that needs the token, or after `seconds`.

    Python cannot end a call of other people's code: that goes on in a thread of its own. There is at most one such
    thread for each credential, however often it is given up on, since the next one who asks waits for the same answer.
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
        try:
            return _ask(self._credential, scopes, options).result(seconds)
        except TimeoutError:
            raise ConnectionAbortedError(f"no token within {seconds:g} s") from None


def _ask(credential: Any, scopes: tuple[str, ...], options: dict[str, Any]) -> Future[Any]:
    key = id(credential), scopes, repr(options)
    with _lock:
        answer = _asked.get(key)
        if answer is None:
            answer = _asked[key] = Future()
            get = partial(credential.get_token, *scopes, **options)
            threading.Thread(target=_answer, args=(key, answer, get), name="twinbus-token", daemon=True).start()
    return answer


def _answer(key: tuple[Any, ...], answer: Future[Any], get: Callable[[], Any]) -> None:
    try:
        token, error = get(), None
    except BaseException as raised:
        token, error = None, raised
    with _lock:
        del _asked[key]
    if error is None:
        answer.set_result(token)
    else:
        answer.set_exception(error)
