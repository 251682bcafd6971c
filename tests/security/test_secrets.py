"""Keys, tokens and message bodies appear in no output.

A whole outage is played, then logs at DEBUG, errors, tracebacks, events, status, ledger files and command output are
searched. `tests/spark/test_syphon_secrets.py` does the same for Spark.
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
from twinbus.servicebus.connection_strings import ConnectionString
from twinbus.testing import EmbeddedNamespace, twin_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = "the salary of an employee is 4711"
PROPERTY = "a confidential property"
WRONG_KEY = "d3Jvbmcga2V5IHRoYXQgaXMgYSBzZWNyZXQgdG9v"
OPTIONS = SendAvailabilityOptions(
    failover_interval=0, backlog_queue_count=1, attempt_timeout=2, primary_name="contoso", ping_primary_interval=1
)


@dataclass
class Outputs:
    """All output of an outage, by source."""

    texts: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def add(self, where: str, *texts: object) -> None:
        self.texts[where] = self.texts.get(where, "") + "\n".join(map(str, texts)) + "\n"

    def add_error(self, where: str, error: BaseException) -> None:
        self.add(where, error, repr(error), *traceback.format_exception(error))


class LogCollector(logging.Handler):
    """Collects all log records of the process, with tracebacks."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__(logging.DEBUG)
        self._outputs = outputs
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._outputs.add(f"the logs of {record.name.partition('.')[0]}", self.format(record))


def key_of(namespace: EmbeddedNamespace) -> str:
    return ConnectionString.parse(namespace.connection_string).key


def message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY, application_properties={"remark": PROPERTY})


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    """Play an outage with both clients, a ledger, errors and commands; collect all output."""
    outputs, folder = Outputs(), tmp_path_factory.mktemp("outage")
    handler, root = LogCollector(outputs), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with twin_namespaces() as (primary, secondary):
            outputs.secrets = [key_of(primary), key_of(secondary), WRONG_KEY, BODY, PROPERTY]
            primary.create_queue("orders")
            with LedgerWriter(folder / "ledger") as ledger:
                play(primary, secondary, ledger, outputs)
                asyncio.run(play_async(primary, secondary, outputs))
            run_commands(primary, secondary, folder, outputs)
            for file in sorted((folder / "ledger").rglob("*")):
                if file.is_file():
                    outputs.add(
                        "the ledger", file.name, pq.read_table(file).to_pylist() if file.suffix == ".parquet" else ""
                    )
                    outputs.add("the ledger's bytes", file.read_bytes().decode("latin-1"))
            yield outputs
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def play(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, ledger: LedgerWriter, outputs: Outputs) -> None:
    ends = primary.connection_string, secondary.connection_string
    client = PairedServiceBusClient.from_connection_strings(*ends, options=OPTIONS, recorder=ledger, retry_total=0)
    with client:
        client.on_event(lambda event: outputs.add("events", repr(event), event))
        with client.get_queue_sender("orders") as sender:
            outputs.add("receipts", repr(sender.send_messages(message())))
            with primary.outage():
                outputs.add("receipts", repr(sender.send_messages(message())))
                outputs.add("status", json.dumps(client.status().to_json()), repr(client.status()))
                with secondary.outage(), pytest.raises(ServiceBusError) as raised:
                    sender.send_messages(message())
                outputs.add_error("errors", raised.value)
        outputs.add("status", json.dumps(client.status().to_json()), repr(client.status()), repr(client), repr(OPTIONS))


async def play_async(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, outputs: Outputs) -> None:
    """Use wrong keys and malformed connection strings."""
    wrong = primary.connection_string.replace(key_of(primary), WRONG_KEY)
    client = aio.PairedServiceBusClient.from_connection_strings(
        wrong, secondary.connection_string, options=OPTIONS, retry_total=0
    )
    try:
        sender = client.get_queue_sender("orders")
        with pytest.raises(ServiceBusError) as raised:
            await sender.send_messages(message())
        outputs.add_error("errors", raised.value)
    finally:
        await client.close()
    for text in (wrong.replace("Endpoint=sb", "Endpoint=ftp"), wrong + ";nonsense", wrong.replace(";", "")):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - only the absence of the key matters
            aio.PairedServiceBusClient.from_connection_strings(text, secondary.connection_string, options=OPTIONS)
        outputs.add_error("errors", refused.value)


def run_commands(primary: EmbeddedNamespace, secondary: EmbeddedNamespace, folder: Path, outputs: Outputs) -> None:
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
        environment = {
            "TWINBUS_PRIMARY": primary.connection_string,
            "TWINBUS_SECONDARY": secondary.connection_string,
            **more,
        }
        run = subprocess.run(
            [sys.executable, "-m", "twinbus", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "TWINBUS_PRIMARY_NAME": "contoso", **environment},
        )
        outputs.add(f"twinbus {arguments[0]}", run.returncode, run.stdout, run.stderr)


def test_outage_produced_output_of_every_kind(outputs: Outputs) -> None:
    """Otherwise the searches below would prove nothing."""
    assert {"events", "receipts", "errors", "status", "the ledger", "the logs of twinbus", "twinbus syphon"} <= set(
        outputs.texts
    )
    assert "BacklogUnavailableError" in outputs.texts["errors"]
    assert "Traceback" in outputs.texts["errors"]
    assert "orders" in outputs.texts["the ledger"]
    assert '"moved": 1' in outputs.texts["twinbus syphon"]
    assert any(name in outputs.texts for name in ("the logs of azure", "the logs of asyncio"))


def test_no_key_appears_in_any_output(outputs: Outputs) -> None:
    assert found_in(outputs, outputs.secrets[:3]) == []


def test_no_token_appears_in_any_output(outputs: Outputs) -> None:
    assert found_in(outputs, ["SharedAccessSignature sr", "&sig=", "sig%3D", "SharedAccessKey="]) == []


def test_no_message_body_or_property_appears_in_any_output(outputs: Outputs) -> None:
    assert found_in(outputs, [BODY, PROPERTY, BODY.encode("utf-16-le").decode("latin-1")]) == []


def found_in(outputs: Outputs, secrets: list[str]) -> list[tuple[str, str]]:
    """The places of the secrets found, with context."""
    return [
        (where, text[max(0, text.index(secret) - 80) :][:80])
        for where, text in outputs.texts.items()
        for secret in secrets
        if secret in text
    ]


def test_option_error_does_not_show_other_options(outputs: Outputs) -> None:
    given: dict[str, Any] = {"name": "x", "recorder": "no recorder"}
    with pytest.raises((TypeError, ValueError)) as raised:
        PairedServiceBusClient("Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=" + WRONG_KEY, "", **given)
    assert WRONG_KEY not in "".join(traceback.format_exception(raised.value))
