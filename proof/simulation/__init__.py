"""Runs the production code on a simulated network and clock, reproducibly from a seed."""

from __future__ import annotations
