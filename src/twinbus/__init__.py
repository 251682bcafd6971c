"""Paired namespaces for Azure Service Bus: your sends outlive your namespace."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
