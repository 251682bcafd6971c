"""Tests a report from a ledger on real Spark against an independent count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.ledger_shape import Expected, Shape
from bench.ledgers import generate

from twinbus.ledger.recorder import Stage
from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.document import Report
from twinbus.report.render.html import render
from twinbus.spark import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHAPE = Shape(rows=12_000, entities=3, days=1, outages=2, lost=3, unexpected=2, trouble=2_000, repeats=20)


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Expected, Report]:
    ledger: Path = tmp_path_factory.mktemp("of-ledger") / "ledger"
    expected = generate(ledger, SHAPE)
    run_pipeline(spark, ledger)
    return expected, assemble(open_results(str(ledger)), Wishes(book=load_prices()))


def test_every_word_matches_an_independent_count(known: tuple[Expected, Report]) -> None:
    expected, report = known
    assert report.summary is not None
    words = {name: report.summary[name] for name in ("attempted", "acknowledged", "ok")}
    assert words == {name: getattr(expected, name) for name in words}
    for word in ("lost", "unexpected", "duplicated", "recovered"):
        listed = sorted(row["message_id"] for row in report.anomalies.shown if row["word"] == word)
        assert listed == sorted(getattr(expected, word))
    assert report.headline.word == "lost"


def test_every_billed_operation_is_in_the_cost(known: tuple[Expected, Report]) -> None:
    expected, report = known
    assert report.cost is not None
    stages: Counter[Stage] = Counter()
    entities: Counter[str] = Counter()
    for row in expected.usages():
        stages[row.stage] += row.operations
        entities[row.entity] += row.operations
    assert {stage: part.operations for stage, part in report.cost.stages.items()} == stages
    assert {name: part.operations for name, part in report.cost.entities.items()} == entities


def test_every_outage_is_reported_with_its_messages(known: tuple[Expected, Report]) -> None:
    expected, report = known
    assert len(report.incidents) == SHAPE.outages
    assert len(report.outages) == len(expected.outages)
    assert sum(outage.diverted for outage in report.outages) == sum(
        outage.diverted for outage in expected.outages.values()
    )
    assert report.backlog.now == 0
    assert report.backlog.peak is not None
    assert report.backlog.peak.depth > 0


def test_page_names_the_lost_messages(known: tuple[Expected, Report]) -> None:
    expected, report = known
    html = render(report)
    assert "3 accepted messages did not arrive." in html
    assert all(message_id in html for message_id in expected.lost)
