"""Asynchronous source of the client; its synchronous twin in `_sync` is generated."""

from __future__ import annotations
