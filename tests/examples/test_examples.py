"""Every program of examples/ runs as its first lines say, against live namespaces, through a real outage."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from twinbus.emulator import Fault, FaultKind
from twinbus.testing import TwinNamespaces

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120


@pytest.fixture
def twins(twinbus_namespaces: TwinNamespaces, monkeypatch: pytest.MonkeyPatch) -> TwinNamespaces:
    """Two namespaces with a queue `orders`, and the environment that the examples expect."""
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    monkeypatch.setenv("TWINBUS_PRIMARY", primary.connection_string)
    monkeypatch.setenv("TWINBUS_SECONDARY", secondary.connection_string)
    monkeypatch.setenv("TWINBUS_PRIMARY_NAME", "contoso")
    return twinbus_namespaces


def backlog(twins: TwinNamespaces) -> int:
    return sum(twins.secondary.message_count(f"contoso/x-servicebus-transfer/{index}") for index in range(10))


class Program:
    """A running example, spoken to line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.says()


@contextmanager
def running(name: str) -> Iterator[Program]:
    """An example that must end well when its input does, or when it is told to."""
    command = [sys.executable, str(EXAMPLES / name)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Program(process)
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
        finally:
            process.kill()


def test_every_example_is_short() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_the_synchronous_sender_goes_on_in_an_outage(twins: TwinNamespaces) -> None:
    with running("sync_sender.py") as program:
        assert program.send("order 1") == "primary orders"
        with twins.primary.outage():
            assert program.send("order 2").startswith("backlog contoso/x-servicebus-transfer/")
        assert program.send("order 3") == "primary orders"
    assert (twins.primary.message_count("orders"), backlog(twins)) == (2, 1)


def test_the_asynchronous_sender_tells_of_failover_and_return(twins: TwinNamespaces) -> None:
    with running("async_sender.py") as program:
        assert program.send("order 1") == "primary"
        with twins.primary.outage():
            assert program.send("order 2") == "FailedOver orders"
            assert program.says() == "backlog"
        assert {program.says(), program.says()} == {"Recovered orders", "Moved orders 1"}
        assert program.send("order 3") == "primary"
    assert (twins.primary.message_count("orders"), backlog(twins)) == (3, 0)


def test_full_batches_go_to_the_primary_or_whole_to_the_backlog(twins: TwinNamespaces) -> None:
    lines = "".join(f"{number} {'x' * 1000}\n" for number in range(600))
    healthy = batches("primary", lines)
    # The namespace answers; the queue does not.
    twins.primary.add_fault(Fault(FaultKind.RESET, "orders"))
    assert batches("backlog", lines) == healthy
    assert len(healthy) > 1
    assert sum(healthy) == 600
    assert (twins.primary.message_count("orders"), backlog(twins)) == (600, 600)


def batches(route: str, lines: str) -> list[int]:
    """The sizes of the batches that the example made of the lines; all have gone there."""
    command = [sys.executable, str(EXAMPLES / "batch_sender.py")]
    finished = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=SECONDS, check=True)
    found = [line.split() for line in finished.stdout.splitlines()]
    assert {way for way, _ in found} == {route}
    return [int(size) for _, size in found]


def test_the_application_in_the_style_of_django_accepts_orders_and_ends_when_it_is_told(twins: TwinNamespaces) -> None:
    with running("django_style.py") as program:
        url = program.says()
        assert post(url, b"order 1").endswith(" primary\n")
        with twins.primary.outage():
            assert post(url, b"order 2").endswith(" backlog\n")
        program.process.send_signal(signal.SIGTERM)
        program.process.wait(SECONDS)
    assert (twins.primary.message_count("orders"), backlog(twins)) == (1, 1)


def post(url: str, body: bytes) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=SECONDS) as answer:
        assert answer.status == 202
        return str(answer.read().decode())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing_send_through_clients_of_their_own(twins: TwinNamespaces, method: str) -> None:
    command = [sys.executable, str(EXAMPLES / "worker_pool.py"), method]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "{'primary': 10}\n", "")
    with twins.primary.outage():
        finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (finished.returncode, finished.stdout) == (0, "{'backlog': 10}\n"), finished.stderr
    assert "Traceback" not in finished.stderr


def test_gunicorn_with_preload_app_accepts_orders_in_an_outage(twins: TwinNamespaces) -> None:
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(EXAMPLES / "gunicorn"), "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=EXAMPLES / "gunicorn") as process:
        try:
            assert process.stderr is not None
            url = next(found[1] for line in process.stderr if (found := re.search(r"Listening at: (\S+)", line)))
            assert {post(url, b"order").split()[1] for _ in range(10)} == {"primary"}
            with twins.primary.outage():
                assert {post(url, b"order").split()[1] for _ in range(10)} == {"backlog"}
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0
            assert "Traceback" not in errors
        finally:
            process.kill()
    assert (twins.primary.message_count("orders"), backlog(twins)) == (10, 10)


async def test_the_service_of_fastapi_accepts_orders_in_an_outage(twins: TwinNamespaces) -> None:
    app = module("fastapi_service").app
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as shop:
        answer = await shop.post("/orders", json={"item": "tea"})
        assert (answer.status_code, answer.json()["route"]) == (202, "primary")
        with twins.primary.outage():
            answer = await shop.post("/orders", json={"item": "tea", "quantity": 2})
            assert (answer.status_code, answer.json()["route"]) == (202, "backlog")
            assert (await shop.get("/health")).json() == {"condition": "open", "entities": {"orders": "suspect"}}
        assert (await shop.post("/orders", json={})).status_code == 422


async def test_operators_can_fail_the_service_of_fastapi_over_and_back(twins: TwinNamespaces) -> None:
    app = module("fastapi_service").app
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as shop:
        for ask, route in ((shop.post, "backlog"), (shop.delete, "primary")):
            assert (await ask("/failover/orders")).status_code == 204
            assert (await shop.post("/orders", json={"item": "tea"})).json()["route"] == route


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # pydantic looks there for the names in annotations
    try:
        spec.loader.exec_module(made)
        return made
    finally:
        del sys.modules[name]


def test_the_tests_with_the_fixture_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_orders.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    finished = subprocess.run(
        command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "3 passed" in finished.stdout, finished.stdout + finished.stderr
