"""What one connection may do: the grants that its tokens have earned."""

from __future__ import annotations

from .errors import NOT_ALLOWED, BrokerError
from .security import Clock, Grant, Right

MAX_GRANTS = 5000

_Reach = dict[tuple[frozenset[Right], str | None], Grant]


class Rights:
    """The grants of a connection, by the audience of the token.

    Every link asks once a second whether its grant is still good, so that must not cost more with more grants: they
    are found by the path that they reach, and of those that differ in their end only, the one that lasts is kept there.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: dict[str, Grant] = {}
        self._reach: dict[tuple[str, ...], _Reach] = {}

    def remember(self, audience: str, grant: Grant) -> None:
        """A token was accepted for an audience; "" stands for the name and key of SASL PLAIN.

        Raises `BrokerError` if there are too many that are still good.
        """
        before = self._grants.get(audience)
        if before is None and len(self._grants) >= MAX_GRANTS:
            self._drop_expired()
            if len(self._grants) >= MAX_GRANTS:
                raise BrokerError(NOT_ALLOWED, f"A connection can hold tokens for {MAX_GRANTS} audiences.")
        self._grants[audience] = grant
        if before is None or _outlasts(grant, before):
            self._add(grant)
        else:
            self._sort()

    def _drop_expired(self) -> None:
        now = self._clock()
        self._grants = {audience: grant for audience, grant in self._grants.items() if grant.expires_at > now}
        self._sort()

    def _sort(self) -> None:
        self._reach = {}
        for grant in self._grants.values():
            self._add(grant)

    def _add(self, grant: Grant) -> None:
        alike = self._reach.setdefault(_segments(grant.audience), {})
        known = alike.get((grant.rights, grant.entity))
        if known is None or known.expires_at < grant.expires_at:
            alike[grant.rights, grant.entity] = grant

    def allows(self, path: str, right: Right) -> bool:
        """Whether a token that is still good gives this right."""
        now = self._clock()
        segments = _segments(path)
        for length in range(len(segments) + 1):
            for grant in self._reach.get(segments[:length], {}).values():
                if grant.expires_at > now and grant.allows(path, right):
                    return True
        return False

    def allows_management(self, path: str, right: Right) -> bool:
        """The same for requests to an entity's management node, for which some clients bring a token of its own."""
        return self.allows(f"{path}/$management", right)

    def policies_for(self, path: str) -> list[str]:
        """The names of the policies whose tokens reach this path, with whatever rights."""
        return [grant.policy for grant in self._grants.values() if grant.policy is not None and grant.covers(path)]

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
        self._sort()


def _outlasts(grant: Grant, before: Grant) -> bool:
    """Whether a grant gives what another gave, at least as long."""
    return grant.expires_at >= before.expires_at and (grant.audience, grant.rights, grant.entity) == (
        before.audience,
        before.rights,
        before.entity,
    )


def _segments(path: str) -> tuple[str, ...]:
    """What `Grant.covers` compares."""
    return tuple(segment.lower() for segment in path.split("/") if segment)
