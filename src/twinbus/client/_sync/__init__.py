# Generated from client/_async/__init__.py by `make generate`: change it there.
"""Asynchronous source of the client; its synchronous twin in `_sync` is generated."""

from __future__ import annotations
