"""Fixtures: a namespace with policies of every kind, and its log."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from twinbus.emulator import Namespace, NamespaceConfig, QueueDescription
from twinbus.emulator.auth.security import AccessPolicy, BearerToken, connection_string
from twinbus.emulator.config.namespace_file import PolicyConfig, QueueConfig
from twinbus.servicebus.access_rights import ALL_RIGHTS, Right

QUEUE, OTHER = "orders", "invoices"
BODY = "the secret body of a message"
EXPIRED_AT = 1_000_000_000.0


def _key(seed: str) -> str:
    """A key that is the same in every test process."""
    return base64.b64encode(hashlib.sha256(seed.encode()).digest()).decode()


@dataclass
class Keys:
    """Fixed keys and tokens, so that tests can search for them."""

    root: str = _key("root")
    second: str = _key("second")
    sender: str = _key("sender")
    listener: str = _key("listener")
    entity: str = _key("entity")
    bearer: str = "bearer-token-with-every-right"
    bearer_sender: str = "bearer-token-that-may-send"
    bearer_expired: str = "bearer-token-of-long-ago"

    def all(self) -> list[str]:
        return list(vars(self).values())


KEYS = Keys()
CONFIG = NamespaceConfig(
    "contoso",
    port=0,
    policies=(
        PolicyConfig("RootManageSharedAccessKey", ALL_RIGHTS, KEYS.root, KEYS.second),
        PolicyConfig("sender", frozenset({Right.SEND}), KEYS.sender),
        PolicyConfig("listener", frozenset({Right.LISTEN}), KEYS.listener),
    ),
    queues=(
        QueueConfig(QueueDescription(QUEUE), (PolicyConfig("only-orders", ALL_RIGHTS, KEYS.entity),)),
        QueueConfig(QueueDescription(OTHER)),
    ),
    bearer_tokens=(
        BearerToken(KEYS.bearer, ALL_RIGHTS),
        BearerToken(KEYS.bearer_sender, frozenset({Right.SEND}), path=QUEUE),
        BearerToken(KEYS.bearer_expired, ALL_RIGHTS, expires_at=EXPIRED_AT),
    ),
)


class Records(logging.Handler):
    """Keeps log records as text, with tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="module")
def logged() -> Iterator[Records]:
    records = Records()
    logger = logging.getLogger("twinbus")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(records)
    yield records
    logger.removeHandler(records)
    logger.setLevel(level)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(logged: Records, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Namespace]:
    async with Namespace(CONFIG, certificate_folder=tmp_path_factory.mktemp("tls")) as running:
        yield running


def connect_as(namespace: Namespace, name: str, key: str) -> str:
    """A connection string with the given key name and key."""
    return connection_string("127.0.0.1", namespace.port, AccessPolicy(name, key, "", ALL_RIGHTS))
