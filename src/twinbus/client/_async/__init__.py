"""The asynchronous client. The synchronous one is generated from it."""

from __future__ import annotations
