"""`twinbus serve` as a process: what it prints, how it ends, what it refuses and what it keeps."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError
from tests.connection_strings import ROOT_POLICY
from tests.emulator.wire import ServeProcess, administration
from tests.free_port import free_port
from typer.testing import CliRunner

from twinbus.amqp.codec.frames import SASL_HEADER
from twinbus.cli.main import app
from twinbus.servicebus.connection_strings import ConnectionString

pytestmark = pytest.mark.slow

ONE = ("--namespace", "contoso=0")
SECONDS = 120.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "twinbus", "serve", *arguments]


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `serve` that is expected to end by itself."""
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=folder
    )


class Running:
    """A `serve` whose standard output and standard error are read."""

    def __init__(self, *arguments: str) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command(*arguments), text=True, **pipes)  # type: ignore[call-overload]
        self.lines: list[str] = []

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def first_line(self) -> str:
        return str(self.process.stdout.readline())

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; returns the exit code, the rest of standard output, and standard error."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output, errors


def control(ready: dict[str, Any], method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{ready['control']['url']}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {ready['control']['token']}"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


# ---- what it prints ----


def test_first_line_is_json_with_working_addresses(tmp_path: Path) -> None:
    arguments = ("--json", "--data", str(tmp_path), *ONE, "--namespace", "contoso-standby=0")
    with Running(*arguments) as running:
        ready = json.loads(running.first_line())
        assert list(ready) == ["namespaces", "control", "ca_file"]
        assert list(ready["namespaces"]) == ["contoso", "contoso-standby"]
        context = ssl.create_default_context(cafile=ready["ca_file"])
        for name, one in ready["namespaces"].items():
            assert list(one) == ["port", "connection_string"]
            parsed = ConnectionString.parse(one["connection_string"])
            assert (parsed.host, parsed.port, parsed.use_tls) == ("127.0.0.1", one["port"], False)
            for scheme in ("http", "https"):
                url = f"{scheme}://127.0.0.1:{one['port']}/healthz"
                with urllib.request.urlopen(url, timeout=SECONDS, context=context) as answer:
                    assert json.load(answer) == {"status": "ok", "namespace": name}
            with administration(one["connection_string"]) as admin:
                admin.create_queue("orders")
        assert set(control(ready, "GET", "/namespaces")) == {"contoso", "contoso-standby"}
        text = ready["namespaces"]["contoso"]["connection_string"]
        with (
            ServiceBusClient.from_connection_string(text, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
            fault = control(ready, "POST", "/namespaces/contoso/faults", {"kind": "throttle", "count": 1})
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("x"))
            assert control(ready, "GET", f"/namespaces/contoso/faults/{fault['id']}")["fired"] == 1
        code, output, errors = running.end(signal.SIGTERM)
        assert (code, output, errors) == (0, "", "")


def test_text_output_has_connection_strings_and_the_certificate_authority(tmp_path: Path) -> None:
    with Running("--data", str(tmp_path), *ONE) as running:
        lines = [running.first_line()]
        while not lines[-1].startswith("ready"):
            lines.append(running.first_line())
        text = "".join(lines)
        assert "contoso  port " in text
        assert "UseDevelopmentEmulator=true" in text
        assert f"clients must trust {tmp_path / 'tls' / 'ca.pem'}" in text
        code, output, errors = running.end(signal.SIGINT)
        assert (code, output, errors) == (0, "stopped\n", "")


def test_host_option_sets_the_only_listening_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]  # is free on every address but this one
        with ServeProcess(tmp_path, "--namespace", f"contoso={port}", "--host", "127.0.0.2") as served:
            parsed = ConnectionString.parse(served.ready["namespaces"]["contoso"]["connection_string"])
            assert (parsed.host, parsed.port) == ("127.0.0.2", port)
            with urllib.request.urlopen(f"http://127.0.0.2:{port}/healthz", timeout=SECONDS) as answer:
                assert json.load(answer) == {"status": "ok", "namespace": "contoso"}
            other.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), SECONDS)
            # The control port is local, wherever the namespaces listen.
            assert served.ready["control"]["url"].startswith("http://127.0.0.1:")


def test_signal_stops_it_cleanly_with_clients_and_faults(tmp_path: Path) -> None:
    with Running("--json", "--data", str(tmp_path), *ONE) as running:
        ready = json.loads(running.first_line())
        text = ready["namespaces"]["contoso"]["connection_string"]
        with administration(text) as admin:
            admin.create_queue("orders")
        with (
            ServiceBusClient.from_connection_string(text, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
            for fault in ({"kind": "refuse"}, {"kind": "blackhole"}, {"kind": "slow", "delay": 60}):
                control(ready, "POST", "/namespaces/contoso/faults", fault)
            code, output, errors = running.end(signal.SIGTERM)
            assert (code, output, errors) == (0, "", "")


def test_reset_and_refuse_faults_reset_and_refuse_connections(tmp_path: Path) -> None:
    """Here with the event loop that `serve` uses."""
    with ServeProcess(tmp_path, *ONE) as served:
        port = served.ready["namespaces"]["contoso"]["port"]
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(SASL_HEADER)
            assert client.recv(8) == SASL_HEADER
            client.recv(1000)
            control(served.ready, "POST", "/namespaces/contoso/faults", {"kind": "reset", "seconds": 0.01})
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        control(served.ready, "POST", "/namespaces/contoso/faults", {"kind": "refuse"})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), SECONDS)
        control(served.ready, "DELETE", "/namespaces/contoso/faults")
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(SASL_HEADER)
            assert client.recv(8) == SASL_HEADER


# ---- what it refuses ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--namespace", "contoso"), "--namespace: must be NAME=PORT, such as contoso=5672, not 'contoso'"),
        (("--namespace", "contoso=99999"), "--namespace: port: must be 0 to 65535"),
        (("--namespace", "contoso=x"), "--namespace: port: must be 0 to 65535, not 'x'"),
        (("--namespace", "contoso="), "--namespace: port: must be 0 to 65535, not ''"),
        (("--namespace", "contoso=0", "--namespace", "Contoso=1"), "--namespace: Contoso is given twice"),
        (("--namespace", "9lives=0"), "must be named with 1 to 50 letters, digits and hyphens, a letter first"),
        (("--namespace", "a=5672", "--namespace", "b=5672"), "--namespace: port: 5672 is given to more than one"),
        (("--log-level", "loud"), "--log-level must be one of debug, info, warning, error, not 'loud'"),
        (("--log-format", "xml"), "'--log-format' .* 'text', 'json'"),
        (("--profile", "aws"), "'--profile': .* 'default', 'azure'"),
        (("--durability", "some"), "'--durability': .* 'full', 'normal', 'memory'"),
        (("--control-port", "70000"), "'--control-port': .*65535"),
        (("--config", "nowhere.toml"), "nowhere.toml: cannot be read: No such file or directory"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_invalid_option_is_refused_with_its_name_and_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    # The command line frames its own messages.
    message = re.sub(r"[\s│╭╰─╮╯]+", " ", result.stderr)
    assert re.search(words.replace("' .*", "'.*"), message), message
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_usage_error_exits_with_2(tmp_path: Path) -> None:
    finished = run("--namespace", "contoso", folder=tmp_path)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1


def test_configuration_error_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "bus.toml"
    file.write_text('[namespaces.contoso.queues.orders]\nlock_duration = "9m"\n')
    finished = run("--config", str(file))
    assert finished.returncode == 2
    assert "bus.toml: namespaces.contoso.queues.orders.lock_duration" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_refused_configuration_changes_nothing(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "bus.toml"
    arguments = ("--data", str(data), "--config", str(file))
    # The first namespace is in order, and so is a part of the second.
    good = "[namespaces.a]\nport = 0\nqueues = ['new']\n[namespaces.b]\nport = 0\npolicies.p = 'Send'\n"
    wrong = {
        "queues.x = {}\nqueues.y = { forward_to = 'z' }\nqueues.z = { forward_to = 'y' }": (
            "queues.y.forward_to: 'y' cannot forward messages that would come back to it."
        ),
        "queues.x = { forward_to = 'nowhere' }": (
            "queues.x.forward_to: The auto forwarding destination entity 'nowhere' does not exist."
        ),
        "queues.x = {}\ntopics.t.subscriptions.s = { forward_dead_lettered_messages_to = 'nowhere' }": (
            "topics.t.subscriptions.s.forward_dead_lettered_messages_to: The auto forwarding destination"
        ),
        "queues.x = {}\nqueues.old = { requires_session = true }": "queues.old.requires_session: The value for",
        "queues.x = {}\ntopics.old = {}": "topics.old: there is a Queue of that name already",
        # It would close a loop with what is there.
        "queues = [{ name = 'x' }, { name = 'new', forward_to = 'old' }]": (
            "queues[1].forward_to: 'new' cannot forward messages that would come back to it."
        ),
    }
    names = ("--namespace", "a=0", "--namespace", "b=0")
    with ServeProcess(data, *names) as served, administration(served.connection_string("b")) as admin:
        admin.create_queue("new")
        admin.create_queue("old", forward_to="new")
    for content, words in wrong.items():
        file.write_text(good + content)
        finished = run(*arguments)
        assert finished.returncode == 2
        (line,) = finished.stderr.splitlines()
        assert f"{file}: namespaces.b.{words}" in line
    with ServeProcess(data, *names) as served:
        with administration(served.connection_string("a")) as admin:
            assert list(admin.list_queues()) == []
        with administration(served.connection_string("b")) as admin:
            assert [queue.name for queue in admin.list_queues()] == ["new", "old"]
            assert list(admin.list_topics()) == []


def test_configuration_can_reverse_forwarding(tmp_path: Path) -> None:
    """Taken one by one, each of its changes would make a loop, or forward to nowhere."""
    file = tmp_path / "bus.toml"
    arguments = ("--config", str(file))
    one_way = "a = { forward_to = 'b' }\nb = { forward_to = 'c' }\nc = {}\n"
    file.write_text(f"[namespaces.contoso]\nport = 0\n[namespaces.contoso.queues]\n{one_way}")
    with ServeProcess(tmp_path / "data", *arguments):
        pass
    other_way = "b = { forward_to = 'a' }\nc = { forward_to = 'b' }\na = {}\n"
    file.write_text(f"[namespaces.contoso]\nport = 0\n[namespaces.contoso.queues]\n{other_way}")
    with ServeProcess(tmp_path / "data", *arguments) as served:
        text = served.connection_string("contoso")
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            with client.get_queue_sender("c") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            with client.get_queue_receiver("a") as receiver:
                assert [str(message) for message in receiver.receive_messages(1, max_wait_time=30)] == ["x"]


def test_port_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = run("--data", str(tmp_path), "--namespace", "free=0", "--namespace", f"contoso={port}")
    assert finished.returncode == 1
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in line


def test_control_port_in_use_is_a_one_line_error_with_the_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = run("--data", str(tmp_path), *ONE, "--control-port", str(port))
    assert (finished.returncode, finished.stdout) == (1, "")
    why = f"--control-port: cannot listen on 127.0.0.1, port {port}: Address already in use"
    assert finished.stderr == f"twinbus serve: {why}; --control-port 0 picks a free one\n"


def test_data_folder_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, *ONE):
        finished = run("--data", str(tmp_path), *ONE)
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert "in use by another process" in line


def test_data_folder_that_is_a_file_is_a_one_line_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    finished = run("--data", str(file), *ONE)
    assert finished.returncode == 1
    assert len(finished.stderr.splitlines()) == 1


def test_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    removed = tmp_path / "contoso" / "namespace.removed"
    removed.mkdir(parents=True)
    finished = run("--data", str(tmp_path), *ONE)
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.endswith(f"twinbus serve: {removed} cannot be opened: Is a directory")


# ---- what it reads and keeps ----


def test_configuration_file_sets_entities_policies_and_profile(tmp_path: Path) -> None:
    file = tmp_path / "bus.toml"
    file.write_text(
        """
        data = "kept"
        profile = "azure"
        link_idle = "1s"

        [namespaces.contoso]
        port = 0
        queues = ["orders"]
        throttle = 5

        [namespaces.contoso.topics.events.subscriptions.all]
        max_delivery_count = 3

        [namespaces.standby]
        port = 1
        profile = "default"
        """
    )
    # The command line changes the port of one, and adds one.
    arguments = ("--json", "--config", str(file), "--namespace", "standby=0", "--namespace", "third=0")
    with Running(*arguments) as running:
        ready = json.loads(running.first_line())
        assert list(ready["namespaces"]) == ["contoso", "standby", "third"]
        profiles = {name: one["profile"] for name, one in control(ready, "GET", "/namespaces").items()}
        assert profiles == {"contoso": "azure", "standby": "default", "third": "default"}
        with administration(ready["namespaces"]["contoso"]["connection_string"]) as admin:
            assert [queue.name for queue in admin.list_queues()] == ["orders"]
            assert admin.get_subscription("events", "all").max_delivery_count == 3
        assert ready["ca_file"] == str(tmp_path / "kept" / "tls" / "ca.pem")
        assert running.end(signal.SIGTERM)[0] == 0
    assert (tmp_path / "kept" / "contoso").is_dir()


def test_restart_keeps_the_connection_string_and_the_messages(tmp_path: Path) -> None:
    served = ServeProcess(tmp_path, "--namespace", f"contoso={free_port()}")
    with served:
        before = served.connection_string("contoso")
        with administration(before) as admin:
            admin.create_queue("orders")
        with (
            ServiceBusClient.from_connection_string(before, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("kept"))
    with served:
        assert served.connection_string("contoso") == before
        with administration(before) as admin:
            assert admin.get_queue_runtime_properties("orders").active_message_count == 1


def test_data_folder_is_private_to_its_user(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, *ONE):
        for name in ("contoso", "tls"):
            folder = tmp_path / name
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            private = [file for file in folder.iterdir() if "key" in file.name or file.name == "server.pem"]
            assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in private)


def test_files_are_private_in_an_existing_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "contoso"
    folder.mkdir()
    os.chmod(folder, 0o755)
    (tmp_path / "tls").mkdir(mode=0o755)
    for _ in range(2):
        with ServeProcess(tmp_path, *ONE) as served:
            with administration(served.connection_string("contoso")) as admin:
                if not list(admin.list_queues()):
                    admin.create_queue("orders")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name != "lock"}
            assert modes.keys() >= {"namespace.db", "namespace.db-wal", "namespace.removed"}
            assert set(modes.values()) == {0o600}
            served.kill()
        # As they were left by those who knew no better.
        for path in folder.iterdir():
            path.chmod(0o644)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # it is not ours to close


def test_memory_durability_keeps_only_the_certificate(tmp_path: Path) -> None:
    with (
        ServeProcess(tmp_path, *ONE, "--durability", "memory") as served,
        administration(served.connection_string("contoso")) as admin,
    ):
        admin.create_queue("orders")
    assert [folder.name for folder in tmp_path.iterdir()] == ["tls"]


# ---- logs ----


def test_structured_log_lines_are_json_without_secrets(tmp_path: Path) -> None:
    with Running("--json", "--data", str(tmp_path), *ONE, "--log-format", "json", "--log-level", "debug") as running:
        ready = json.loads(running.first_line())
        one = ready["namespaces"]["contoso"]
        key = ConnectionString.parse(one["connection_string"]).key
        with administration(one["connection_string"]) as admin:
            admin.create_queue("orders")
        for nonsense in (b"\x16\x03\x01nonsense", b"AMQP\x00\x01\x00\x00" + b"\xff" * 50, b"GET sig=secret\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", one["port"]), SECONDS) as client:
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
                _read_to_the_end(client)
        stranger = urllib.request.Request(
            f"http://127.0.0.1:{one['port']}/orders", headers={"Authorization": f"SharedAccessSignature sig={key}"}
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(stranger, timeout=SECONDS)
        code, _, errors = running.end(signal.SIGTERM)
    assert code == 0
    records = [json.loads(line) for line in errors.splitlines()]
    assert records
    for record in records:
        assert {"time", "level", "logger", "message"} <= set(record)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", record["time"])
        assert record["level"] in ("debug", "info", "warning", "error")
    assert any("listens on 127.0.0.1" in record["message"] for record in records)
    for secret in (key, ready["control"]["token"], "sig="):
        assert secret not in errors


def test_log_says_why_a_client_was_refused(tmp_path: Path) -> None:
    file = tmp_path / "bus.toml"
    file.write_text(
        """
        [namespaces.contoso]
        port = 0
        queues = ["orders"]
        policies.reader = { rights = ["Listen"], primary_key = "the key of the reader" }
        """
    )
    with Running("--json", "--data", str(tmp_path), "--config", str(file), "--log-level", "info") as running:
        root = json.loads(running.first_line())["namespaces"]["contoso"]["connection_string"]
        key = ConnectionString.parse(root).key
        reader = root.replace(ROOT_POLICY, "reader").replace(key, "the key of the reader")
        wrong_key = reader.replace("the key of", "a guess of")
        unknown = root.replace(ROOT_POLICY, "raeder")
        mixed_up = reader.replace("=reader", "=the key of the reader")
        tries = ((wrong_key, "orders"), (unknown, "orders"), (mixed_up, "orders"), (root, "ordres"), (reader, "orders"))
        for text, queue in tries:
            with (
                ServiceBusClient.from_connection_string(text, retry_total=0) as client,
                pytest.raises(ServiceBusError),
                client.get_queue_sender(queue) as sender,
            ):
                sender.send_messages(ServiceBusMessage("x"))
        for text in (reader, unknown):
            with administration(text) as admin, pytest.raises(ClientAuthenticationError):
                admin.create_queue("more")
        code, _, errors = running.end(signal.SIGTERM)
    assert code == 0
    lines = [line.partition(" refused ")[2] for line in errors.splitlines() if " INFO " in line and " refused " in line]
    no_signature = "amqp:unauthorized-access: InvalidSignature: The token has an invalid signature."
    assert lines[:5] == [
        f"a token for 'orders', of policy 'reader': {no_signature}",
        f"a token for 'orders', of policy 'raeder', which is not known here: {no_signature}",
        f"a token for 'orders', of a policy whose name is a key: {no_signature}",
        f"a token for 'ordres', of policy '{ROOT_POLICY}': amqp:not-found:"
        " The messaging entity 'ordres' could not be found.",
        "a link to 'orders', of policy 'reader': amqp:unauthorized-access: Unauthorized access."
        " 'Send' claim(s) are required to perform this operation. Resource: 'orders'.",
    ]
    assert [line.partition(", tracking id")[0] for line in lines[5:]] == [
        "PUT '/more', of policy 'reader': 401 \"Unauthorized access. 'Manage' claim(s) are required to perform this"
        " operation. Resource: 'more'.\"",
        "PUT '/more', of policy 'raeder', which is not known here:"
        " 401 'InvalidSignature: The token has an invalid signature.'",
    ]
    for secret in (key, "the key of the reader", "a guess of the reader", "sig="):
        assert secret not in errors


def _read_to_the_end(client: socket.socket) -> None:
    try:
        while client.recv(1000):
            pass
    except ConnectionError:
        return
