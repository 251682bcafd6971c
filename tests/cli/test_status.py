"""`twinbus status` as a check: it is green only if everything was seen to be well, with the rights that people have."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_backlog import give_up, invoke, row
from tests.connection_strings import connection_string
from tests.syphon.bus import connect
from tests.syphon.pumping import BACKLOG, Pair, envelope, numbered
from typer.testing import Result

from twinbus.cli.commands import pair_status
from twinbus.emulator import (
    DEFAULT,
    Fault,
    FaultKind,
    FaultPoint,
    Namespace,
    NamespaceConfig,
    PolicyConfig,
    QueueDescription,
)
from twinbus.ledger import Outcome, Stage
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import AuthorizationRule

GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "status.md"
SECOND = "contoso/x-servicebus-transfer/1"
WRONG = "c2VjcmV0"

#: Each of these is printed by `status`, which a test below sees, and explained by the guide's table.
EXPLAINED = {
    "primary: does not answer",
    "secondary: does not answer",
    "refuses: the key is wrong",
    "so twinbus must ask for its name: give --primary-name",
    "sizes are not known",
    "there are no backlog queues of",
    "Primary and secondary look swapped",
    "not used:",
    "of --queues do not exist",
    "not in use",
    "can be read",
    "amqp:unauthorized-access",
    "the backlog is empty",
    "dead letters",
    "deferred",
    "full",
    "oldest",
    "no message was moved to the primary in this period",
    "the last message was moved",
    "the ledger has no rows of this period",
    "sends go to",
    "backlog",
    "suspect",
    "unknown",
    "failed over by hand?",
}


class Shop(Pair):
    """Namespaces with the policies that the guides recommend: one may only send, one only listen."""

    def __init__(self) -> None:
        super().__init__(DEFAULT)
        sender, reader = (PolicyConfig(name, frozenset({right})) for name, right in RIGHTS.items())
        self.primary = Namespace(NamespaceConfig("contoso", port=0, policies=(sender,)), profile=DEFAULT)
        config = NamespaceConfig("fabrikam", port=0, policies=(sender, reader))
        self.secondary = Namespace(config, profile=DEFAULT, clock=self.clock)

    def primary_of(self, name: str) -> str:
        return self.primary.connection_string_for(name)

    def secondary_of(self, name: str) -> str:
        return self.secondary.connection_string_for(name)


RIGHTS = {"sender": Right.SEND, "reader": Right.LISTEN}


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop() as running:
        await running.create("orders", "bills")
        yield running


async def check(shop: Shop, *arguments: str, code: int) -> str:
    """What the check prints that has the rights of a syphon, and nothing more."""
    result = await restricted(shop, *arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout


async def check_json(shop: Shop, *arguments: str, code: int) -> Any:
    return json.loads(await check(shop, *arguments, "--json", code=code))


async def restricted(shop: Shop, *arguments: str) -> Result:
    given = ("--primary", shop.primary_of("sender"), "--secondary", shop.secondary_of("reader"))
    return await invoke(shop, "status", *given, "--primary-name", "contoso", *arguments)


async def managed(shop: Shop, *arguments: str, code: int) -> str:
    """What status prints to those who have all rights."""
    result = await invoke(shop, "status", *arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def explained(phrase: str, text: str) -> None:
    """Something is printed, and the guide's table explains it."""
    assert phrase in EXPLAINED
    assert phrase in text


# ---- dead letters ----


async def test_syphon_rights_are_enough_for_a_healthy_status(shop: Shop) -> None:
    text = await check(shop, "--queues", "1", code=0)
    explained("the backlog is empty", text)
    explained("sizes are not known", text)
    assert text.splitlines()[:3] == [
        "primary: answers",
        "secondary: answers",
        "sizes are not known: the key lacks the Manage right",
    ]


async def test_dead_letter_is_seen_with_only_the_listen_right(shop: Shop) -> None:
    await give_up(shop, numbered("orders", range(2)), "Bad")
    found = await check_json(shop, code=1)
    assert not found["well"]
    assert [(one["dead_letters"], one["more_dead_letters"]) for one in found["queues"]] == [(2, False)]
    text = await check(shop, code=1)
    explained("dead letters", text)
    assert "0 0 2 ? ?" in " ".join(text.split())
    assert len(await shop.dead_letters()) == 2  # still there, and not locked


async def test_dead_letter_count_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_status, "MAX_PEEKED_DEAD", 3)
    await give_up(shop, numbered("orders", range(5)), "Bad")
    found = await check_json(shop, code=1)
    assert [(one["dead_letters"], one["more_dead_letters"]) for one in found["queues"]] == [(3, True)]
    assert "at least 3" in await check(shop, code=1)


async def test_exact_dead_letter_count_needs_the_manage_right(shop: Shop) -> None:
    await give_up(shop, numbered("orders", range(2)), "Bad")
    assert "0 0 2" in " ".join((await managed(shop, code=1)).split())


async def test_queue_that_may_not_be_read_is_unhealthy(shop: Shop) -> None:
    text = await check(shop, "--secondary", shop.secondary_of("sender"), "--queues", "1", code=1)
    explained("amqp:unauthorized-access", text)
    await shop.secondary.create(QueueDescription(SECOND))
    text = await check(shop, "--secondary", shop.secondary_of("sender"), "--queues", "2", code=1)
    explained("can be read", text)
    assert "none of 2 backlog queues can be read: amqp:unauthorized-access" in text


# ---- the primary's key ----


async def test_wrong_key_for_the_primary_is_detected_although_its_name_is_given(shop: Shop) -> None:
    wrong = connection_string(shop.primary, WRONG, "sender")
    text = await check(shop, "--primary", wrong, code=1)
    explained("refuses: the key is wrong", text)
    assert text.startswith("primary: refuses: the key is wrong: InvalidSignature")
    assert WRONG not in text
    found = await check_json(shop, "--primary", wrong, code=1)
    assert found["primary"]["reachable"]
    assert "the key is wrong" in found["primary"]["error"]
    assert found["queues"][0]["dead_letters"] == 0  # the backlog is looked at all the same


async def test_entity_policy_works_if_the_connection_string_names_the_entity(shop: Shop) -> None:
    rule = AuthorizationRule("clerk", "a2V5", "b3RoZXI=", frozenset({Right.SEND}))
    queue = shop.primary.find("orders")
    assert queue is not None
    await shop.primary.update(replace(queue.description, authorization_rules=(rule,)))
    key = rule.primary_key, rule.key_name
    await check(shop, "--primary", connection_string(shop.primary, *key, entity="orders"), code=0)
    await check(shop, "--primary", connection_string(shop.primary, *key), code=1)


async def test_primary_that_accepts_no_tokens_does_not_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_status, "REACH_SECONDS", 1.0)
    shop.primary.faults.add(Fault(FaultKind.SLOW, on=frozenset({FaultPoint.TOKEN}), delay=30))
    explained("primary: does not answer", await check(shop, code=1))


async def test_namespace_that_is_down_does_not_answer(shop: Shop) -> None:
    await shop.secondary.close()
    explained("secondary: does not answer", await managed(shop, "--primary-name", "contoso", code=1))
    await shop.primary.close()
    explained("primary: does not answer", await managed(shop, "--primary-name", "contoso", code=1))


async def test_primary_that_is_down_needs_primary_name(shop: Shop) -> None:
    await shop.primary.close()
    text = await managed(shop, code=1)
    explained("so twinbus must ask for its name: give --primary-name", text)


# ---- queues that are not there, or not known ----


async def test_unknown_primary_name_is_unhealthy_and_existing_names_are_listed(shop: Shop) -> None:
    await shop.secondary.create(QueueDescription("tailspin/x-servicebus-transfer/0"))
    text = await managed(shop, "--primary-name", "contosso", code=1)
    explained("there are no backlog queues of", text)
    where = f"127.0.0.1:{shop.secondary.port}"
    assert text.splitlines()[-1] == (
        f"there are no backlog queues of contosso in {where}, but there are some of contoso, tailspin:"
        " is --primary-name right?"
    )


async def test_list_of_existing_names_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_status, "MAX_NAMES", 1)
    for name in ("tailspin", "wingtip"):
        await shop.secondary.create(QueueDescription(f"{name}/x-servicebus-transfer/0"))
    assert "but there are some of contoso and 2 more:" in await managed(shop, "--primary-name", "contosso", code=1)


async def test_unknown_primary_name_is_unhealthy_with_only_the_listen_right(shop: Shop) -> None:
    found = await check_json(shop, "--primary-name", "contosso", code=1)
    assert (found["well"], found["queues"], len(found["missing"])) == (False, [], 10)
    assert found["backlog_error"] == (
        f"there are no backlog queues of contosso in 127.0.0.1:{shop.secondary.port}: is this the right pair?"
        " A client creates them when it starts"
    )


async def test_missing_backlog_before_the_first_client_is_unhealthy(shop: Shop) -> None:
    await shop.secondary.delete(BACKLOG)
    assert "A client creates them when it starts" in await managed(shop, code=1)


async def test_queues_beyond_the_count_are_read_with_only_the_listen_right(shop: Shop) -> None:
    await shop.secondary.create(QueueDescription(SECOND))
    await check(shop, "--queues", "1", code=0)
    async with connect(shop.secondary) as connection:
        await (await connection.attach_sender(SECOND)).deliver(envelope("orders"), 10)
    text = await check(shop, "--queues", "1", code=1)
    explained("not in use", text)
    found = await check_json(shop, "--queues", "1", code=1)
    assert [(one["path"], one["used"]) for one in found["queues"]] == [(BACKLOG, True), (SECOND, False)]


@pytest.mark.parametrize("who", [check, managed])
async def test_queue_count_above_the_existing_queues_is_mentioned_and_healthy(shop: Shop, who: Any) -> None:
    text = await who(shop, "--queues", "3", code=0)
    explained("of --queues do not exist", text)
    assert text.splitlines()[-2:] == [
        "the backlog is empty: nothing in 1 queue",
        "2 of the 3 backlog queues of --queues do not exist",
    ]


async def test_queue_that_would_lose_messages_is_shown_as_unhealthy(shop: Shop) -> None:
    await shop.secondary.create(QueueDescription(SECOND, max_delivery_count=10))
    text = await managed(shop, "--queues", "2", code=1)
    explained("not used:", text)
    assert "not used: max_delivery_count is 10: messages would be dead-lettered" in text
    result = await invoke(shop, "status", "--queues", "2", "--json")
    found = json.loads(result.stdout)
    assert not found["well"]
    errors = {one["path"]: one["configuration_error"] for one in found["queues"]}
    assert errors[BACKLOG] is None
    assert errors[SECOND].startswith("max_delivery_count is 10")
    # It does not matter beyond the number of queues that the clients use.
    await managed(shop, "--queues", "1", code=0)


# ---- namespaces that are swapped ----


def exchanged(shop: Shop) -> tuple[str, ...]:
    return "--primary", shop.secondary.connection_string, "--secondary", shop.primary.connection_string


@pytest.mark.parametrize("named", [(), ("--primary-name", "contoso")])
async def test_swapped_namespaces_are_reported(shop: Shop, named: tuple[str, ...]) -> None:
    text = await managed(shop, *exchanged(shop), *named, code=1)
    explained("Primary and secondary look swapped", text)
    primary, secondary = (f"127.0.0.1:{one.port}" for one in (shop.primary, shop.secondary))
    assert f"'{secondary}', given as the primary, holds the backlog queue '{BACKLOG}'" in text
    assert f"which belongs to '{primary}', given as the secondary" in text
    assert "Exchange the two" in text
    found = json.loads((await invoke(shop, "status", *exchanged(shop), *named, "--json")).stdout)
    assert (found["swapped"], found["well"], found["queues"]) == (True, False, [])
    assert "look swapped" in found["backlog_error"]


async def test_namespaces_that_are_each_others_secondary_are_healthy(shop: Shop) -> None:
    await shop.primary.create(QueueDescription("fabrikam/x-servicebus-transfer/0", max_delivery_count=2147483647))
    for given in (exchanged(shop), ()):
        result = await invoke(shop, "status", *given, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["swapped"] is False


async def test_primary_without_the_manage_right_is_not_reported_as_swapped(shop: Shop) -> None:
    arguments = "--primary", shop.secondary_of("sender"), "--secondary", shop.primary.connection_string
    text = await managed(shop, *arguments, "--primary-name", "contoso", code=1)
    assert "look swapped" not in text
    explained("there are no backlog queues of", text)


# ---- the ledger, and what waits ----


async def test_waiting_and_deferred_messages_are_shown(shop: Shop) -> None:
    await shop.put([*numbered("orders", range(3)), *numbered("gone", range(2))])
    await shop.drain()
    text = await managed(shop, code=1)
    for phrase in ("deferred", "full", "oldest"):
        explained(phrase, text)


def ledger_of(folder: Path, *rows: tuple[str, Stage, Outcome, float]) -> tuple[str, str]:
    """Write a ledger with a row for each entity, stage, outcome and age in seconds."""
    with LedgerWriter(str(folder)) as writer:
        for entity, stage, outcome, seconds in rows:
            writer.record(row(entity, stage, outcome)._replace(ts=int((time.time() - seconds) * 1e6)))
    return "--ledger", str(folder)


async def test_ledger_shows_when_the_last_message_was_moved(shop: Shop, tmp_path: Path) -> None:
    diverted = ("orders", Stage.BACKLOG_SEND, Outcome.DONE, 460.0)
    text = await managed(shop, *ledger_of(tmp_path / "diverted", diverted), code=0)
    explained("no message was moved to the primary in this period", text)
    moved = ("orders", Stage.PRIMARY_SEND, Outcome.DONE, 450.0)
    text = await managed(shop, *ledger_of(tmp_path / "moved", diverted, moved), code=0)
    explained("the last message was moved", text)
    assert re.fullmatch(r"the last message was moved 7 min \d+ s ago", text.splitlines()[-1])
    assert "draining" not in text


async def test_ledger_shows_where_sends_go(shop: Shop, tmp_path: Path) -> None:
    given = ledger_of(
        tmp_path,
        ("orders", Stage.BACKLOG_SEND, Outcome.DONE, 20),
        ("bills", Stage.DIRECT, Outcome.FAILED, 20),
        ("notes", Stage.PING, Outcome.FAILED, 20),
    )
    text = await managed(shop, *given, "--minutes", "10", code=0)
    for phrase in ("sends go to", "backlog", "suspect", "unknown", "failed over by hand?"):
        explained(phrase, text)


async def test_ledger_without_rows_of_the_period_is_mentioned(shop: Shop, tmp_path: Path) -> None:
    given = ledger_of(tmp_path, ("orders", Stage.DIRECT, Outcome.DONE, 90))
    explained("the ledger has no rows of this period", await managed(shop, *given, "--minutes", "1", code=0))


# ---- the page ----


def test_guide_explains_exactly_what_is_printed() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert {phrase for cell in rows for phrase in re.findall(r"`([^`]+)`", cell)} == EXPLAINED
