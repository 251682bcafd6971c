"""The drill of `make live` against embedded namespaces: that it works, tells a difference, and has manners."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from scripts.live import administration, diverting, load, long_waits, our_client, pings, running, transport
from scripts.live.__main__ import VARIABLES
from scripts.live.checks import Check, Seen, Verdict
from scripts.live.drill import Drill, Times
from scripts.live.running import Outcome
from tests.client.threads import eventually

from twinbus.broker import AZURE, DEFAULT, Fault, Kind, Namespace, NamespaceConfig, Profile, QueueDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.security import ROOT_POLICY
from twinbus.pairing import backlog
from twinbus.pairing.namespaces import Namespace as Side
from twinbus.syphon import restorer
from twinbus.syphon.restore import Restored, restore

ROOT = Path(__file__).parents[2]
STRICT = replace(AZURE, throttle=None)
IDLE = 1.0
SHORT = Times(check=60, answer=15, token=4, idle=(0.5 * IDLE, 4 * IDLE), standing=4 * IDLE, load=10)
OWNERS = "contoso/x-servicebus-transfer/0"

Twins = tuple[NamespaceThread, NamespaceThread]

pytestmark = pytest.mark.slow


@contextmanager
def twins(profile: Profile = STRICT, **options: Any) -> Iterator[Twins]:
    def thread(name: str) -> NamespaceThread:
        config = NamespaceConfig(name, port=0, deliver_pings=options.get("deliver_pings", False))
        return NamespaceThread(
            lambda: Namespace(config, profile=profile, certificate_folder=options.get("certificate_folder"))
        )

    with thread("contoso") as primary, thread("standby") as secondary:
        yield primary, secondary


def drill_of(running_twins: Twins, times: Times = SHORT) -> Drill:
    primary, secondary = (Side.from_connection_string(one.connection_string) for one in running_twins)
    return Drill(primary, secondary, times)


def perform(drill: Drill, checks: Sequence[Check]) -> Outcome:
    return asyncio.run(running.perform(drill, checks, {}))


def found(outcome: Outcome) -> dict[str, tuple[Verdict, str]]:
    return {one.name: (one.verdict, one.seen) for one in outcome.results}


def entities(thread: NamespaceThread) -> list[str]:
    namespace = thread.namespace
    return [one.description.path for one in (*namespace.queues(), *namespace.topics())]


def keys(running_twins: Twins) -> list[str]:
    return [one.namespace.policy(ROOT_POLICY).primary_key for one in running_twins]


# ---- the whole drill ----


@pytest.fixture(scope="module")
def two() -> Iterator[Twins]:
    with twins() as running_twins:
        secondary = running_twins[1]
        secondary.run(secondary.namespace.create(QueueDescription(OWNERS)))
        yield running_twins


@pytest.fixture(scope="module")
def outcome(two: Twins) -> Outcome:
    return perform(drill_of(two), running.ORDINARY)


@pytest.mark.parametrize("check", running.ORDINARY, ids=lambda check: check.name)
def test_the_embedded_namespace_does_what_the_service_is_taken_to_do(outcome: Outcome, check: Check) -> None:
    verdict, seen = found(outcome)[check.name]
    assert verdict is Verdict.AS_EXPECTED, seen
    assert seen


def test_everything_the_drill_made_is_removed_and_what_was_there_stays(two: Twins, outcome: Outcome) -> None:
    assert outcome.left_behind == ()
    assert [entities(one) for one in two] == [[], [OWNERS]]


def test_no_key_is_in_what_was_seen(two: Twins, outcome: Outcome) -> None:
    assert not any(key in json.dumps(outcome.to_json()) for key in keys(two))


def test_names_of_checks_are_unique() -> None:
    names = [one.name for one in (*running.ORDINARY, *running.LONG, *running.THROTTLE)]
    assert len(names) == len(set(names))


# ---- the checks that are asked for ----


def test_idle_links_and_standing_credit_are_seen_to_the_end() -> None:
    with twins(replace(STRICT, link_idle=IDLE)) as running_twins:
        outcome = perform(drill_of(running_twins), long_waits.CHECKS)
    for verdict, seen in found(outcome).values():
        assert verdict is Verdict.AS_EXPECTED, seen


def test_a_link_that_is_never_detached_is_a_difference() -> None:
    with twins() as running_twins:
        outcome = perform(drill_of(running_twins), [long_waits.detached, long_waits.next_send])
    assert {verdict for verdict, _ in found(outcome).values()} == {Verdict.DIFFERENT}


def test_an_overloaded_namespace_says_that_it_is_busy() -> None:
    with twins(replace(STRICT, throttle=300)) as running_twins:
        outcome = perform(drill_of(running_twins), load.CHECKS)
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.AS_EXPECTED, seen


def test_a_namespace_that_takes_everything_is_a_difference(two: Twins) -> None:
    outcome = perform(drill_of(two, replace(SHORT, load_messages=500)), load.CHECKS)
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "500 accepted" in seen


# ---- differences, failures and silence ----


def test_pings_that_are_delivered_are_a_difference() -> None:
    with twins(deliver_pings=True) as running_twins:
        outcome = perform(drill_of(running_twins), [pings.queue, pings.session_queue, pings.topic, pings.probe_link])
    verdicts = [verdict for verdict, _ in found(outcome).values()]
    assert verdicts == [Verdict.DIFFERENT, Verdict.DIFFERENT, Verdict.DIFFERENT, Verdict.AS_EXPECTED]


def test_a_backlog_queue_with_another_property_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "PROPERTIES", {**backlog.PROPERTIES, "lock_duration": timedelta(minutes=2)})
    outcome = perform(drill_of(two), [administration.backlog_properties])
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "LockDuration PT2M, not PT1M" in seen


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda restored: restored._replace(payload=restored.payload.replace(b"body", b"BODY")),
            "data differs in ['body']",
        ),
        (
            lambda restored: restored._replace(payload=restored.payload.replace(b"a session", b"A session")),
            "property 10",
        ),
        (lambda restored: restored._replace(payload=restored.payload.replace(b"number", b"NUMBER")), "application"),
        (
            lambda restored: restored._replace(payload=restored.payload.replace(b"x-opt-drill", b"x-opt-drilL")),
            "annotation",
        ),
    ],
)
def test_a_message_that_is_not_restored_is_a_difference(
    two: Twins, monkeypatch: pytest.MonkeyPatch, change: Callable[[Restored], Restored], difference: str
) -> None:
    monkeypatch.setattr(restorer, "restore", lambda *args, **options: change(restore(*args, **options)))
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    outcome = perform(drill_of(two), [diverting.restored])
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert difference in seen


def test_a_message_that_does_not_arrive_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    def to_nowhere(*args: Any, **options: Any) -> Restored:
        restored = restore(*args, **options)
        return restored._replace(destination="elsewhere") if b"value_body" in restored.payload else restored

    elsewhere = QueueDescription("elsewhere")
    two[0].run(two[0].namespace.create(elsewhere))
    monkeypatch.setattr(restorer, "restore", to_nowhere)
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    outcome = perform(drill_of(two, replace(SHORT, answer=3)), [diverting.restored])
    two[0].run(two[0].namespace.delete(elsewhere.path))
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "value differs in ['1 arrived'], not []" in seen


def test_a_life_that_begins_anew_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        restorer, "restore", lambda payload, now_ms, ttl: restore(payload, now_ms=now_ms, ttl="restart")
    )
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    [(verdict, seen)] = found(perform(drill_of(two), [diverting.restored])).values()
    assert verdict is Verdict.DIFFERENT
    assert "not so: of their lives" in seen


def test_other_terms_of_a_connection_are_a_difference() -> None:
    with twins(DEFAULT) as running_twins:
        outcome = perform(drill_of(running_twins), transport.CHECKS)
    [(verdict, seen)] = found(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "idle after ms 240000, not 120000" in seen


def test_a_check_that_fails_or_hangs_leaves_its_question_open_and_stops_no_other(two: Twins) -> None:
    async def fails(drill: Drill, seen: Seen) -> None:
        await drill.at_primary.queue("fails")
        seen.note("made a queue")
        raise RuntimeError(f"with {drill.at_primary.named_key[1]}")

    async def hangs(drill: Drill, seen: Seen) -> None:
        await asyncio.Event().wait()

    async def says_nothing(drill: Drill, seen: Seen) -> None:
        return

    async def works(drill: Drill, seen: Seen) -> None:
        seen.that(True, "all is well")

    looks = (fails, hangs, says_nothing, works)
    checks = [Check(look.__name__, "", look) for look in looks]
    checks[1] = replace(checks[1], seconds=lambda _: 0.2)
    outcome = perform(drill_of(two), checks)
    assert found(outcome) == {
        "fails": (Verdict.UNCHECKED, "made a queue; RuntimeError"),
        "hangs": (Verdict.UNCHECKED, "no answer within 0.2 s"),
        "says_nothing": (Verdict.UNCHECKED, ""),
        "works": (Verdict.AS_EXPECTED, "all is well"),
    }
    assert not outcome.is_as_expected
    assert entities(two[0]) == []


def test_a_key_in_what_was_seen_is_struck_out(two: Twins) -> None:
    async def tells(drill: Drill, seen: Seen) -> None:
        seen.note(f"the key is {drill.at_primary.named_key[1]}")

    outcome = perform(drill_of(two), [Check("tells", "", tells)])
    assert found(outcome)["tells"] == (Verdict.AS_EXPECTED, "the key is ***")


def test_a_difference_stays_one_even_if_the_check_then_fails(two: Twins) -> None:
    async def differs(drill: Drill, seen: Seen) -> None:
        seen.value("answer", 41, 42)
        raise RuntimeError

    outcome = perform(drill_of(two), [Check("differs", "", differs)])
    assert found(outcome)["differs"] == (Verdict.DIFFERENT, "answer 41, not 42; RuntimeError")


def test_with_a_namespace_down_everything_is_open_and_what_may_be_left_is_named() -> None:
    with twins() as running_twins:
        primary = running_twins[0]
        primary.call(primary.namespace.faults.add, Fault(Kind.REFUSE))
        outcome = perform(drill_of(running_twins, replace(SHORT, answer=3)), [our_client.round_trip, pings.queue])
    assert {verdict for verdict, _ in found(outcome).values()} == {Verdict.UNCHECKED}
    assert len(outcome.left_behind) == 2


def test_only_what_has_the_prefix_of_the_drill_can_be_removed(two: Twins) -> None:
    async def claims(drill: Drill, seen: Seen) -> None:
        drill.at_secondary.will_exist(OWNERS)

    outcome = perform(drill_of(two), [Check("claims", "", claims)])
    assert found(outcome)["claims"] == (Verdict.UNCHECKED, "ValueError")
    assert entities(two[1]) == [OWNERS]


# ---- TLS ----


def test_our_client_passes_the_drill_over_tls(tmp_path: Path) -> None:
    with twins(certificate_folder=tmp_path) as running_twins:
        sides = []
        for one in running_twins:
            namespace, host = one.namespace, f"127.0.0.1:{one.namespace.port}"
            assert namespace.certificate is not None
            credential = AzureNamedKeyCredential(ROOT_POLICY, namespace.policy(ROOT_POLICY).primary_key)
            sides.append(Side(host, credential, connection_verify=str(namespace.certificate.ca_file)))
        outcome = perform(Drill(*sides, SHORT), [*transport.CHECKS, *our_client.CHECKS])
    for verdict, seen in found(outcome).values():
        assert verdict is Verdict.AS_EXPECTED, seen
    assert "over TLSv1.3" in found(outcome)["the terms of a connection"][1]


# ---- the command ----


def live(**environment: str) -> subprocess.CompletedProcess[str]:
    without = {
        name: value for name, value in os.environ.items() if name not in (*VARIABLES, "LONG", "THROTTLE", "ONLY")
    }
    command = [sys.executable, "-m", "scripts.live"]
    return subprocess.run(command, cwd=ROOT, env=without | environment, capture_output=True, text=True, timeout=100)


def test_without_connection_strings_it_says_so_and_ends_with_2(two: Twins) -> None:
    done = live(TWINBUS_LIVE_PRIMARY=two[0].connection_string)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TWINBUS_LIVE_SECONDARY must be set")


@pytest.mark.parametrize("secondary", ["nonsense", "Endpoint=sb://a/;SharedAccessKey=hidden", "same", "entity"])
def test_connection_strings_that_do_not_do_are_refused_without_showing_a_key(two: Twins, secondary: str) -> None:
    primary = two[0].connection_string
    text = {"same": primary, "entity": f"{two[1].connection_string};EntityPath=a"}.get(secondary, secondary)
    done = live(TWINBUS_LIVE_PRIMARY=primary, TWINBUS_LIVE_SECONDARY=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert "TWINBUS_LIVE_SECONDARY" in done.stderr
    assert not any(key in done.stderr for key in (*keys(two), "hidden"))


def test_it_prints_a_table_and_one_json_object_and_never_a_key(two: Twins) -> None:
    done = live(
        TWINBUS_LIVE_PRIMARY=two[0].connection_string,
        TWINBUS_LIVE_SECONDARY=two[1].connection_string,
        ONLY="REFUSED: a",
        COLUMNS="200",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    names = [one["name"] for one in facts["checks"]]
    assert len(names) == facts["as_expected"] == 5
    assert facts["different"] == facts["could_not_be_checked"] == 0
    assert facts["left_out"]["an idle sender link is detached"] == "asked for with LONG=1"
    assert all(name in done.stdout.partition("{")[0] for name in names)
    assert not any(key in done.stdout + done.stderr for key in keys(two))


def test_a_difference_ends_it_with_1() -> None:
    with twins(DEFAULT) as running_twins:
        done = live(
            TWINBUS_LIVE_PRIMARY=running_twins[0].connection_string,
            TWINBUS_LIVE_SECONDARY=running_twins[1].connection_string,
            ONLY="terms",
        )
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["different"] == 1


def _heed_interrupts() -> None:
    """A program that a shell runs in the background inherits that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_broken_off_it_removes_what_it_made() -> None:
    with twins() as running_twins:
        strings = (one.connection_string for one in running_twins)
        environment = os.environ | dict(zip(VARIABLES, strings, strict=True)) | {"ONLY": "a token is renewed"}
        command = [sys.executable, "-m", "scripts.live"]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
        ) as process:
            try:
                eventually(lambda: running_twins[0].call(lambda: running_twins[0].namespace.entity_links()))
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=30)
            finally:
                process.kill()
        assert process.returncode == 1
        assert "Broken off" in told
        assert entities(running_twins[0]) == []
