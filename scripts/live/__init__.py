"""Checks two real namespaces for what an emulator cannot prove about the service: `make live`."""

from __future__ import annotations
