"""The production code on a simulated network, clock and namespaces: the same seed is the same run, event for event."""

from __future__ import annotations
