"""The Spark job of examples/: after a real outage it drains, reconciles and finds nothing missing."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus import PairedServiceBusClient, SendAvailabilityOptions
from twinbus.ledger.writer import LedgerWriter
from twinbus.testing import TwinNamespaces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_job.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_spark_job_brings_everything_home_and_says_so(
    spark: SparkSession,
    twinbus_namespaces: TwinNamespaces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    monkeypatch.setenv("TWINBUS_PRIMARY", primary.connection_string)
    monkeypatch.setenv("TWINBUS_SECONDARY", secondary.connection_string)
    options = SendAvailabilityOptions(failover_interval=0)
    with (
        LedgerWriter(tmp_path / "ledger") as ledger,
        PairedServiceBusClient(
            primary.connection_string, secondary.connection_string, options, recorder=ledger
        ) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("order 0"))
        with primary.outage():
            for number in range(1, 6):
                sender.send_messages(ServiceBusMessage(f"order {number}"))
    assert primary.message_count("orders") == 1

    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main("contoso", str(tmp_path / "ledger"), str(tmp_path / "report.html")) == 0
    assert primary.message_count("orders") == 6
    assert "<!doctype html>" in (tmp_path / "report.html").read_text("utf-8").lower()
    out = capsys.readouterr().out
    print(out)
