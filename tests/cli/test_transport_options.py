"""`--transport` and `--proxy`: what is refused before anything is opened, and that a password is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from twinbus.cli.main import app

PASSWORD = "open-sesame"
KEY = "SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
PRIMARY = f"Endpoint=sb://contoso.twinbus.test;{KEY}"
SECONDARY = f"Endpoint=sb://standby.twinbus.test;{KEY}"
PLAIN = f"Endpoint=sb://127.0.0.1:1;{KEY};UseDevelopmentEmulator=true"
COMMANDS = [
    ("syphon", "--until-empty"),
    ("status",),
    ("backlog", "list"),
    ("backlog", "unused"),
    ("backlog", "dead-letters"),
    ("backlog", "replay"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TWINBUS_PROXY", "TWINBUS_TRANSPORT", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TWINBUS_PRIMARY", PRIMARY)
    monkeypatch.setenv("TWINBUS_SECONDARY", SECONDARY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **environment: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env=environment)
    assert PASSWORD not in result.output
    return result


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "url", ["nowhere", f"http://me:{PASSWORD}@proxy", f"http://me:{PASSWORD}@proxy:99999", f"ftp://me:{PASSWORD}@p:1"]
)
def test_malformed_proxy_is_refused(command: tuple[str, ...], url: str) -> None:
    for result in (run(*command, "--proxy", url), run(*command, TWINBUS_PROXY=url)):
        assert result.exit_code == 2
        assert "--proxy: " in result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_unknown_transport_is_refused(command: tuple[str, ...]) -> None:
    result = run(*command, "--transport", "carrier-pigeon")
    assert result.exit_code == 2
    assert "--transport" in result.output


def test_malformed_proxy_in_the_environment_is_refused() -> None:
    result = run("status", "--transport", "websocket", HTTPS_PROXY=f"socks5://me:{PASSWORD}@proxy:1080")
    assert result.exit_code == 2
    assert "HTTPS_PROXY" in result.output


def test_proxy_for_a_plain_text_namespace_is_refused() -> None:
    result = run("status", "--primary", PLAIN, "--proxy", "http://proxy:3128")
    assert result.exit_code == 2
    assert "--primary: http_proxy needs TLS" in " ".join(result.output.split())


def test_transport_and_proxy_can_be_set_in_the_settings_file(folder: Path) -> None:
    (folder / "twinbus.toml").write_text(f'transport = "websocket"\nproxy = "http://me:{PASSWORD}@127.0.0.1:1"\n')
    result = run("status", "--queues", "1", "--primary-name", "contoso")
    assert result.exit_code == 1
    assert "through the proxy 127.0.0.1:1: Connection refused" in " ".join(result.output.split())
    assert PASSWORD not in run("status", "--help").output
