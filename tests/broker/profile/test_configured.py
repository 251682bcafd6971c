"""A configuration file may change the times of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinbus.broker import AZURE, DEFAULT, Namespace
from twinbus.broker.config import ConfigError, NamespaceConfig, parse_config


def parse(text: str) -> tuple[NamespaceConfig, ...]:
    return parse_config(text, Path("bus.toml")).namespaces


def test_the_times_and_the_rate_come_from_the_file() -> None:
    one, two = parse(
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
    profile = Namespace(one).profile
    assert (profile.link_idle, profile.connection_idle, profile.throttle) == (2.0, 1.5, 7)
    assert (profile.idle_timeout, profile.enforces) == (AZURE.idle_timeout, True)
    profile = Namespace(two).profile
    assert (profile.idle_timeout, profile.link_idle, profile.throttle) == (60.0, 2.0, DEFAULT.throttle)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("link_idle = 0", "link_idle: must be 0.1 seconds to 86400 seconds"),
        ('connection_idle = "2d"', "connection_idle: must be 0.1 seconds"),
        ("idle_timeout = true", "idle_timeout: must be a duration"),
        ("throttle = 0", "throttle: must be 1 to 1000000"),
    ],
)
def test_a_time_out_of_its_bounds_is_refused(line: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parse(f"[namespaces.one]\n{line}")
