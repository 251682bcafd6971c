"""Keys, tokens and bodies are in nothing that anybody reads or keeps: logs at DEBUG, errors, tracebacks, events,
status, the ledger's files, what commands print. A whole outage is played, and everything it left is searched.

What Spark shows and keeps is searched by `tests/spark/test_syphon_secrets.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus import PairedServiceBusClient, SendAvailabilityOptions, aio
from twinbus.ledger.writer import LedgerWriter
from twinbus.pairing.connection_strings import ConnectionString
from twinbus.testing import EmbeddedNamespace, twin_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = "the salary of somebody is 4711"
PROPERTY = "a property that is nobody's business"
WRONG_KEY = "d3Jvbmcga2V5IHRoYXQgaXMgYSBzZWNyZXQgdG9v"
OPTIONS = SendAvailabilityOptions(
    failover_interval=0, backlog_queue_count=1, attempt_timeout=2, primary_name="contoso", ping_primary_interval=1
)


@dataclass
class Left:
    """What an outage has left, by where it was found."""

    texts: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def add(self, where: str, *texts: object) -> None:
        self.texts[where] = self.texts.get(where, "") + "\n".join(map(str, texts)) + "\n"

    def add_error(self, where: str, error: BaseException) -> None:
        self.add(where, error, repr(error), *traceback.format_exception(error))


class Everything(logging.Handler):
    """What all loggers of the process say, exceptions too."""

    def __init__(self, left: Left) -> None:
        super().__init__(logging.DEBUG)
        self._left = left
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._left.add(f"the logs of {record.name.partition('.')[0]}", self.format(record))


def key_of(namespace: EmbeddedNamespace) -> str:
    return ConnectionString.parse(namespace.connection_string).key


def message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY, application_properties={"remark": PROPERTY})


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    """An outage with both clients, a ledger, errors of every kind, and commands."""
    left, folder = Left(), tmp_path_factory.mktemp("outage")
    handler, root = Everything(left), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with twin_namespaces() as (primary, secondary):
            left.secrets = [key_of(primary), key_of(secondary), WRONG_KEY, BODY, PROPERTY]
            primary.create_queue("orders")
            with LedgerWriter(folder / "ledger") as ledger:
                play(primary, secondary, ledger, left)
                asyncio.run(play_async(primary, secondary, left))
            run_commands(primary, secondary, folder, left)
            for file in sorted((folder / "ledger").rglob("*")):
                if file.is_file():
                    left.add(
                        "the ledger", file.name, pq.read_table(file).to_pylist() if file.suffix == ".parquet" else ""
                    )
                    left.add("the ledger's bytes", file.read_bytes().decode("latin-1"))
            yield left
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def play(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, ledger: LedgerWriter, left: Left) -> None:
    ends = primary.connection_string, secondary.connection_string
    client = PairedServiceBusClient.from_connection_strings(*ends, options=OPTIONS, recorder=ledger, retry_total=0)
    with client:
        client.on_event(lambda event: left.add("events", repr(event), event))
        with client.get_queue_sender("orders") as sender:
            left.add("receipts", repr(sender.send_messages(message())))
            with primary.outage():
                left.add("receipts", repr(sender.send_messages(message())))
                left.add("status", json.dumps(client.status().to_json()), repr(client.status()))
                with secondary.outage(), pytest.raises(ServiceBusError) as raised:
                    sender.send_messages(message())
                left.add_error("errors", raised.value)
        left.add("status", json.dumps(client.status().to_json()), repr(client.status()), repr(client), repr(OPTIONS))


async def play_async(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, left: Left) -> None:
    """With keys that are no good, and one that is not even well-formed."""
    wrong = primary.connection_string.replace(key_of(primary), WRONG_KEY)
    client = aio.PairedServiceBusClient.from_connection_strings(
        wrong, secondary.connection_string, options=OPTIONS, retry_total=0
    )
    try:
        sender = client.get_queue_sender("orders")
        with pytest.raises(ServiceBusError) as raised:
            await sender.send_messages(message())
        left.add_error("errors", raised.value)
    finally:
        await client.close()
    for text in (wrong.replace("Endpoint=sb", "Endpoint=ftp"), wrong + ";nonsense", wrong.replace(";", "")):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - whatever it says, it must not say the key
            aio.PairedServiceBusClient.from_connection_strings(text, secondary.connection_string, options=OPTIONS)
        left.add_error("errors", refused.value)


def run_commands(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, folder: Path, left: Left) -> None:
    wrong = secondary.connection_string.replace(key_of(secondary), WRONG_KEY)
    ledger = str(folder / "ledger")
    commands: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("status", "--json"), {}),
        (("status", "--json"), {"TWINBUS_SECONDARY": wrong}),
        (("backlog", "list", "--json"), {"TWINBUS_SECONDARY": wrong}),
        (("syphon", "--until-empty", "--json", "--queues", "1", "--log-level", "debug", "--ledger", ledger), {}),
        (("syphon", "--until-empty", "--queues", "1", "--log-level", "debug"), {"TWINBUS_SECONDARY": wrong}),
        (("syphon", "--until-empty", "--queues", "1"), {"TWINBUS_PRIMARY": wrong + ";nonsense"}),
        (("ledger", "show", ledger, "--json"), {}),
    ]
    for arguments, more in commands:
        given = {"TWINBUS_PRIMARY": primary.connection_string, "TWINBUS_SECONDARY": secondary.connection_string, **more}
        run = subprocess.run(
            [sys.executable, "-m", "twinbus", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "TWINBUS_PRIMARY_NAME": "contoso", **given},
        )
        left.add(f"twinbus {arguments[0]}", run.returncode, run.stdout, run.stderr)


def test_the_outage_left_something_everywhere(left: Left) -> None:
    """Else there would be nothing to search."""
    assert {"events", "receipts", "errors", "status", "the ledger", "the logs of twinbus", "twinbus syphon"} <= set(
        left.texts
    )
    assert "BacklogUnavailableError" in left.texts["errors"]
    assert "Traceback" in left.texts["errors"]
    assert "orders" in left.texts["the ledger"]
    assert '"moved": 1' in left.texts["twinbus syphon"]
    assert any(name in left.texts for name in ("the logs of azure", "the logs of asyncio"))


def test_no_key_is_anywhere(left: Left) -> None:
    assert found_in(left, left.secrets[:3]) == []


def test_no_token_is_anywhere(left: Left) -> None:
    assert found_in(left, ["SharedAccessSignature sr", "&sig=", "sig%3D", "SharedAccessKey="]) == []


def test_no_body_or_property_of_a_message_is_anywhere(left: Left) -> None:
    assert found_in(left, [BODY, PROPERTY, BODY.encode("utf-16-le").decode("latin-1")]) == []


def found_in(left: Left, secrets: list[str]) -> list[tuple[str, str]]:
    """Where which of them was found, with a few words around it."""
    return [
        (where, text[max(0, text.index(one) - 80) :][:80])
        for where, text in left.texts.items()
        for one in secrets
        if one in text
    ]


def test_a_wrong_option_is_told_without_the_values_of_others(left: Left) -> None:
    given: dict[str, Any] = {"name": "x", "recorder": "no recorder"}
    with pytest.raises((TypeError, ValueError)) as raised:
        PairedServiceBusClient("Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=" + WRONG_KEY, "", **given)
    assert WRONG_KEY not in "".join(traceback.format_exception(raised.value))
