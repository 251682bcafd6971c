"""Profile values set in the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinbus.emulator import AZURE, DEFAULT, Namespace
from twinbus.emulator.config.namespace_file import ConfigError, NamespaceConfig, parse_config


def parse(text: str) -> tuple[NamespaceConfig, ...]:
    return parse_config(text, Path("bus.toml")).namespaces


def test_times_and_throttle_rate_are_read_from_the_file() -> None:
    first, second = parse(
        """
        profile = "azure"
        link_idle = "2s"

        [namespaces.one]
        port = 0
        connection_idle = 1.5
        throttle = 7

        [namespaces.two]
        port = 0
        profile = "default"
        idle_timeout = "1m"
        """
    )
    profile = Namespace(first).profile
    assert (profile.link_idle, profile.connection_idle, profile.throttle) == (2.0, 1.5, 7)
    assert (profile.idle_timeout, profile.enforces) == (AZURE.idle_timeout, True)
    profile = Namespace(second).profile
    assert (profile.idle_timeout, profile.link_idle, profile.throttle) == (60.0, 2.0, DEFAULT.throttle)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("link_idle = 0", "link_idle: must be 0.1 seconds to 86400 seconds"),
        ('connection_idle = "2d"', "connection_idle: must be 0.1 seconds"),
        ("idle_timeout = true", "idle_timeout: must be a duration"),
        ("throttle = 0", "throttle: must be 1 to 1000000"),
    ],
)
def test_out_of_bounds_profile_values_are_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"[namespaces.one]\n{line}")
