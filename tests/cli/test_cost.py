"""`twinbus cost`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from twinbus.cli.main import app

WIDE = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", "estimate", *arguments], env=WIDE)


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def lines(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line]


def test_json_has_the_figures_of_the_documentation() -> None:
    assert answer("--backlog-queues", "10")["polls"] == {"seconds": 900, "hour": 40, "day": 960, "days_30": 28_800}
    found = answer("--entities", "2", "--clients", "3", "--outage", "1h")
    assert found["pings"] == {"seconds": 60, "minute": 6, "hour": 360, "outage": 360}
    assert found["diverted_message"] == {"stages": 4, "operations": 6, "pairing": 3}


def test_json_has_exact_costs() -> None:
    found = answer("--rate", "50", "--outage", "2h", "--clients", "3", "--transfer-per-gb", "0.02")
    assert found["prices"] == {"currency": "USD", "date": "2026-10-05", "source": "Retail price list, UK South"}
    assert found["diverted"] == {"seconds": 7_200, "messages": 360_000, "bytes": 368_640_000}
    assert found["operations"]["pairing"] == {
        "poll": 28_800,
        "ping": 360,
        "backlog_send": 360_000,
        "backlog_receive": 720_000,
        "manage": 43,
    }
    assert found["operations"]["application"] == {
        "direct": 129_240_000,
        "primary_send": 360_000,
        "primary_receive": 259_200_000,
    }
    assert found["cost"]["application"] == "223.67752"
    assert found["cost"]["pairing"] == "0.5693471"
    assert found["cost"]["total"] == "224.2468671"
    assert found["cost"]["items"][-1] == {
        "tier": "standard",
        "item": "transfer",
        "quantity": "0.73728",
        "application": "0",
        "pairing": "0.0147456",
    }
    assert found["warnings"] == []


def test_json_has_the_drain_duration() -> None:
    found = answer("--messages", "52428800", "--size", "1KB")
    assert found["drain"] == {
        "seconds": 104857.6,
        "fastest_seconds": 52428.8,
        "rate": 500,
        "limited_by": "primary",
    }
    assert found["backlog"] == {"capacity_bytes": 53_687_091_200, "fits": True, "full_after_seconds": None}
    assert answer("--messages", "1", "--rate", "600")["drain"]["seconds"] is None


def test_text_output_has_tables() -> None:
    found = lines("--rate", "50", "--outage", "2h", "--clients", "3")
    assert found[:4] == [
        "polls of 10 queues: 40 per hour, 960 per day, 28,800 in 30 days",
        "pings while every entity is failed over: 180 per hour; in this outage 360",
        "diverted: 360,000 messages, 368,640,000 bytes",
        "drain: 14 min, at 450 per second, limited by the primary's throttle, which live traffic and receivers share",
    ]
    assert "sent to the primary 129,240,000" in found
    assert "diverted: received from the backlog and settled 720,000" in found
    assert "standard: operations 389,909,203 214.00 0.55" in found
    assert "standard: connections 13.008 0.00 0.00" in found
    assert "total 223.68 0.55" in found
    assert found[-1] == "prices of 2026-10-05: Retail price list, UK South"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--messages", "52428800"], "drain: 29 h 8 min, at 500 per second"),
        (["--messages", "500000000"], "drain: 11 days 13 h, at 500 per second"),
        (["--messages", "500"], "drain: 1 s, at 500 per second"),
        (["--messages", "9", "--rate", "500"], "drain: would never end"),
        (
            ["--messages", "100", "--drain-rate", "2.5"],
            "drain: 40 s, at 2 per second, limited by the syphon's own rate",
        ),
        (["--messages", "9", "--primary-tier", "premium", "--secondary-tier", "premium"], "drain: as fast as"),
        (["--messages", "9", "--primary-tier", "premium"], "limited by the secondary's throttle"),
    ],
)
def test_text_output_has_the_drain_duration(arguments: list[str], text: str) -> None:
    assert any(text in line for line in lines(*arguments))


def test_amount_below_a_cent_is_not_shown_as_zero() -> None:
    found = lines("--primary-tier", "basic", "--secondary-tier", "basic")
    assert "basic: operations 28,821 0.00 0.001441" in found


def test_warnings_go_to_standard_error() -> None:
    result = run("--messages", "9", "--rate", "500")
    assert "twinbus cost: the drain would never end" in result.stderr
    assert "never end" in json.dumps(answer("--messages", "9", "--rate", "500")["warnings"])


def test_own_price_book_is_used(tmp_path: Path) -> None:
    book = tmp_path / "ours.toml"
    book.write_text(
        'currency = "EUR"\ndate = 2027-01-01\nsource = "contract 7"\ntransfer_per_gb = 1\n'
        "[tiers.standard]\noperations = [{ above = 0, per_million = 1_000 }]\n"
    )
    found = answer("--prices", str(book), "--messages", "1000", "--size", "1000")
    assert found["prices"] == {"currency": "EUR", "date": "2027-01-01", "source": "contract 7"}
    assert found["cost"]["application"] == "3"
    # 1,000 messages of three operations each, polls and the like, and two thousandths of a GB.
    assert found["cost"]["pairing"] == "31.823"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--backlog-queues", "0"], "--backlog-queues must be from 1 to 10000, not 0"),
        (["--rate", "many"], "--rate must be a number, such as 250 or 0.5, not 'many'"),
        (["--rate", "1" * 31], "--rate must be a number"),
        (["--rate", "-1"], "--rate must be from 0 to 1000000, not -1"),
        (["--outage", "soon"], "--outage must be a duration such as"),
        (["--outage", "32d"], "--outage must be from 0 to 2678400"),
        (["--poll", "0"], "--poll must be from 0.001"),
        (["--size", "1 TB"], "--size must be 0 to 104857600 bytes"),
        (["--primary-tier", "gold"], "tier must be one of basic, standard, premium, not 'gold'"),
        (["--primary-units", "0"], "--primary-units must be a whole number from 1 to 64, not 0"),
        (["--transfer-per-gb", "-1"], "--transfer-per-gb must be from 0 to 1000000, not -1"),
        (["--prices", "no-such-file.toml"], "no-such-file.toml: No such file or directory"),
    ],
)
def test_usage_error_is_one_line(arguments: list[str], error: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("twinbus cost: ")
    assert error in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Example: twinbus cost estimate --backlog-queues 10" in result.stdout


def test_other_commands_do_not_import_the_pipeline() -> None:
    program = "import sys, twinbus.cli.main; print([name for name in sys.modules if name.startswith('twinbus.pipel')])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "[]\n"
