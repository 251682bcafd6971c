"""Every default and every bound of SPEC section 10."""

from __future__ import annotations

import dataclasses
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.failover.error_classification import FailoverPolicy
from twinbus.pairing.options import SendAvailabilityOptions, SyphonOptions

# Seconds: the smallest and the largest that are allowed.
DURATIONS = {
    "failover_interval": (0, 60 * 60),
    "ping_primary_interval": (1, 30 * 60),
    "attempt_timeout": (0.1, 2 * 60),
    "backlog_cooldown": (1, None),
}
BOUNDED = [name for name, (_, largest) in DURATIONS.items() if largest is not None]
SWITCHES = ["enable_syphon", "create_backlog", "strict", "refuse_oversize"]
CHOICES: dict[str, list[str | None]] = {
    "probe": ["ping", "link"],
    "while_suspect": ["divert", "raise"],
    "ttl": ["remaining", "restart"],
    "order": [None, "session"],
}


def made(**options: Any) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(**options)


def test_the_defaults_are_those_of_the_specification() -> None:
    options = SendAvailabilityOptions()
    assert options.backlog_queue_count == 10
    assert options.failover_interval == 60
    assert options.ping_primary_interval == 60
    assert options.enable_syphon is False
    assert options.attempt_timeout == 10
    assert options.backlog_cooldown == 60
    assert options.probe == "ping"
    assert options.while_suspect == "divert"
    assert options.ttl == "remaining"
    assert options.order is None
    assert options.policy is FailoverPolicy.availability()
    assert options.create_backlog is True
    assert options.strict is False
    assert options.primary_name is None
    assert options.refuse_oversize is False
    assert options.syphon == SyphonOptions()


def test_the_defaults_of_the_syphon_are_those_of_the_specification() -> None:
    options = SyphonOptions()
    assert options.poll == 15 * 60
    assert (options.retry_min, options.retry_max) == (1, 120)
    assert options.poison_tries == 10
    assert options.rate is None
    assert options.destinations is None


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_below_the_minimum_are_refused(name: str) -> None:
    smallest = DURATIONS[name][0]
    assert getattr(made(**{name: smallest}), name) == smallest
    for shorter in (math.nextafter(smallest, -math.inf), -1, timedelta(seconds=-1)):
        with pytest.raises(ValueError, match=rf"^{name} must be (from|at least) {smallest:g} s.*not ") as caught:
            made(**{name: shorter})
        assert repr(shorter) in str(caught.value)


@pytest.mark.parametrize("name", BOUNDED)
def test_durations_above_the_maximum_are_refused(name: str) -> None:
    largest = DURATIONS[name][1]
    assert largest is not None
    assert getattr(made(**{name: largest}), name) == largest
    for longer in (math.nextafter(largest, math.inf), timedelta(days=1), 10**400):
        with pytest.raises(ValueError, match=rf"^{name} must be from .* s to {largest:g} s, not ") as caught:
            made(**{name: longer})
        assert repr(longer) in str(caught.value)


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**400])
@pytest.mark.parametrize("name", DURATIONS)
def test_duration_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be "):
        made(**{name: value})


@pytest.mark.parametrize("value", ["60", None, True, [60]])
@pytest.mark.parametrize("name", DURATIONS)
def test_duration_must_be_a_number_or_a_timedelta(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be a number, not "):
        made(**{name: value})


@given(st.timedeltas(timedelta(seconds=1), timedelta(minutes=30)))
def test_timedelta_equals_its_seconds(time: timedelta) -> None:
    options = made(ping_primary_interval=time)
    assert options == made(ping_primary_interval=time.total_seconds())
    assert options.ping_primary_interval == time.total_seconds()


def test_backlog_needs_at_least_one_queue() -> None:
    assert made(backlog_queue_count=1).backlog_queue_count == 1
    with pytest.raises(ValueError, match="backlog_queue_count must be at least 1, not 0"):
        made(backlog_queue_count=0)


@pytest.mark.parametrize("value", [1.0, "1", None, True])
def test_queue_count_must_be_a_whole_number(value: object) -> None:
    with pytest.raises(TypeError, match="backlog_queue_count must be a whole number"):
        made(backlog_queue_count=value)


@pytest.mark.parametrize("name", CHOICES)
def test_choice_must_be_a_known_value(name: str) -> None:
    for value in CHOICES[name]:
        assert getattr(made(**{name: value}), name) == value
    for wrong in ("other", "", str(CHOICES[name][-1]).upper(), 1, ["ping"]):
        error = ValueError if isinstance(wrong, str) else TypeError
        with pytest.raises(error, match=f"^{name} must be one of ") as caught:
            made(**{name: wrong})
        for value in CHOICES[name]:
            assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", SWITCHES)
def test_switch_must_be_true_or_false(name: str) -> None:
    assert getattr(made(**{name: True}), name) is True
    with pytest.raises(TypeError, match=f"^{name} must be a bool, not a str"):
        made(**{name: "no"})


def test_policy_must_be_a_failover_policy() -> None:
    with pytest.raises(TypeError, match="policy must be a FailoverPolicy"):
        made(policy=lambda error: True)


def test_syphon_must_be_syphon_options() -> None:
    with pytest.raises(TypeError, match="syphon must be a SyphonOptions"):
        made(syphon={"poll": 1})


def test_primary_name_must_fit_a_path() -> None:
    assert made(primary_name="contoso").primary_name == "contoso"
    with pytest.raises(ValueError, match="primary_name must be 1 to 200 letters"):
        made(primary_name="con/toso")
    with pytest.raises(TypeError, match="primary_name must be a str"):
        made(primary_name=7)


@pytest.mark.parametrize("name", ["poll", "retry_min", "retry_max"])
def test_syphon_durations_must_be_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0.001 s, not 0"):
        SyphonOptions(**{name: 0})  # type: ignore[arg-type]


def test_retry_max_must_be_at_least_retry_min() -> None:
    assert SyphonOptions(retry_min=5, retry_max=5).retry_max == 5
    with pytest.raises(ValueError, match="retry_max must be at least retry_min, which is 5 s, not 4"):
        SyphonOptions(retry_min=5, retry_max=4)


def test_poison_tries_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="poison_tries must be at least 1, not 0"):
        SyphonOptions(poison_tries=0)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_rate_must_be_above_zero(rate: float) -> None:
    assert SyphonOptions(rate=0.5).rate == 0.5
    with pytest.raises(ValueError, match="rate must be above 0 messages a second"):
        SyphonOptions(rate=rate)


def test_without_a_list_every_destination_is_allowed() -> None:
    assert SyphonOptions().allows("anything")


def test_with_a_list_only_its_destinations_are_allowed_in_any_spelling() -> None:
    options = SyphonOptions(destinations=["Orders", "/sales/events/"])
    assert options.allows("orders")
    assert options.allows("Sales/Events")
    assert not options.allows("sales")
    assert not options.allows("sales/events/more")


def test_destinations_must_be_a_list_of_paths() -> None:
    for wrong in ("orders", 7, [7]):
        with pytest.raises(TypeError, match="destinations must be a"):
            SyphonOptions(destinations=wrong)  # type: ignore[arg-type]
    for impossible in ([], [""], ["/"], ["orders", "a//b"], ["orders/$deadletterqueue"], ["sb://host/orders"]):
        with pytest.raises(ValueError, match="destinations must be paths of queues or topics"):
            SyphonOptions(destinations=impossible)


def test_options_take_keyword_arguments_only() -> None:
    with pytest.raises(TypeError):
        SendAvailabilityOptions(10)  # type: ignore[call-arg]


@pytest.mark.parametrize("options", [SendAvailabilityOptions(), SyphonOptions()])
def test_options_cannot_be_changed(options: Any) -> None:
    for field in dataclasses.fields(options):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field.name, getattr(options, field.name))


def test_options_can_be_copied_with_a_change_and_are_checked_again() -> None:
    options = made(failover_interval=5)
    assert dataclasses.replace(options, attempt_timeout=1) == made(failover_interval=5, attempt_timeout=1)
    with pytest.raises(ValueError, match="attempt_timeout"):
        dataclasses.replace(options, attempt_timeout=0)


def test_options_can_be_pickled() -> None:
    options = made(failover_interval=5, syphon=SyphonOptions(destinations=["orders"]))
    assert pickle.loads(pickle.dumps(options)) == options
