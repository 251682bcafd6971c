"""Logs one line for each refused request: the path, the policy and the reason.

Clients get few details, and the SDK shows even fewer, so the operator finds the reason here. Client text is cut
and escaped; tokens, signatures and keys are never logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .security import policy_named_in

if TYPE_CHECKING:
    from ..server.namespace import Namespace

# At INFO, so that clients cannot fill the log of a namespace at its default level.
logger = logging.getLogger("twinbus.emulator.auth.refusals")

MAX_SHOWN = 300
MAX_POLICIES = 3
# After a question mark there may be a signature.
_AFTER_PATH = re.compile(r"\?[^']*")
# A generated key, ours or the service's: 32 bytes in base64.
_LIKE_A_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")


def log_refusal(namespace: Namespace, what: str, path: str, reason: str, policies: Callable[[], Iterable[str]]) -> None:
    """Log that `what` was refused, such as "a token for"; `policies` returns the policies of the client's tokens."""
    if logger.isEnabledFor(logging.INFO):
        where = _quoted(path.partition("?")[0]) + describe_policies(namespace, path, policies())
        logger.info("%s refused %s %s: %s", namespace.name, what, where, _cut(_AFTER_PATH.sub("", reason)))


def policies_in(token: object) -> list[str]:
    """The name of the policy that a token claims, or nothing."""
    text = token.decode("utf-8", "replace") if isinstance(token, bytes) else token
    name = policy_named_in(text) if isinstance(text, str) else None
    return [] if name is None else [name]


def describe_policies(namespace: Namespace, path: str, policies: Iterable[str]) -> str:
    """Log text about the policies that a client named, and whether this path knows them."""
    known = namespace.policies_for(path)
    names = {_normalized(policy.name): policy.name for policy in known}
    keys = {_normalized(key) for policy in known for key in policy.keys}
    phrases = []
    for name in list(dict.fromkeys(map(_normalized, policies)))[:MAX_POLICIES]:
        if name in keys or _LIKE_A_KEY.fullmatch(name):  # the client swapped name and key
            phrases.append("of a policy whose name is a key")
        elif name in names:
            phrases.append(f"of policy {_quoted(names[name])}")
        else:
            phrases.append(f"of policy {_quoted(name)}, which is not known here")
    return "".join(f", {phrase}" for phrase in phrases)


def _normalized(name: str) -> str:
    """A name or key in one spelling: an unencoded plus sign may have become a space."""
    return name.replace(" ", "+")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _cut(text: str) -> str:
    shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
    return shown if shown.isprintable() else repr(shown)
