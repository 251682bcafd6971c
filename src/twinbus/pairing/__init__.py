"""The client side of a pairing: sends go to the primary namespace while it can be reached, else to the backlog."""

from __future__ import annotations
