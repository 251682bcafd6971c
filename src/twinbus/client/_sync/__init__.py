# Generated from client/_async/__init__.py by `make generate`: change it there.
"""The synchronous client. The synchronous one is generated from it."""

from __future__ import annotations
