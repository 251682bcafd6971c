"""Tokens for synchronous senders, which can be given up on: a credential may wait for a network of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

_lock = threading.Lock()
_asked: dict[tuple[Any, ...], Future[Any]] = {}


class AbortableCredential:
    """A credential whose `get_token` ends at once when `abort` is called, in any thread.

    Python cannot end a call of somebody else's code: that goes on in a thread of its own. Of these there is one for
    each credential at most, however often it is given up on, since whoever asks next waits for the same answer.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._changed = threading.Event()
        self._is_aborted = False

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """As the credential's.

        Raises:
            ConnectionAbortedError: nobody waits for it any more.
        """
        answer = _ask(self._credential, scopes, options)
        answer.add_done_callback(lambda _: self._changed.set())
        while not answer.done() and not self._is_aborted:
            self._changed.wait()
            self._changed.clear()
        if not answer.done():
            raise ConnectionAbortedError("the token did not come in time")
        return answer.result()

    def abort(self) -> None:
        """Wait for no token any more."""
        self._is_aborted = True
        self._changed.set()


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
