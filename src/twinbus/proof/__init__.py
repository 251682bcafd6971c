"""The proof that no accepted message is lost: a checker, and runs with faults for it to judge."""

from __future__ import annotations
