"""Links the lifetimes of a pairing's two clients, in an application that hosts the syphon.

When one client is closed or has faulted, its partner should be closed, too. If that does not happen in time, the
partner is faulted, because a pairing needs both sides. A lost connection is not a fault. Pure and thread-safe.
"""

from __future__ import annotations

import os
import threading
from enum import Enum

from twinbus.ledger.recorder import NamespaceRole
from twinbus.pairing.forks import watch_forks
from twinbus.pairing.pairing_errors import ForkedClientError, PairedClientFaultedError

#: The two clients, by their namespaces.
SIDES = (NamespaceRole.PRIMARY, NamespaceRole.SECONDARY)
#: Seconds in which the partner of an ended client must be closed.
GRACE = 5.0


class Condition(Enum):
    """The lifecycle state of a client."""

    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


class Partnership:
    """The condition of both clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conditions = dict.fromkeys(SIDES, Condition.OPEN)
        self._faults: dict[NamespaceRole, PairedClientFaultedError] = {}
        self._made_in = os.getpid()
        #: Whether this is a copy in a forked child: the connections belong to the parent.
        self.is_forked = False
        watch_forks(self)

    def forked(self) -> None:
        """Mark this process as a fork: neither client can be used in it."""
        self.is_forked = True
        self._faults = dict.fromkeys(SIDES, ForkedClientError(self._made_in, os.getpid()))

    def condition(self, role: NamespaceRole) -> Condition:
        return self._conditions[role]

    @property
    def are_both_closed(self) -> bool:
        return all(condition is Condition.CLOSED for condition in self._conditions.values())

    def fault(self, role: NamespaceRole) -> PairedClientFaultedError | None:
        """Return why a client has faulted; None if it has not."""
        return self._faults.get(role)

    def check(self, role: NamespaceRole) -> None:
        """Raise `PairedClientFaultedError` if the client has faulted, `ValueError` if it was closed."""
        fault = self._faults.get(role)
        if fault is not None:
            raise fault.with_traceback(None)
        if self._conditions[role] is Condition.CLOSED:
            raise ValueError("The client was closed. Make a new one.")

    def closed(self, role: NamespaceRole) -> bool:
        """Record that a client was closed; return whether it was open. A faulted one stays faulted."""
        with self._lock:
            is_news = self._conditions[role] is Condition.OPEN
            if is_news:
                self._conditions[role] = Condition.CLOSED
            return is_news

    def faulted(self, role: NamespaceRole, error: PairedClientFaultedError) -> bool:
        """Record that a client has faulted; return whether it was open. A closed one stays closed."""
        with self._lock:
            is_news = self._conditions[role] is Condition.OPEN
            if is_news:
                self._conditions[role] = Condition.FAULTED
                self._faults[role] = error
            return is_news

    def fault_partner(self, role: NamespaceRole) -> PairedClientFaultedError | None:
        """Fault the partner of the client `role`, which ended a while ago; return why, or None if it has ended, too."""
        how = "was closed" if self._conditions[role] is Condition.CLOSED else "has faulted"
        reason = f"the {role.name.lower()} client {how}, and its partner was not closed within {GRACE:g} s"
        error = PairedClientFaultedError(reason, self._faults.get(role))
        with self._lock:
            partner = partner_of(role)
            if self._conditions[partner] is not Condition.OPEN:
                return None
            self._conditions[partner] = Condition.FAULTED
            self._faults[partner] = error
            return error


def partner_of(role: NamespaceRole) -> NamespaceRole:
    return NamespaceRole.SECONDARY if role is NamespaceRole.PRIMARY else NamespaceRole.PRIMARY
