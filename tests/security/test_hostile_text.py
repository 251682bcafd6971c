"""Invalid connection strings and TOML files give a short error without secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus import PairedServiceBusClient
from twinbus.cli.options.settings import SettingsError, settings
from twinbus.emulator import ConfigError, load_config
from twinbus.pairing.namespace import Namespace
from twinbus.report.cost.prices import PriceError, load_prices
from twinbus.servicebus.connection_strings import MAX_LENGTH, ConnectionString
from twinbus.syphon.connector import Side

KEY = "c2VjcmV0LWtleS1vZi1zb21lYm9keQ=="
GOOD = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
HOST = "contoso.servicebus.windows.net"
SIGNATURE = f"SharedAccessSignature sr=x&sig={KEY}&se=99999999999&skn=root"

ENDPOINT = "Endpoint of the connection string must be sb://host or sb://host:port"
PARTS = "a connection string must be name=value parts, each once, separated by semicolons"
PRINTABLE = "a connection string must be one line of printable characters"
#: Invalid connection strings by defect, and the expected error.
STRINGS = {
    "empty": ("", "Endpoint is missing from the connection string"),
    "blanks": ("  \n ", "Endpoint is missing from the connection string"),
    "another scheme": (GOOD.replace("sb://", "ftp://"), ENDPOINT),
    "an https scheme": (GOOD.replace("sb://", "https://"), ENDPOINT),
    "no scheme": (GOOD.replace("sb://", ""), ENDPOINT),
    "no host": (GOOD.replace(HOST, ""), ENDPOINT),
    "a blank in the host": (GOOD.replace("contoso", "con toso"), ENDPOINT),
    "a user in the host": (GOOD.replace("contoso", "user:pass@contoso"), ENDPOINT),
    "a path behind the host": (GOOD.replace(".net/", ".net/orders"), ENDPOINT),
    "a query behind the host": (GOOD.replace(".net/", ".net/?x=1"), ENDPOINT),
    "a lookalike letter": (GOOD.replace("contoso", "c\u043entoso"), ENDPOINT),
    "a host of a thousand letters": (GOOD.replace("contoso", "c" * 1000), ENDPOINT),
    "no semicolons": (GOOD.replace(";", ""), ENDPOINT),
    "the port 0": (GOOD.replace(".net/", ".net:0"), "the port in Endpoint of the connection string must be 1 to 65535"),
    "the port 99999": (
        GOOD.replace(".net/", ".net:99999"),
        "the port in Endpoint of the connection string must be 1 to 65535",
    ),
    "a port of letters": (GOOD.replace(".net/", ".net:amqp"), ENDPOINT),
    "a new line in the host": (GOOD.replace("contoso", "con\ntoso"), PRINTABLE),
    "a new line in the key": (GOOD + "\nX-Header: 1", PRINTABLE),
    "a zero byte": (GOOD.replace("contoso", "con\0toso"), PRINTABLE),
    "a right-to-left override": (GOOD.replace("contoso", "con\u202etoso"), PRINTABLE),
    "a part without a name": (GOOD + ";" + KEY.rstrip("="), PARTS),
    "two endpoints": (f"{GOOD};Endpoint=sb://evil.example/", PARTS),
    "two keys": (f"{GOOD};sharedaccesskey={KEY}", PARTS),
    "a key and a signature": (f"{GOOD};SharedAccessSignature={SIGNATURE}", "SharedAccessSignature, not both"),
    "an invalid signature": (
        f"Endpoint=sb://{HOST}/;SharedAccessSignature={KEY}",
        "SharedAccessSignature of the connection string must have sr=, sig=, se=",
    ),
    "no key name": (GOOD.replace("root", ""), "SharedAccessKeyName is missing from the connection string"),
    "no key": (GOOD.replace(KEY, ""), "SharedAccessKey is missing from the connection string"),
    "a path that leads up": (f"{GOOD};EntityPath=../payroll", "EntityPath of the connection string must be the path"),
    "a management node": (f"{GOOD};EntityPath=a/$management", "EntityPath of the connection string must be the path"),
    "neither true nor false": (f"{GOOD};UseDevelopmentEmulator=perhaps", "UseDevelopmentEmulator of the connection"),
    "a megabyte": (GOOD + "A" * (1 << 20), f"a connection string must have at most {MAX_LENGTH} characters"),
    "a hundred thousand parts": (
        GOOD + ";a=b" * 100_000,
        f"a connection string must have at most {MAX_LENGTH} characters",
    ),
}


@pytest.mark.parametrize(("text", "message"), STRINGS.values(), ids=STRINGS.keys())
def test_invalid_connection_string_gives_the_same_error_everywhere(text: str, message: str) -> None:
    for read in (
        ConnectionString.parse,
        Namespace.from_connection_string,
        Side.from_connection_string,
        lambda text: PairedServiceBusClient.from_connection_strings(text, GOOD),
        lambda text: PairedServiceBusClient.from_connection_strings(GOOD, text),
    ):
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is checked below
            read(text)  # type: ignore[operator]
        assert message in str(raised.value)
        assert len(str(raised.value)) < 200
        assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD + "\n",
        GOOD.replace("contoso", "CONTOSO") + ";Color=blue",
        GOOD.replace(HOST + "/", "[::1]:5671"),
        GOOD + ";EntityPath=sales/orders",
        f"Endpoint=sb://localhost:5672;SharedAccessSignature={SIGNATURE};UseDevelopmentEmulator=true",
    ],
)
def test_unusual_valid_connection_strings_are_accepted(text: str) -> None:
    assert KEY not in repr(ConnectionString.parse(text))
    Namespace.from_connection_string(text)
    Side.from_connection_string(text)


@given(st.text(max_size=200), st.integers(0, len(GOOD)))
def test_errors_for_random_connection_strings_never_show_the_key(text: str, at: int) -> None:
    try:
        ConnectionString.parse(GOOD[:at] + text + GOOD[at:])
    except ValueError as error:
        assert KEY not in str(error)  # noqa: PT017 - the text may also be valid


# ---- TOML ----

TEXTS = {
    "deep lists": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{a=" * 100_000,
    "a deep key": ".".join("a" * 5000) + " = 1",
    "an overlong number": "a = " + "9" * 10_000,
    "an invalid time": "a = 2026-13-45T99:99:99Z",
    "a key twice": "a = 1\na = 2",
    "no value": "a =",
    "a zero byte": 'a = "\0"',
    "an unterminated secret": f"primary = '{KEY}",
    "a list for a text": f'primary = ["{KEY}"]\n[syphon]\nrate = []',
    "a table for a number": f'primary = "{KEY}"\n[syphon]\nrate = {{a = 1}}',
    "unknown tables": f'[x.y.z]\nkey = "{KEY}"',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_invalid_toml_gives_a_short_error_naming_the_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TWINBUS_SETTINGS", str(path))
    readers = {
        "prices": (PriceError, lambda: load_prices(path)),
        "namespaces": (ConfigError, lambda: load_config(path)),
    }
    if "syphon" not in text:  # the command reads its own table: see below
        readers["settings"] = (SettingsError, lambda: settings({"syphon"}))
    for error, read in readers.values():
        with pytest.raises(error) as raised:
            read()
        assert "given.toml" in str(raised.value)
        assert len(str(raised.value)) < 2000
        assert KEY not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_command_with_invalid_settings_exits_with_usage_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text, encoding="utf-8")
    run = _run(path, "syphon")
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert KEY not in run.stderr + run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "loop"])
def test_settings_path_that_is_not_a_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    run = _run(path, "status")
    assert run.returncode == 2
    assert "given.toml" in run.stderr.replace("\n", "").replace(" ", "")
    assert "Traceback" not in run.stderr


def _run(path: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TWINBUS_SETTINGS": str(path), "COLUMNS": "500"}
    return subprocess.run(
        [sys.executable, "-m", "twinbus", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
