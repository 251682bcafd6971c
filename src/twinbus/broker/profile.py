"""How strict a namespace is: the default is generous, `azure` demands what the real service demands.

The figures of `AZURE` come from public traces and documents. Tests shorten the times with `dataclasses.replace`, or
with the same names in a configuration file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class ProfileName(StrEnum):
    """How much a namespace demands of its clients."""

    DEFAULT = "default"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class Profile:
    """Limits of one connection, and whether breaking them is an error."""

    name: ProfileName
    enforces: bool
    max_frame_size: int
    channel_max: int
    handle_max: int
    idle_timeout: float
    incoming_window: int
    sender_credit: int
    # A link without transfers, and without credit, is detached after this many seconds.
    link_idle: float | None = None
    # A connection without links is closed after this many.
    connection_idle: float | None = None
    # Messages a second the namespace takes before it answers server-busy.
    throttle: int | None = None
    # How long a receiver that asks for any session waits if it does not say; clients ask again by themselves.
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
    # Traces show 100, and more elsewhere: the service promises no figure. A client that sends ahead has to keep to
    # whatever it is given, so tests of that set it lower.
    sender_credit=1000,
    link_idle=600.0,
    connection_idle=300.0,
    throttle=1000,
)

PROFILES = {profile.name: profile for profile in (DEFAULT, AZURE)}


@dataclass(frozen=True, slots=True)
class ProfileChanges:
    """What a configuration file changes in a profile; None leaves it as it is."""

    idle_timeout: float | None = None
    link_idle: float | None = None
    connection_idle: float | None = None
    throttle: int | None = None

    def apply(self, profile: Profile) -> Profile:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(profile, **{name: value for name, value in given.items() if value is not None})


UNCHANGED = ProfileChanges()
