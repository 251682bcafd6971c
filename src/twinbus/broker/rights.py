"""What one connection may do: the grants that its tokens have earned."""

from __future__ import annotations

from .errors import NOT_ALLOWED, BrokerError
from .security import Clock, Grant, Right

MAX_GRANTS = 5000


class Rights:
    """The grants of a connection, by the audience of the token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: dict[str, Grant] = {}

    def remember(self, audience: str, grant: Grant) -> None:
        """A token was accepted for an audience; "" stands for the name and key of SASL PLAIN."""
        if audience not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise BrokerError(NOT_ALLOWED, f"A connection can hold tokens for {MAX_GRANTS} audiences.")
        self._grants[audience] = grant

    def allows(self, path: str, right: Right) -> bool:
        """Whether a token that is still good gives this right."""
        now = self._clock()
        return any(grant.expires_at > now and grant.allows(path, right) for grant in self._grants.values())

    def allows_management(self, path: str, right: Right) -> bool:
        """The same for requests to an entity's management node, for which some clients bring a token of its own."""
        return self.allows(f"{path}/$management", right)

    @property
    def is_trusted(self) -> bool:
        """Whether any token that is still good was shown."""
        now = self._clock()
        return any(grant.expires_at > now for grant in self._grants.values())

    def forget(self, path: str) -> None:
        """The tokens that reach this path are no longer good."""
        for audience, grant in list(self._grants.items()):
            if grant.covers(path) or grant.covers(f"{path}/$management"):
                del self._grants[audience]
