"""The demo: an outage from beginning to end, on one machine, and a verdict at the end of it."""

from __future__ import annotations
