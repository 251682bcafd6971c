"""Tests the drill of `make run_drill` against embedded namespaces: results, detected differences, cleanup."""

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
from scripts.live.checks import Check, Findings, Verdict
from scripts.live.drill import Drill, Times
from scripts.live.running import Outcome
from tests.client.threads import eventually
from tests.connection_strings import ROOT_POLICY

from twinbus.emulator import (
    AZURE,
    DEFAULT,
    Fault,
    FaultKind,
    Namespace,
    NamespaceConfig,
    NamespaceThread,
    Profile,
    QueueDescription,
)
from twinbus.envelope.restoring import Restored, restore
from twinbus.pairing.backlog import provisioning as backlog
from twinbus.pairing.namespace import Namespace as Side
from twinbus.syphon.receiving import restorer

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
    primary, secondary = (Side.from_connection_string(thread.connection_string) for thread in running_twins)
    return Drill(primary, secondary, times)


def perform(drill: Drill, checks: Sequence[Check]) -> Outcome:
    return asyncio.run(running.perform(drill, checks, {}))


def verdicts_of(outcome: Outcome) -> dict[str, tuple[Verdict, str]]:
    return {result.name: (result.verdict, result.seen) for result in outcome.results}


def entities(thread: NamespaceThread) -> list[str]:
    namespace = thread.namespace
    return [entity.description.path for entity in (*namespace.queues(), *namespace.topics())]


def keys(running_twins: Twins) -> list[str]:
    return [thread.namespace.policy(ROOT_POLICY).primary_key for thread in running_twins]


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
def test_embedded_namespace_answers_every_check_as_expected(outcome: Outcome, check: Check) -> None:
    verdict, seen = verdicts_of(outcome)[check.name]
    assert verdict is Verdict.AS_EXPECTED, seen
    assert seen


def test_drill_removes_only_its_own_entities(two: Twins, outcome: Outcome) -> None:
    assert outcome.left_behind == ()
    assert [entities(thread) for thread in two] == [[], [OWNERS]]


def test_results_contain_no_key(two: Twins, outcome: Outcome) -> None:
    assert not any(key in json.dumps(outcome.to_json()) for key in keys(two))


def test_check_names_are_unique() -> None:
    names = [check.name for check in (*running.ORDINARY, *running.LONG, *running.THROTTLE)]
    assert len(names) == len(set(names))


# ---- optional checks ----


def test_long_checks_pass_with_short_idle_time() -> None:
    with twins(replace(STRICT, link_idle=IDLE)) as running_twins:
        outcome = perform(drill_of(running_twins), long_waits.CHECKS)
    for verdict, seen in verdicts_of(outcome).values():
        assert verdict is Verdict.AS_EXPECTED, seen


def test_link_that_is_never_detached_is_a_difference() -> None:
    with twins() as running_twins:
        outcome = perform(drill_of(running_twins), [long_waits.detached, long_waits.next_send])
    assert {verdict for verdict, _ in verdicts_of(outcome).values()} == {Verdict.DIFFERENT}


def test_throttled_namespace_answers_server_busy() -> None:
    with twins(replace(STRICT, throttle=300)) as running_twins:
        outcome = perform(drill_of(running_twins), load.CHECKS)
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.AS_EXPECTED, seen


def test_namespace_without_throttling_is_a_difference(two: Twins) -> None:
    outcome = perform(drill_of(two, replace(SHORT, load_messages=500)), load.CHECKS)
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "500 accepted" in seen


# ---- differences, failures and timeouts ----


def test_delivered_pings_are_a_difference() -> None:
    with twins(deliver_pings=True) as running_twins:
        outcome = perform(drill_of(running_twins), [pings.queue, pings.session_queue, pings.topic, pings.probe_link])
    verdicts = [verdict for verdict, _ in verdicts_of(outcome).values()]
    assert verdicts == [Verdict.DIFFERENT, Verdict.DIFFERENT, Verdict.DIFFERENT, Verdict.AS_EXPECTED]


def test_wrong_backlog_property_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "PROPERTIES", {**backlog.PROPERTIES, "lock_duration": timedelta(minutes=2)})
    outcome = perform(drill_of(two), [administration.backlog_properties])
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "LockDuration: expected PT1M, got PT2M" in seen


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda restored: restored._replace(payload=restored.payload.replace(b"body", b"BODY")),
            "data differs in: expected [], got ['body']",
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
def test_wrongly_restored_message_is_a_difference(
    two: Twins, monkeypatch: pytest.MonkeyPatch, change: Callable[[Restored], Restored], difference: str
) -> None:
    monkeypatch.setattr(restorer, "restore", lambda *args, **options: change(restore(*args, **options)))
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    outcome = perform(drill_of(two), [diverting.restored])
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert difference in seen


def test_missing_message_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    def restore_to_elsewhere(*args: Any, **options: Any) -> Restored:
        restored = restore(*args, **options)
        return restored._replace(destination="elsewhere") if b"value_body" in restored.payload else restored

    elsewhere = QueueDescription("elsewhere")
    two[0].run(two[0].namespace.create(elsewhere))
    monkeypatch.setattr(restorer, "restore", restore_to_elsewhere)
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    outcome = perform(drill_of(two, replace(SHORT, answer=3)), [diverting.restored])
    two[0].run(two[0].namespace.delete(elsewhere.path))
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "value differs in: expected [], got ['1 arrived']" in seen


def test_restarted_time_to_live_is_a_difference(two: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        restorer, "restore", lambda payload, now_ms, ttl: restore(payload, now_ms=now_ms, ttl="restart")
    )
    monkeypatch.setattr(diverting, "DELAY", timedelta(0))
    [(verdict, seen)] = verdicts_of(perform(drill_of(two), [diverting.restored])).values()
    assert verdict is Verdict.DIFFERENT
    assert "not true: decreasing times to live" in seen


def test_other_connection_terms_are_a_difference() -> None:
    with twins(DEFAULT) as running_twins:
        outcome = perform(drill_of(running_twins), transport.CHECKS)
    [(verdict, seen)] = verdicts_of(outcome).values()
    assert verdict is Verdict.DIFFERENT
    assert "idle after ms: expected 120000, got 240000" in seen


def test_failing_or_hanging_check_is_unchecked_and_others_continue(two: Twins) -> None:
    async def fails(drill: Drill, findings: Findings) -> None:
        await drill.at_primary.queue("fails")
        findings.note("created a queue")
        raise RuntimeError(f"with {drill.at_primary.named_key[1]}")

    async def hangs(drill: Drill, findings: Findings) -> None:
        await asyncio.Event().wait()

    async def says_nothing(drill: Drill, findings: Findings) -> None:
        return

    async def works(drill: Drill, findings: Findings) -> None:
        findings.expect(True, "all is well")

    functions = (fails, hangs, says_nothing, works)
    checks = [Check(function.__name__, "", function) for function in functions]
    checks[1] = replace(checks[1], seconds=lambda _: 0.2)
    outcome = perform(drill_of(two), checks)
    assert verdicts_of(outcome) == {
        "fails": (Verdict.UNCHECKED, "created a queue; RuntimeError"),
        "hangs": (Verdict.UNCHECKED, "no answer within 0.2 s"),
        "says_nothing": (Verdict.UNCHECKED, ""),
        "works": (Verdict.AS_EXPECTED, "all is well"),
    }
    assert not outcome.is_as_expected
    assert entities(two[0]) == []


def test_key_in_a_result_is_masked(two: Twins) -> None:
    async def writes_key(drill: Drill, findings: Findings) -> None:
        findings.note(f"the key is {drill.at_primary.named_key[1]}")

    outcome = perform(drill_of(two), [Check("writes_key", "", writes_key)])
    assert verdicts_of(outcome)["writes_key"] == (Verdict.AS_EXPECTED, "the key is ***")


def test_difference_remains_if_the_check_fails_later(two: Twins) -> None:
    async def differs(drill: Drill, findings: Findings) -> None:
        findings.expect_equal("answer", 41, 42)
        raise RuntimeError

    outcome = perform(drill_of(two), [Check("differs", "", differs)])
    assert verdicts_of(outcome)["differs"] == (Verdict.DIFFERENT, "answer: expected 42, got 41; RuntimeError")


def test_namespace_down_leaves_checks_unchecked_and_lists_leftovers() -> None:
    with twins() as running_twins:
        primary = running_twins[0]
        primary.call(primary.namespace.faults.add, Fault(FaultKind.REFUSE))
        outcome = perform(drill_of(running_twins, replace(SHORT, answer=3)), [our_client.round_trip, pings.queue])
    assert {verdict for verdict, _ in verdicts_of(outcome).values()} == {Verdict.UNCHECKED}
    assert len(outcome.left_behind) == 2


def test_entities_without_the_drill_prefix_cannot_be_removed(two: Twins) -> None:
    async def claims(drill: Drill, findings: Findings) -> None:
        drill.at_secondary.register(OWNERS)

    outcome = perform(drill_of(two), [Check("claims", "", claims)])
    assert verdicts_of(outcome)["claims"] == (Verdict.UNCHECKED, "ValueError")
    assert entities(two[1]) == [OWNERS]


# ---- TLS ----


def test_amqp_client_passes_the_drill_over_tls(tmp_path: Path) -> None:
    with twins(certificate_folder=tmp_path) as running_twins:
        sides = []
        for thread in running_twins:
            namespace, host = thread.namespace, f"127.0.0.1:{thread.namespace.port}"
            assert namespace.certificate is not None
            credential = AzureNamedKeyCredential(ROOT_POLICY, namespace.policy(ROOT_POLICY).primary_key)
            sides.append(Side(host, credential, connection_verify=str(namespace.certificate.ca_file)))
        outcome = perform(Drill(*sides, SHORT), [*transport.CHECKS, *our_client.CHECKS])
    for verdict, seen in verdicts_of(outcome).values():
        assert verdict is Verdict.AS_EXPECTED, seen
    assert "over TLSv1.3" in verdicts_of(outcome)["the terms of a connection"][1]


# ---- command line ----


def run_drill(**environment: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "LONG", "THROTTLE", "ONLY")}
    command = [sys.executable, "-m", "scripts.live"]
    return subprocess.run(command, cwd=ROOT, env=base | environment, capture_output=True, text=True, timeout=100)


def test_missing_connection_string_exits_with_2(two: Twins) -> None:
    done = run_drill(TWINBUS_LIVE_PRIMARY=two[0].connection_string)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TWINBUS_LIVE_SECONDARY must be set")


@pytest.mark.parametrize("secondary", ["nonsense", "Endpoint=sb://a/;SharedAccessKey=hidden", "same", "entity"])
def test_invalid_connection_strings_are_refused_without_showing_a_key(two: Twins, secondary: str) -> None:
    primary = two[0].connection_string
    text = {"same": primary, "entity": f"{two[1].connection_string};EntityPath=a"}.get(secondary, secondary)
    done = run_drill(TWINBUS_LIVE_PRIMARY=primary, TWINBUS_LIVE_SECONDARY=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert "TWINBUS_LIVE_SECONDARY" in done.stderr
    assert not any(key in done.stderr for key in (*keys(two), "hidden"))


def test_output_is_a_table_and_json_without_keys(two: Twins) -> None:
    done = run_drill(
        TWINBUS_LIVE_PRIMARY=two[0].connection_string,
        TWINBUS_LIVE_SECONDARY=two[1].connection_string,
        ONLY="REFUSED: a",
        COLUMNS="200",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    names = [check["name"] for check in facts["checks"]]
    assert len(names) == facts["as_expected"] == 5
    assert facts["different"] == facts["could_not_be_checked"] == 0
    assert facts["left_out"]["an idle sender link is detached"] == "needs LONG=1"
    assert all(name in done.stdout.partition("{")[0] for name in names)
    assert not any(key in done.stdout + done.stderr for key in keys(two))


def test_difference_exits_with_1() -> None:
    with twins(DEFAULT) as running_twins:
        done = run_drill(
            TWINBUS_LIVE_PRIMARY=running_twins[0].connection_string,
            TWINBUS_LIVE_SECONDARY=running_twins[1].connection_string,
            ONLY="terms",
        )
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["different"] == 1


def _restore_interrupts() -> None:
    """Restore the default handler: background processes of a shell inherit an ignored Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_drill_removes_its_entities() -> None:
    with twins() as running_twins:
        strings = (thread.connection_string for thread in running_twins)
        environment = os.environ | dict(zip(VARIABLES, strings, strict=True)) | {"ONLY": "a token is renewed"}
        command = [sys.executable, "-m", "scripts.live"]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=_restore_interrupts
        ) as process:
            try:
                eventually(lambda: running_twins[0].call(lambda: running_twins[0].namespace.entity_links()))
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=30)
            finally:
                process.kill()
        assert process.returncode == 1
        assert "Interrupted" in errors
        assert entities(running_twins[0]) == []
