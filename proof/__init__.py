"""Proves that no accepted message is lost: checker, simulation, fault matrix and soak test."""

from __future__ import annotations
