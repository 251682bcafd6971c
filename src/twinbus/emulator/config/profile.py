"""Defines profiles, the limits that a namespace applies: `default` is generous, `azure` is like the service.

The values of `AZURE` come from public traces and documentation. Tests shorten times with `dataclasses.replace`, or with
the same names in a configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class ProfileName(StrEnum):
    """The name of a profile, as configurations spell it."""

    DEFAULT = "default"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class Profile:
    """The limits of a connection, and whether exceeding them is an error (`enforces`)."""

    name: ProfileName
    enforces: bool
    max_frame_size: int
    channel_max: int
    handle_max: int
    idle_timeout: float
    incoming_window: int
    sender_credit: int
    # Seconds after which a link without transfers and without credit is detached.
    link_idle: float | None = None
    # Seconds after which a connection without links is closed.
    connection_idle: float | None = None
    # Messages per second above which the namespace answers server-busy.
    throttle: int | None = None
    # Seconds that a receiver waits for any session if it sets no timeout; clients retry by themselves.
    accept_session_timeout: float = 65.0


DEFAULT = Profile(
    name=ProfileName.DEFAULT,
    enforces=False,
    max_frame_size=65536,
    channel_max=4999,
    handle_max=4999,
    idle_timeout=240.0,
    incoming_window=65535,
    sender_credit=5000,
    accept_session_timeout=20.0,
)

AZURE = Profile(
    name=ProfileName.AZURE,
    enforces=True,
    max_frame_size=65536,
    channel_max=4999,
    handle_max=255,
    idle_timeout=120.0,
    incoming_window=5000,
    # Traces show 100 and more: the service promises no value. Tests of clients that respect credit set it lower.
    sender_credit=1000,
    link_idle=600.0,
    connection_idle=300.0,
    throttle=1000,
)

PROFILES = {profile.name: profile for profile in (DEFAULT, AZURE)}


@dataclass(frozen=True, slots=True)
class ProfileChanges:
    """The values that a configuration file changes in a profile; None keeps the profile's value."""

    idle_timeout: float | None = None
    link_idle: float | None = None
    connection_idle: float | None = None
    throttle: int | None = None

    def apply(self, profile: Profile) -> Profile:
        """The profile with the changed values."""
        changes = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(profile, **{name: value for name, value in changes.items() if value is not None})


UNCHANGED = ProfileChanges()
