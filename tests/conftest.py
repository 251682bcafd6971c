"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A deadline per example measures the machine, not the code; pytest-timeout bounds the whole test.
settings.register_profile("twinbus", deadline=None, print_blob=True)
settings.load_profile("twinbus")
