"""The paired client: what an application holds in its hands."""

from __future__ import annotations
