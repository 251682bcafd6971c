"""Defines what the client needs from a credential: a token for an audience."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Token(NamedTuple):
    """A token, its `$cbs` type, and when it expires (seconds since the epoch)."""

    text: str
    type: str
    expires_at: float

    def __repr__(self) -> str:
        return f"Token(type={self.type!r}, expires_at={self.expires_at!r})"


class Credential(Protocol):
    """Provides tokens."""

    async def token(self, audience: str) -> Token:
        """Return a token that is valid now."""
