"""The send side of a pairing: messages go to the primary, or to the backlog while the primary is down."""

from __future__ import annotations
