"""Fixtures: a namespace to protect, and clients without the right to it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio
from tests.emulator.raw_client import RawClient

from twinbus.emulator import (
    Namespace,
    NamespaceConfig,
    PolicyConfig,
    QueueConfig,
    QueueDescription,
    SubscriptionDescription,
    TopicConfig,
    TopicDescription,
    sign,
)
from twinbus.servicebus.access_rights import ALL_RIGHTS, Right

#: The entity that a stranger may own, and those it must not reach.
OWN, QUEUE, SESSIONS, TOPIC, SUBSCRIPTION = "orders", "payroll", "shifts", "bonus", "bonus/Subscriptions/bank"
ROOT = "RootManageSharedAccessKey"


def key_of(name: str) -> str:
    return base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()


CONFIG = NamespaceConfig(
    "contoso",
    port=0,
    policies=(
        PolicyConfig(ROOT, ALL_RIGHTS, key_of(ROOT)),
        PolicyConfig("sender", frozenset({Right.SEND}), key_of("sender")),
        PolicyConfig("listener", frozenset({Right.LISTEN}), key_of("listener")),
    ),
    queues=(
        QueueConfig(QueueDescription(OWN), (PolicyConfig("neighbour", ALL_RIGHTS, key_of("neighbour")),)),
        QueueConfig(QueueDescription(QUEUE)),
        QueueConfig(QueueDescription(SESSIONS, requires_session=True)),
    ),
    topics=(TopicConfig(TopicDescription(TOPIC), (SubscriptionDescription(TOPIC, "bank"),)),),
)


@dataclass(frozen=True)
class Stranger:
    """A client whose token does not give the access it tries."""

    name: str
    policy: str = ROOT
    key: str = ""
    #: The path of the token; None for the path that is tried.
    path: str | None = None
    expires_in: float = 60.0

    def token_for(self, path: str) -> str:
        uri = f"sb://127.0.0.1/{self.path or path}"
        return sign(uri, self.policy, self.key or key_of(self.policy), time.time() + self.expires_in)

    async def put_tokens(self, client: RawClient, *paths: str) -> None:
        """Put a token for each path; it may be refused here or at the operation."""
        for path in paths:
            properties = {
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": f"sb://127.0.0.1/{path}",
            }
            await client.request("$cbs", properties, self.token_for(path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace(CONFIG) as running:
        yield running
