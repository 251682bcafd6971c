"""Keeps the grants that the tokens of one connection earned."""

from __future__ import annotations

from twinbus.servicebus.access_rights import Right

from ..protocol.error_conditions import NOT_ALLOWED, BrokerError
from .security import Clock, Grant

MAX_GRANTS = 5000

_GrantsByRights = dict[tuple[frozenset[Right], str | None], Grant]


class Rights:
    """The grants of a connection, by token audience.

    Every link checks its grant once a second, so the check must not get slower with more grants. They are indexed by
    audience path; of grants that differ only in their expiry the index keeps the one that lasts longest.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._grants: dict[str, Grant] = {}
        self._by_audience: dict[tuple[str, ...], _GrantsByRights] = {}

    def remember(self, audience: str, grant: Grant) -> None:
        """Add the grant of a token for an audience; "" stands for SASL PLAIN.

        Raises `BrokerError` if `MAX_GRANTS` grants have not expired.
        """
        previous = self._grants.get(audience)
        if previous is None and len(self._grants) >= MAX_GRANTS:
            self._drop_expired()
            if len(self._grants) >= MAX_GRANTS:
                raise BrokerError(NOT_ALLOWED, f"A connection can hold tokens for {MAX_GRANTS} audiences.")
        self._grants[audience] = grant
        if previous is None or _outlasts(grant, previous):
            self._index(grant)
        else:
            self._rebuild_index()

    def _drop_expired(self) -> None:
        now = self._clock()
        self._grants = {audience: grant for audience, grant in self._grants.items() if grant.expires_at > now}
        self._rebuild_index()

    def _rebuild_index(self) -> None:
        self._by_audience = {}
        for grant in self._grants.values():
            self._index(grant)

    def _index(self, grant: Grant) -> None:
        grants = self._by_audience.setdefault(_segments(grant.audience), {})
        known = grants.get((grant.rights, grant.entity))
        if known is None or known.expires_at < grant.expires_at:
            grants[grant.rights, grant.entity] = grant

    def allows(self, path: str, right: Right) -> bool:
        """Whether a grant that has not expired gives this right."""
        now = self._clock()
        segments = _segments(path)
        for length in range(len(segments) + 1):
            for grant in self._by_audience.get(segments[:length], {}).values():
                if grant.expires_at > now and grant.allows(path, right):
                    return True
        return False

    def allows_management(self, path: str, right: Right) -> bool:
        """Like `allows`, for requests to the management node: some clients show a separate token for it."""
        return self.allows(f"{path}/$management", right)

    def policies_for(self, path: str) -> list[str]:
        """The names of the policies whose tokens cover this path, with any right."""
        return [grant.policy for grant in self._grants.values() if grant.policy is not None and grant.covers(path)]

    @property
    def is_trusted(self) -> bool:
        """Whether any grant has not expired."""
        now = self._clock()
        return any(grant.expires_at > now for grant in self._grants.values())

    def forget(self, path: str) -> None:
        """Drop the grants that cover this path."""
        for audience, grant in list(self._grants.items()):
            if grant.covers(path) or grant.covers(f"{path}/$management"):
                del self._grants[audience]
        self._rebuild_index()


def _outlasts(grant: Grant, previous: Grant) -> bool:
    """Whether a grant gives the same as the previous one, at least as long."""
    return grant.expires_at >= previous.expires_at and (grant.audience, grant.rights, grant.entity) == (
        previous.audience,
        previous.rights,
        previous.entity,
    )


def _segments(path: str) -> tuple[str, ...]:
    """The path split and in lower case, as `Grant.covers` compares it."""
    return tuple(segment.lower() for segment in path.split("/") if segment)
