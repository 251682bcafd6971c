"""`twinbus backlog` and `twinbus status` against two namespaces with messages and dead letters in the backlog."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.blocked_ledger import block
from tests.connection_strings import connection_string
from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import connect
from tests.syphon.pumping import BACKLOG, Pair, bodies, envelope, numbered
from typer.testing import CliRunner, Result

from twinbus.admin_tools import dead_letters as module
from twinbus.amqp.client.receiver import Delivery, dead_letter
from twinbus.cli.commands import backlog as command
from twinbus.cli.main import app
from twinbus.emulator import DEFAULT, QueueDescription
from twinbus.ledger import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import AuthorizationRule

DEAD = f"{BACKLOG}/$DeadLetterQueue"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT) as running:
        await running.create("orders", "bills")
        yield running


async def invoke(pair: Pair, *arguments: str) -> Result:
    """The command, while the namespaces go on answering."""
    environment = {
        "TWINBUS_PRIMARY": pair.primary.connection_string,
        "TWINBUS_SECONDARY": pair.secondary.connection_string,
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=environment)


async def ask(pair: Pair, *arguments: str, code: int = 0) -> Any:
    result = await invoke(pair, *arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


async def give_up(pair: Pair, payloads: list[bytes], reason: str, description: str = "because") -> None:
    """Put messages into the backlog and dead-letter them there."""
    await pair.put(payloads)
    found: list[Delivery] = []
    async with connect(pair.secondary) as connection:
        receiver = await connection.attach_receiver(BACKLOG, found.append, credit=10_000)
        await receiver.stop(20)
        for delivery in found:
            await receiver.settled(delivery, dead_letter(reason, description), 20)
    assert len(found) == len(payloads)


# ---- list and unused ----


async def test_list_shows_every_backlog_queue_with_its_size(pair: Pair) -> None:
    await give_up(pair, numbered("orders", range(2)), "Bad")
    await pair.put(numbered("orders", range(3)))
    await pair.secondary.create(QueueDescription("contoso/x-servicebus-transfer/7"))
    await pair.secondary.create(QueueDescription("other/x-servicebus-transfer/0"))
    await pair.secondary.create(QueueDescription("unrelated"))
    found = (await ask(pair, "backlog", "list", "--queues", "5"))["queues"]
    assert [(one["path"], one["used"], one["messages"], one["dead_letters"]) for one in found] == [
        (BACKLOG, True, 3, 2),
        ("contoso/x-servicebus-transfer/7", False, 0, 0),
    ]
    assert 0 < found[0]["bytes"] < found[0]["max_bytes"]
    text = (await invoke(pair, "backlog", "list", "--queues", "5")).stdout
    assert BACKLOG in text
    assert "not in use" in text


async def test_unused_lists_only_queues_beyond_the_queue_count(pair: Pair) -> None:
    assert (
        "all backlog queues are among the 1 in use" in (await invoke(pair, "backlog", "unused", "--queues", "1")).stdout
    )
    await pair.secondary.create(QueueDescription("contoso/x-servicebus-transfer/1"))
    found = (await ask(pair, "backlog", "unused", "--queues", "1"))["queues"]
    assert [one["index"] for one in found] == [1]


# ---- dead letters ----


async def test_dead_letters_are_listed_with_destination_and_reason_without_changes(pair: Pair) -> None:
    await give_up(pair, numbered("orders", range(2)), "RefusedByDestination", "too large")
    await give_up(pair, [envelope(None, id="stranger")], "NotOurs")
    found = (await ask(pair, "backlog", "dead-letters"))["dead_letters"]
    assert [(one["message_id"], one["destination"], one["reason"]) for one in found] == [
        ("orders-0", "orders", "RefusedByDestination"),
        ("orders-1", "orders", "RefusedByDestination"),
        ("stranger", None, "NotOurs"),
    ]
    assert {one["queue"] for one in found} == {BACKLOG}
    assert found[0]["description"] == "too large"
    assert len(await pair.dead_letters()) == 3


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (("--destination", "/ORDERS"), {"orders-0", "orders-1"}),
        (("--reason", "Other"), {"bills-0"}),
        (("--message-id", "orders-1", "--message-id", "bills-0"), {"orders-1", "bills-0"}),
        (("--limit", "1"), {"orders-0"}),
    ],
)
async def test_dead_letters_can_be_filtered(pair: Pair, arguments: tuple[str, ...], ids: set[str]) -> None:
    await give_up(pair, numbered("orders", range(2)), "RefusedByDestination")
    await give_up(pair, numbered("bills", range(1)), "Other")
    found = (await ask(pair, "backlog", "dead-letters", *arguments))["dead_letters"]
    assert {one["message_id"] for one in found} == ids


async def test_control_characters_in_names_do_not_reach_the_terminal(pair: Pair) -> None:
    await give_up(pair, [envelope("orders", id="\x1b[2Jgone")], "Bad")
    text = (await invoke(pair, "backlog", "dead-letters")).stdout
    assert "\x1b" not in text
    assert "[2Jgone" in text


# ---- replay ----


async def test_replay_sends_dead_letters_and_removes_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)  # several rounds
    await give_up(pair, numbered("orders", range(20)), "RefusedByDestination")
    done = await ask(pair, "backlog", "replay", "--yes")
    assert done == {"chosen": 20, "moved": 20, "not_completed": 0, "missing": 0, "left": []}
    assert await pair.arrived("orders") == bodies(range(20))
    assert await pair.dead_letters() == []


async def test_replay_takes_only_filtered_messages_and_unlocks_the_rest(pair: Pair) -> None:
    await give_up(pair, numbered("orders", range(5)), "RefusedByDestination")
    await give_up(pair, numbered("bills", range(3)), "RefusedByDestination")
    done = await ask(pair, "backlog", "replay", "--yes", "--destination", "bills")
    assert done["moved"] == 3
    assert await pair.arrived("bills") == bodies(range(3))
    assert await pair.arrived("orders") == []
    assert len(await pair.dead_letters()) == 5


async def test_replayed_expired_message_gets_a_new_time_to_live(pair: Pair) -> None:
    await pair.put(numbered("orders", range(2), seconds=30))
    await let_pass(pair.secondary, pair.clock, 60)
    report = await pair.drain()
    assert report.total.expired == 2
    done = await ask(pair, "backlog", "replay", "--yes", "--reason", "ExpiredInBacklog")
    assert done["moved"] == 2
    assert await pair.arrived("orders") == bodies(range(2))


async def test_message_refused_again_stays_with_its_reason_and_exit_code_1(pair: Pair) -> None:
    await give_up(pair, [*numbered("gone", range(1)), *numbered("orders", range(1)), envelope(None, id="s")], "Bad")
    done = await ask(pair, "backlog", "replay", "--yes", code=1)
    assert (done["moved"], done["missing"]) == (1, 0)
    assert done["left"][0]["why"] == "amqp:not-found"
    assert "x-ms-path" in done["left"][1]["why"]
    assert len(await pair.dead_letters()) == 2
    assert await pair.arrived("orders") == bodies(range(1))


async def test_dead_letter_for_a_backlog_queue_is_never_sent(pair: Pair) -> None:
    await give_up(pair, [envelope("contoso/x-servicebus-transfer/0", id="loop")], "DestinationIsBacklogQueue")
    done = await ask(pair, "backlog", "replay", "--yes", code=1)
    assert "backlog queue" in done["left"][0]["why"]
    assert pair.is_backlog_empty


async def test_replay_asks_for_confirmation_or_needs_yes(pair: Pair) -> None:
    await give_up(pair, numbered("orders", range(1)), "Bad")
    result = await invoke(pair, "backlog", "replay")
    assert result.exit_code == 2
    assert "--yes is missing" in result.output
    assert len(await pair.dead_letters()) == 1


async def test_replay_is_recorded_before_a_dead_letter_is_removed(pair: Pair, tmp_path: Path) -> None:
    await give_up(pair, numbered("orders", range(3)), "Bad")
    await ask(pair, "backlog", "replay", "--yes", "--ledger", str(tmp_path / "ledger"))
    rows = list(to_operations(read_ledger(str(tmp_path / "ledger")).table))
    of_kind = {
        kind: [one for one in rows if one.operation is kind]
        for kind in (OperationKind.RECEIVE, OperationKind.SEND, OperationKind.COMPLETE)
    }
    assert {kind: len(found) for kind, found in of_kind.items()} == dict.fromkeys(of_kind, 3)
    assert all(one.outcome is Outcome.DONE and one.pairing == "contoso" for one in rows)
    assert {one.stage for one in of_kind[OperationKind.SEND]} == {Stage.PRIMARY_SEND}
    assert max(one.ts for one in of_kind[OperationKind.SEND]) <= min(one.ts for one in of_kind[OperationKind.COMPLETE])


async def test_no_dead_letter_is_removed_while_the_ledger_is_unavailable(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LEDGER_SECONDS", 0.5)
    await give_up(pair, numbered("orders", range(1)), "Bad")
    block(tmp_path / "ledger")
    result = await invoke(pair, "backlog", "replay", "--yes", "--ledger", str(tmp_path / "ledger"))
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert (await ask(pair, "backlog", "list"))["queues"][0]["dead_letters"] == 1


# ---- status ----


async def test_status_of_a_healthy_pairing_exits_with_0(pair: Pair) -> None:
    found = await ask(pair, "status")
    assert found["well"]
    assert found["primary"] == found["secondary"] == {"reachable": True, "error": None}
    assert [(one["path"], one["messages"], one["oldest_seconds"]) for one in found["queues"]] == [(BACKLOG, 0, None)]
    assert found["entities"] is None


async def test_status_shows_depth_age_and_destinations_of_the_backlog(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(3)), *numbered("bills", range(2))])
    found = await ask(pair, "status", code=1)
    queue = found["queues"][0]
    assert queue["messages"] == 5
    assert 0 <= queue["oldest_seconds"] < 60
    assert queue["destinations"] == {"orders": 3, "bills": 2}
    assert queue["seen_all"]
    text = (await invoke(pair, "status")).stdout
    assert [" ".join(line.split()) for line in text.splitlines()[-2:]] == ["3 0 orders", "2 0 bills"]


async def test_status_shows_messages_deferred_for_a_destination_that_is_down(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(3)), *numbered("gone", range(2))])
    await pair.drain()
    found = await ask(pair, "status", code=1)
    assert found["deferred"] == {"gone": 2}
    assert "2 2 gone" in " ".join((await invoke(pair, "status")).stdout.split())


async def test_status_without_the_manage_right_reads_the_queues_it_may_listen_to(pair: Pair) -> None:
    second = "contoso/x-servicebus-transfer/1"
    rule = AuthorizationRule("reader", "a2V5", "b3RoZXI=", frozenset({Right.LISTEN}))
    await pair.secondary.create(QueueDescription(second, authorization_rules=(rule,)))
    async with connect(pair.secondary) as connection:
        await (await connection.attach_sender(second)).deliver(envelope("orders"), 10)
    text = connection_string(pair.secondary, rule.primary_key, rule.key_name)
    result = await invoke(pair, "status", "--secondary", text, "--queues", "3", "--json")
    found = json.loads(result.stdout)
    assert "lacks the Manage right" in found["administration_error"]
    by_path = {one["path"]: one for one in found["queues"]}
    assert by_path[second]["destinations"] == {"orders": 1}
    assert by_path[second]["messages"] is None
    assert by_path[BACKLOG]["error"]


async def test_status_shows_a_primary_that_is_down_and_still_reads_the_backlog(pair: Pair) -> None:
    await pair.put(numbered("orders", range(3)))
    await pair.primary.close()
    found = await ask(pair, "status", "--primary-name", "contoso", code=1)
    assert not found["primary"]["reachable"]
    assert found["queues"][0]["messages"] == 3


async def test_status_shows_a_secondary_that_is_down(pair: Pair) -> None:
    await pair.secondary.close()
    found = await ask(pair, "status", "--primary-name", "contoso", code=1)
    assert found["primary"]["reachable"]
    assert not found["secondary"]["reachable"]
    assert "secondary: does not answer" in (await invoke(pair, "status", "--primary-name", "contoso")).stdout


async def test_status_shows_routes_and_drains_from_the_ledger(pair: Pair, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")
    with LedgerWriter(ledger) as writer:
        for entity, stage, outcome in (
            ("orders", Stage.DIRECT, Outcome.FAILED),
            ("orders", Stage.BACKLOG_SEND, Outcome.DONE),
            ("bills", Stage.DIRECT, Outcome.DONE),
        ):
            writer.record(row(entity, stage, outcome))
    found = await ask(pair, "status", "--ledger", ledger)
    assert {one["entity"]: one["state"] for one in found["entities"]} == {"orders": "backlog", "bills": "primary"}
    assert found["last_move"] is None
    assert "no message was moved to the primary" in (await invoke(pair, "status", "--ledger", ledger)).stdout
    with LedgerWriter(ledger) as writer:
        writer.record(row("orders", Stage.PRIMARY_SEND, Outcome.DONE))
    assert "the last message was moved" in (await invoke(pair, "status", "--ledger", ledger)).stdout


def row(entity: str, stage: Stage, outcome: Outcome) -> Operation:
    role = NamespaceRole.SECONDARY if stage is Stage.BACKLOG_SEND else NamespaceRole.PRIMARY
    return Operation(
        pairing="contoso",
        client="test",
        namespace=role,
        entity=BACKLOG if stage is Stage.BACKLOG_SEND else entity,
        destination=entity,
        operation=OperationKind.SEND,
        stage=stage,
        outcome=outcome,
    )


async def test_missing_ledger_is_a_one_line_error(pair: Pair, tmp_path: Path) -> None:
    result = await invoke(pair, "status", "--ledger", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


# ---- what is wrong ----


@pytest.mark.parametrize(
    "command", [("backlog", "list"), ("backlog", "dead-letters"), ("backlog", "replay"), ("status",)]
)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "--primary is missing"),
        (
            {"TWINBUS_PRIMARY": "Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"},
            "--secondary is missing",
        ),
        ({"TWINBUS_PRIMARY": "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"}, "--primary: "),
    ],
)
def test_invalid_connection_string_is_named_without_its_key(
    command: tuple[str, ...], given: dict[str, str], says: str
) -> None:
    empty = {"TWINBUS_PRIMARY": "", "TWINBUS_SECONDARY": ""}
    result = CliRunner().invoke(app, list(command), env=empty | given)
    assert result.exit_code == 2
    assert says in result.output
    assert "c2VjcmV0" not in result.output


async def test_secondary_that_does_not_answer_is_a_one_line_error(pair: Pair) -> None:
    await pair.secondary.close()
    result = await invoke(pair, "backlog", "list")
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
