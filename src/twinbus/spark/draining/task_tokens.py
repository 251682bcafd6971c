"""Create short-lived tokens for tasks in the driver, each for one entity. A key never leaves the driver.

A key signs a token with its own rights for each entity. A given signature, or the token of a token credential (Entra),
is passed on as it is, with its own rights and lifetime (about an hour for Entra).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twinbus.amqp.client.credentials import Credential, Token
from twinbus.amqp.client.endpoint import Endpoint
from twinbus.syphon.credentials import SasKey, as_credential

#: Lifetime of a token: the wait for a slot, a slice of a minute, messages in flight at its end, differing clocks.
SECONDS = 600.0
#: Destinations that a slice has tokens for, at most: Spark would write a larger payload to a file.
MAX_DESTINATIONS = 2_000


class NoTokenError(LookupError):
    """The task was given no token for an entity."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens for entities of one namespace."""

    endpoint: Endpoint
    by_audience: Mapping[str, Token] = field(repr=False)

    @property
    def expires_at(self) -> float:
        """When the first of them expires, in seconds since the epoch."""
        return min((token.expires_at for token in self.by_audience.values()), default=float("inf"))


async def mint(endpoint: Endpoint, credential: Any, paths: Iterable[str]) -> Tokens:
    """Create a token for each path. Raises what the credential raises."""
    source = _short_lived(credential)
    tokens = {}
    for audience in map(endpoint.audience, paths):
        tokens[audience.lower()] = await source.token(audience)
    return Tokens(endpoint, tokens)


def _short_lived(credential: Any) -> Credential:
    named_key = getattr(credential, "named_key", None)
    source = SasKey(*named_key) if named_key is not None else as_credential(credential)
    return replace(source, seconds=SECONDS) if isinstance(source, SasKey) else source


class HandedTokens:
    """The credential of a task: only the tokens that it was given.

    `missing` collects the paths without a token; `on_missing` is called once for each of them.
    """

    def __init__(self, tokens: Tokens, on_missing: Callable[[], object] = lambda: None) -> None:
        self._tokens = tokens
        self._on_missing = on_missing
        self.missing: set[str] = set()

    def __repr__(self) -> str:
        return f"HandedTokens({len(self._tokens.by_audience)} entities)"

    async def token(self, audience: str) -> Token:
        token = self._tokens.by_audience.get(audience.lower())
        if token is not None:
            return token
        path = audience.removeprefix(self._tokens.endpoint.audience(""))
        if path not in self.missing:
            self.missing.add(path)
            self._on_missing()
        raise NoTokenError(f"there is no token for '{path}' yet")
