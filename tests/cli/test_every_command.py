"""Every command once, as a person would: in a terminal where it is alive, and with `--json` as the page documents it.

The tests are one story and run in the order in which they stand.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from tests.cli.terminal import SECONDS, Terminal

from twinbus import PairedServiceBusClient, SendAvailabilityOptions
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.connection_strings import ConnectionString

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
NAMESPACES = """
[namespaces.contoso]
port = 0
queues.orders = {}
queues."sales/europe/orders-of-every-kind" = {}
queues.gone = {}
[namespaces.contoso-standby]
port = 0
"""
LONG = "sales/europe/orders-of-every-kind"


def documented() -> dict[str, set[str]]:
    """The keys of each command's object, as the page has them."""
    table = PAGE.read_text("utf-8").partition("## The keys of `--json`")[2]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", table, re.MULTILINE)
    return {command: set(re.findall(r"`(\w+)`", keys)) for command, keys in rows}


@dataclass(slots=True)
class Shop:
    """A folder with namespaces, and what a person has set there."""

    folder: Path
    environment: dict[str, str]
    served: Terminal

    def terminal(self, *arguments: str) -> Terminal:
        return Terminal(*arguments, cwd=self.folder, env=self.environment)

    def says(self, *arguments: str, code: int = 0) -> str:
        """What a command writes in a terminal."""
        with self.terminal(*arguments) as terminal:
            ended, text = terminal.end()
        assert ended == code, text
        assert "Traceback" not in text
        self.has_no_key(text)
        return text

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What a program gets of a command; its keys are those of the page."""
        command = [sys.executable, "-m", "twinbus", *arguments, "--json"]
        ran = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert ran.returncode == code, ran.stderr
        self.has_no_key(ran.stdout + ran.stderr)
        found = json.loads(ran.stdout)
        name = " ".join(arguments[:2] if arguments[0] in ("backlog", "ledger", "pipeline", "cost") else arguments[:1])
        assert set(found) == documented()[name]
        return found

    def has_no_key(self, text: str) -> None:
        for name in ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"):
            assert ConnectionString.parse(self.environment[name]).key not in text


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """`twinbus serve` in one terminal, and its `export` lines pasted into the other."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "namespaces.toml").write_text(NAMESPACES)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TWINBUS_")}
    with Terminal("serve", "--config", "namespaces.toml", cwd=folder, env=plain) as served:
        lines = re.findall(r"^ *export (\w+)=(\S+)$", served.wait_for("ready; Ctrl-C stops"), re.MULTILINE)
        exported = {name: value.strip("'") for name, value in lines}
        assert list(exported) == ["TWINBUS_PRIMARY", "TWINBUS_SECONDARY", "TWINBUS_PRIMARY_NAME"]
        yield Shop(folder, {**plain, **exported}, served)
        served.interrupt()
        assert served.end()[0] == 0


def divert(shop: Shop, **counts: int) -> None:
    """An application that has failed over by hand, and keeps a ledger."""
    primary, secondary = shop.environment["TWINBUS_PRIMARY"], shop.environment["TWINBUS_SECONDARY"]
    options = SendAvailabilityOptions(backlog_queue_count=4)
    with (
        LedgerWriter(str(shop.folder / "ledger")) as recorder,
        PairedServiceBusClient(primary, secondary, options, recorder=recorder) as client,
    ):
        for entity, count in {LONG if name == "long" else name: count for name, count in counts.items()}.items():
            client.fail_over(entity)
            with client.get_queue_sender(entity) as sender:
                sender.send_messages([ServiceBusMessage(f"{entity} {number}") for number in range(count)])


def test_page_lists_every_command() -> None:
    from twinbus.cli.main import Commands

    names = set()
    for name, command in Commands().items():
        inner = getattr(command, "commands", None)
        names |= {name} if inner is None else {f"{name} {one}" for one in inner}
    assert names == set(documented()) - {"syphon --spark"}


def test_status_before_any_send(shop: Shop) -> None:
    text = shop.says("status", code=1)
    assert "there are no backlog queues of contoso in 127.0.0.1:" in text
    assert "A client creates them when it starts" in text
    assert not shop.json("status", code=1)["well"]


def test_status_fits_80_columns_without_breaking_paths(shop: Shop) -> None:
    divert(shop, orders=30, long=5)
    text = shop.says("status", "--ledger", "ledger", code=1)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.endswith(LONG) and not line.startswith(LONG)] == []
    assert [line.split()[-1] for line in lines if line.endswith(LONG)] == [LONG, LONG]
    assert "more queues are empty" in text
    assert "orders: no send failed and no ping was sent: failed over by hand?" in text
    assert len(shop.says("status", "--all", code=1).splitlines()) > len(shop.says("status", code=1).splitlines())
    found = shop.json("status", "--ledger", "ledger", code=1)
    assert {one["entity"]: one["diverted"] for one in found["entities"]} == {"orders": 30, LONG: 5}


def test_backlog_queues_are_listed(shop: Shop) -> None:
    assert "contoso/x-servicebus-transfer/3" in shop.says("backlog", "list", "--queues", "4")
    assert sum(one["messages"] for one in shop.json("backlog", "list")["queues"]) == 35
    assert "contoso/x-servicebus-transfer/3" in shop.says("backlog", "unused", "--queues", "3")
    assert [one["index"] for one in shop.json("backlog", "unused", "--queues", "3")["queues"]] == [3]


def test_syphon_shows_progress_and_ends_when_the_backlog_is_empty(shop: Shop) -> None:
    with shop.terminal("syphon", "--until-empty", "--rate", "10", "--ledger", "ledger") as terminal:
        terminal.wait_for("a second, 0 deferred")  # a line that changes
        code, text = terminal.end()
    assert code == 0
    assert f"{LONG}: 5 moved" in text
    assert "35 moved in" in text
    assert "the last message was moved" in shop.says("status", "--ledger", "ledger")


def test_ctrl_c_ends_a_continuous_syphon(shop: Shop) -> None:
    with shop.terminal("syphon", "--queues", "4") as terminal:
        terminal.wait_for("0 moved, 0 a second")
        terminal.interrupt()
        code, text = terminal.end()
    assert (code, "0 moved in" in text) == (0, True)


def test_syphon_names_unreachable_destinations_and_the_reason(shop: Shop) -> None:
    divert(shop, nowhere=2)
    assert shop.json("syphon", "--until-empty", "--queues", "4", code=1)["deferred"] == 2
    text = shop.says("syphon", "--until-empty", "--queues", "4", code=1)
    assert "Attaching a sender to nowhere failed: amqp:not-found" in text


@pytest.mark.usefixtures("dead_letters")
def test_dead_letters_are_listed_and_replayed_after_confirmation(shop: Shop) -> None:
    assert "RefusedByDestination" in shop.says("backlog", "dead-letters")
    assert len(shop.json("backlog", "dead-letters")["dead_letters"]) == 2
    with shop.terminal("backlog", "replay", "--message-id", "dead-0") as terminal:
        terminal.wait_for("Send 1 dead letter to 1 destination? [y/N]")
        terminal.type("n\n")
        assert terminal.end()[0] == 1
    with shop.terminal("backlog", "replay", "--message-id", "dead-0") as terminal:
        terminal.wait_for("[y/N]")
        terminal.type("y\n")
        code, text = terminal.end()
    assert (code, "1 moved, 0 left in the dead-letter queues" in text) == (0, True)
    assert shop.json("backlog", "replay", "--yes")["moved"] == 1


@pytest.fixture
def dead_letters(shop: Shop) -> None:
    """Two dead-lettered messages."""
    from azure.servicebus import ServiceBusClient

    queue = "contoso/x-servicebus-transfer/0"
    with ServiceBusClient.from_connection_string(shop.environment["TWINBUS_SECONDARY"]) as client:
        with client.get_queue_sender(queue) as sender:
            for number in range(2):
                properties: Any = {"x-ms-path": "orders"}
                message = ServiceBusMessage("x", message_id=f"dead-{number}", application_properties=properties)
                sender.send_messages(message)
        with client.get_queue_receiver(queue) as receiver:
            for received in receiver.receive_messages(10, max_wait_time=10):
                receiver.dead_letter_message(received, reason="RefusedByDestination")


def test_ledger_is_shown_and_compacted(shop: Shop) -> None:
    assert "backlog_send" in shop.says("ledger", "show", "ledger", "--stage", "backlog_send", "--limit", "3")
    rows = shop.json("ledger", "show", "ledger", "--stage", "primary_send")["rows"]
    assert len(rows) == 35
    assert "old files removed" in shop.says("ledger", "compact", "ledger")
    assert shop.json("ledger", "compact", "ledger")["replaced_files"] == 0  # the day is not over


def test_cost_is_estimated(shop: Shop) -> None:
    assert "40 per hour, 960 per day, 28,800 in 30 days" in shop.says("cost", "estimate")
    assert shop.json("cost", "estimate", "--rate", "50")["polls"]["days_30"] == 28_800


def test_syphon_on_spark_shows_progress(shop: Shop) -> None:
    divert(shop, orders=40)
    command = ("syphon", "--spark", "--until-empty", "--queues", "4", "--memory", "1g", "--json")
    with shop.terminal(*command) as terminal:
        terminal.wait_for("remaining")
        code, text = terminal.end()
    assert code == 1  # what is for `nowhere` is still deferred
    assert "━" in text  # a bar
    found = last_object(text)
    assert (found["moved"], found["deferred"]) == (40, 2)
    assert set(found) == documented()["syphon --spark"]


def test_pipeline_runs_and_report_prints_the_verdict(shop: Shop) -> None:
    found = last_object(shop.says("pipeline", "run", "ledger", "--memory", "1g", "--patience", "30m", "--json"))
    assert found["reconciliation"]["lost"] == 0
    assert set(found) == documented()["pipeline run"]
    assert "Is anything missing?" in shop.says("report", "ledger")
    assert shop.json("report", "ledger")["verdict"]["word"]
    assert "report.html" in shop.says("report", "ledger", "--html", "report.html")
    assert (shop.folder / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_ctrl_c_ends_pipeline_watch(shop: Shop) -> None:
    command = ("pipeline", "watch", "ledger", "--interval", "1", "--memory", "1g", "--results", "watched", "--json")
    with shop.terminal(*command) as terminal:
        terminal.wait_for('"snapshot": 1')
        terminal.interrupt()
        code, text = terminal.end()
    assert code == 0
    assert set(last_object(text)) == documented()["pipeline watch"]


def last_object(text: str) -> Any:
    """The object on the last line that has one; a progress bar may stand before it."""
    line = next(line for line in reversed(text.splitlines()) if line.endswith("}"))
    return json.loads(line[line.index("{") :])
