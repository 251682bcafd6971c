"""Defines the rights of access policies and the length limits of their names and keys."""

from __future__ import annotations

from enum import StrEnum

MAX_KEY_LENGTH = 256
MAX_POLICY_NAME_LENGTH = 256


class Right(StrEnum):
    """A right that a policy grants. Manage includes the other two."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS: frozenset[Right] = frozenset(Right)
