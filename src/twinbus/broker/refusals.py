"""One line in the log for each client that was refused: where, whose policy, and why.

Clients learn little, and the SDK tells of that little even less: whoever runs the namespace finds the reason here.
What a client said is cut and escaped, and no token, signature or key is in it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .security import policy_named_in

if TYPE_CHECKING:
    from .namespace import Namespace

# At INFO, so that nobody can fill the log of a namespace that is run as usual.
logger = logging.getLogger("twinbus.broker.refusals")

MAX_SHOWN = 300
MAX_POLICIES = 3
# What follows a question mark is no part of a path, and may be a signature.
_AFTER_PATH = re.compile(r"\?[^']*")
# A key as the service and we make them: 32 bytes in base64.
_LIKE_A_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")


def log_refusal(namespace: Namespace, what: str, path: str, reason: str, policies: Callable[[], Iterable[str]]) -> None:
    """Log that `what` was refused at a path, such as "a token for"; `policies` finds out whose tokens were shown."""
    if logger.isEnabledFor(logging.INFO):
        where = _quoted(path.partition("?")[0]) + said_of(namespace, path, policies())
        logger.info("%s refused %s %s: %s", namespace.name, what, where, _cut(_AFTER_PATH.sub("", reason)))


def policies_in(token: object) -> list[str]:
    """The policy that a token names, if it does."""
    text = token.decode("utf-8", "replace") if isinstance(token, bytes) else token
    name = policy_named_in(text) if isinstance(text, str) else None
    return [] if name is None else [name]


def said_of(namespace: Namespace, path: str, policies: Iterable[str]) -> str:
    """Words about the policies that a client named, and whether they can be meant for this path."""
    known = namespace.policies_for(path)
    names = {_joined(one.name): one.name for one in known}
    keys = {_joined(key) for one in known for key in one.keys}
    words = []
    for name in list(dict.fromkeys(map(_joined, policies)))[:MAX_POLICIES]:
        if name in keys or _LIKE_A_KEY.fullmatch(name):  # whoever mixed up the two
            words.append("of a policy whose name is a key")
        elif name in names:
            words.append(f"of policy {_quoted(names[name])}")
        else:
            words.append(f"of policy {_quoted(name)}, which is not known here")
    return "".join(f", {one}" for one in words)


def _joined(name: str) -> str:
    """A name or key in the one spelling that all ways to encode it lead to."""
    return name.replace(" ", "+")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _cut(text: str) -> str:
    shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
    return shown if shown.isprintable() else repr(shown)
