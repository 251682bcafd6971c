"""`twinbus.toml`: below the command line and the environment, above the defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from twinbus.cli.main import app

KEY = "c2VjcmV0"
NOWHERE = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY", "TWINBUS_LEDGER", "TWINBUS_SETTINGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


def plain(output: str) -> str:
    """The text of an error, without the box that it is drawn in."""
    return " ".join(output.replace("│", " ").split())


def polls(*arguments: str, **environment: str) -> int:
    result = run("cost", "estimate", "--json", *arguments, **environment)
    assert result.exit_code == 0, result.output
    hour: int = json.loads(result.stdout)["polls"]["hour"]
    return hour


def test_defaults_apply_without_a_file() -> None:
    assert polls() == 40


def test_table_of_a_command_changes_its_defaults(folder: Path) -> None:
    (folder / "twinbus.toml").write_text("[cost.estimate]\nbacklog-queues = 5\n")
    assert polls() == 20


def test_command_line_overrides_the_file(folder: Path) -> None:
    (folder / "twinbus.toml").write_text("[cost.estimate]\nbacklog_queues = 5\n")
    assert polls("--backlog-queues", "3") == 12


def test_environment_overrides_the_file(folder: Path) -> None:
    (folder / "twinbus.toml").write_text(f'primary = "{NOWHERE}"\n')
    assert "--secondary is missing" in run("backlog", "list").output
    assert "--primary: " in run("backlog", "list", TWINBUS_PRIMARY="nonsense").output


def test_top_level_keys_apply_to_every_command(folder: Path) -> None:
    (folder / "twinbus.toml").write_text(f'primary = "{NOWHERE}"\nsecondary = "{NOWHERE}"\n')
    for command in (("backlog", "list"), ("syphon", "--until-empty", "--primary-name", "x", "--queues", "0")):
        assert "is missing" not in run(*command).output


@pytest.mark.parametrize(
    "command",
    [
        ("ledger", "show"),
        ("ledger", "compact"),
        ("report",),
        pytest.param(("pipeline", "run"), marks=pytest.mark.slow),  # it starts Spark before it looks
    ],
)
def test_ledger_of_the_file_is_used_by_every_command(folder: Path, command: tuple[str, ...]) -> None:
    assert "Missing argument" in run(*command).output
    (folder / "twinbus.toml").write_text('ledger = "nowhere"\n')
    result = run(*command)
    assert result.exit_code == (2 if command[0] == "pipeline" else 1)
    assert "there is no ledger at " in result.output or "nowhere" in result.output


def test_environment_variable_names_another_file(folder: Path) -> None:
    (folder / "other.toml").write_text("[cost.estimate]\nbacklog_queues = 2\n")
    assert polls(TWINBUS_SETTINGS=str(folder / "other.toml")) == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[syphon]\nrat = 5\n", "[syphon] rat is not an option of twinbus syphon"),
        ("[cost.estimat]\nx = 1\n", "[cost] estimat is not a command of twinbus cost"),
        ("[cost]\nestimate = 1\n", "[cost] estimate is not a command of twinbus cost"),
        ("[sifon]\nrate = 5\n", "[sifon] is not a command of twinbus"),
        (f'primry = "{KEY}"\n', "primry must be in the table of a command"),
        (f'primary = ["{KEY}"]\n', "primary must be a string"),
        ("ledger = 5\n", "ledger must be a string"),
        (f'[syphon]\nrate = "{KEY}"\n', "[syphon] rate must be a number"),
        (f'[syphon]\nqueues = "{KEY}"\n', "[syphon] queues must be a whole number"),
        ("[syphon]\nqueues = true\n", "[syphon] queues must be a whole number"),
        ("[syphon]\nqueues = 0\n", "[syphon] queues must be at least 1"),
        ("[syphon]\nlock = 900\n", "[syphon] lock must be from 1 to 300"),
        ("[syphon]\nuntil_empty = 5\n", "[syphon] until_empty must be true or false"),
        (f'[syphon]\ndestination = "{KEY}"\n', "[syphon] destination must be a list of strings"),
        (f'primary = "{KEY}\n', "not valid TOML at line 1"),
    ],
)
def test_invalid_file_is_refused_without_showing_its_values(folder: Path, text: str, says: str) -> None:
    (folder / "twinbus.toml").write_text(text)
    for command in (("syphon",), ("cost", "estimate")):
        result = run(*command)
        if says in plain(result.output):
            assert result.exit_code == 2
            break
    else:
        pytest.fail(result.output)
    assert KEY not in result.output


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_unreadable_file_is_named(folder: Path, content: bytes | None) -> None:
    path = folder / "some.toml"
    if content is not None:
        path.write_bytes(content)
    result = run("cost", "estimate", TWINBUS_SETTINGS=str(path))
    assert result.exit_code == 2
    assert "some.toml" in plain(result.output).replace(" ", "")


def test_help_shows_no_key_from_the_file(folder: Path) -> None:
    (folder / "twinbus.toml").write_text(f'primary = "{NOWHERE}"\n')
    result = run("syphon", "--help")
    assert result.exit_code == 0
    assert KEY not in result.output
