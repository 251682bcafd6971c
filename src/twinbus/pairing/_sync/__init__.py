# Generated from pairing/_async/__init__.py by `make generate`: change it there.
"""The synchronous sender. The synchronous one is generated from it."""

from __future__ import annotations
