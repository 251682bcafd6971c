"""Programs written for the SDK run with one changed import, and their sends go on in an outage."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from tests.client.threads import ThreadedTwins, down, eventually
from tests.namespace_internals import Queue
from tests.sdk_connection import needs_plain_text

from twinbus import PairedServiceBusClient, Route
from twinbus.emulator import (
    DEFAULT,
    BearerToken,
    Namespace,
    NamespaceConfig,
    NamespaceThread,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.servicebus.access_rights import Right

pytestmark = [pytest.mark.slow, needs_plain_text]

FOLDER = Path(__file__).parent / "sdk_programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
#: Those that only send, and how many messages arrive at queue, session queue and topic.
SENDING = {
    "send": (14, 2, 1),
    "send_async": (14, 2, 1),
    "schedule": (5, 0, 0),
    "schedule_async": (5, 0, 0),
    "reused_client": (3, 0, 0),
    "reused_client_async": (3, 0, 0),
    "without_contexts": (1, 0, 0),
    "without_contexts_async": (1, 0, 0),
}
NUMBERS = itertools.count(1)
#: The imports of the client, as they are in a program and in place of them.
CHANGES = {
    "from azure.servicebus.aio import ServiceBusClient\n": (
        "from twinbus.aio import PairedServiceBusClient as ServiceBusClient\n"
    ),
    "from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient\n": (
        "from azure.servicebus.aio import AutoLockRenewer\n"
        "from twinbus.aio import PairedServiceBusClient as ServiceBusClient\n"
    ),
}


class Entities(NamedTuple):
    """The entities of a program; the queues count arrivals."""

    queue: Queue
    session_queue: Queue
    topic: Queue

    @property
    def received(self) -> tuple[int, ...]:
        return tuple(one.activity.received for one in self)


@pytest.fixture(scope="module")
def twins() -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(DEFAULT) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_faults(twins: ThreadedTwins) -> Iterator[None]:
    yield
    twins.clear()


@pytest.fixture
def entities(twins: ThreadedTwins, monkeypatch: pytest.MonkeyPatch) -> Entities:
    """Entities of their own for each test, which programs find in the environment."""
    number = next(NUMBERS)
    primary, secondary = twins.texts
    queue, session_queue, topic = f"orders-{number}", f"sessions-{number}", f"news-{number}"
    for name, value in {
        "SERVICEBUS_CONNECTION_STR": primary,
        "SERVICEBUS_QUEUE_NAME": queue,
        "SERVICEBUS_SESSION_QUEUE_NAME": session_queue,
        "SERVICEBUS_TOPIC_NAME": topic,
        "SERVICEBUS_SUBSCRIPTION_NAME": "all",
        # The one thing that is added besides the import; the second because the primary is called by its address.
        "TWINBUS_SECONDARY": secondary,
        "TWINBUS_PRIMARY_NAME": "contoso",
    }.items():
        monkeypatch.setenv(name, value)
    namespace, run = twins.primary.namespace, twins.primary.run
    made = [
        run(namespace.create(QueueDescription(queue))),
        run(namespace.create(QueueDescription(session_queue, requires_session=True))),
        run(namespace.create(TopicDescription(topic))),
    ]
    run(namespace.create_subscription(SubscriptionDescription(topic, "all")))
    return Entities(*(one.queue for one in made))


class Token:
    """A credential as `azure.identity` has them."""

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken("for-tests-only", 2_000_000_000)


def test_a_client_of_host_and_credential_shares_the_credential_with_the_secondary_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(name: str) -> Namespace:
        token = BearerToken("for-tests-only", frozenset({Right.SEND, Right.LISTEN, Right.MANAGE}))
        return Namespace(NamespaceConfig(name, port=0, bearer_tokens=(token,)))

    with NamespaceThread(lambda: make("contoso")) as primary, NamespaceThread(lambda: make("standby")) as secondary:
        primary.run(primary.namespace.create(QueueDescription("orders")))
        hosts = [f"{one.namespace.host}:{one.namespace.port}" for one in (primary, secondary)]
        monkeypatch.setenv("TWINBUS_SECONDARY_NAMESPACE", hosts[1])
        monkeypatch.setenv("TWINBUS_PRIMARY_NAME", "contoso")
        with (
            PairedServiceBusClient(hosts[0], Token(), retry_total=5, use_tls=False) as client,
            client.get_queue_sender(queue_name="orders") as sender,
        ):
            assert sender.send_messages(ServiceBusMessage("1")).route is Route.PRIMARY
            down(primary)
            assert sender.send_messages(ServiceBusMessage("2")).route is Route.BACKLOG


def changed(program: str) -> str:
    """Return the program with the SDK's client replaced by the paired client in its imports."""
    source = original = (FOLDER / f"{program}.py").read_text()
    for before, after in CHANGES.items():
        source = source.replace(before, after)
    if source == original:
        source = source.replace("ServiceBusClient, ", "", 1).replace("    ServiceBusClient,\n", "", 1)
        source = source.replace(
            "from azure.servicebus import",
            "from twinbus import PairedServiceBusClient as ServiceBusClient\nfrom azure.servicebus import",
            1,
        )
    assert source.count("twinbus") == 1
    return source


def run_changed(program: str, folder: Path) -> None:
    path = folder / f"{program}.py"
    path.write_text(changed(program))
    runpy.run_path(str(path), run_name="__main__")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_the_same_with_one_changed_import(
    program: str, entities: Entities, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(FOLDER / f"{program}.py"), run_name="__main__")
    expected = printed(capsys)
    assert expected
    run_changed(program, tmp_path)
    assert printed(capsys) == expected


@pytest.mark.parametrize("program", SENDING)
def test_sends_of_a_program_survive_an_outage(
    program: str, twins: ThreadedTwins, entities: Entities, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down(twins.primary)
    run_changed(program, tmp_path)
    assert printed(capsys)
    assert entities.received == (0, 0, 0)
    twins.clear()
    with twins.client(enable_syphon=True, backlog_queue_count=10):
        eventually(lambda: entities.received == SENDING[program])
