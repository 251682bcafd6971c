"""Provokes every kind of send failure, with the embedded namespace or a substitute for it.

The SDK sleeps for a second over most failures, so all of them are brought about at the same time, each with an entity
and a connection of its own: once by the SDK's threads, once by its coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from tests.sdk_connection import SPEAKS_PLAIN_TEXT, client_options, free_address, reachable

from twinbus.emulator import (
    Fault,
    FaultKind,
    FaultPoint,
    NamespaceConfig,
    NamespaceThread,
    PolicyConfig,
    QueueDescription,
)
from twinbus.pairing.failover.error_classification import Cause
from twinbus.pairing.sdk.version import INSTALLED, Version
from twinbus.servicebus.access_rights import Right

PATIENCE = 20.0  # seconds for an answer that comes
SHORT = 1.0  # seconds for one that does not
LISTENER = "listener"


class Target(NamedTuple):
    """How a client connects."""

    connection_string: str
    options: Mapping[str, Any] = MappingProxyType({})


class Scene:
    """The environment of the situations."""

    def __init__(self, namespace: NamespaceThread, refusing: NamespaceThread) -> None:
        self.namespace = namespace
        self.refusing = refusing

    @classmethod
    @contextlib.contextmanager
    def set_up(cls, folder: Path) -> Iterator[Scene]:
        policies = (PolicyConfig(LISTENER, frozenset({Right.LISTEN})),)
        config = NamespaceConfig("contoso", port=0, policies=policies)
        with (
            NamespaceThread(lambda: reachable(config, certificate_folder=folder)) as namespace,
            NamespaceThread(lambda: reachable("gone")) as refusing,
        ):
            refusing.call(refusing.namespace.faults.add, Fault(FaultKind.REFUSE))
            yield cls(namespace, refusing)
            namespace.call(namespace.namespace.faults.clear)

    def create(self, path: str, properties: dict[str, Any]) -> None:
        self.namespace.run(self.namespace.namespace.create(QueueDescription(path, **properties)))

    def delete(self, path: str) -> None:
        self.namespace.run(self.namespace.namespace.delete(path))

    def strike(self, fault: Fault, path: str) -> None:
        self.namespace.call(self.namespace.namespace.faults.add, replace(fault, entity=path))

    # ---- ways to connect ----

    def as_usual(self) -> Target:
        """In plain text if the SDK can, else over TLS."""
        return self._to(self.namespace.connection_string)

    def refused(self) -> Target:
        return self._to(self.refusing.connection_string)

    def with_a_wrong_key(self) -> Target:
        return self._to(self.namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong"))

    def without_the_right_to_send(self) -> Target:
        return self._to(self.namespace.namespace.connection_string_for(LISTENER))

    def _to(self, text: str) -> Target:
        return Target(text, client_options(self.namespace.namespace))

    def to_an_unknown_host(self) -> Target:
        return self._elsewhere("no-such-host.invalid", 5672)

    def to_something_that_says(self, answer: bytes | None) -> Target:
        return self._elsewhere(*speaker(answer))

    def _elsewhere(self, host: str, port: int) -> Target:
        namespace = self.namespace.namespace
        return self._to(
            self.namespace.connection_string.replace(f"{namespace.host}:{namespace.port}", f"{host}:{port}")
        )

    def over_tls(self, *, trusted: bool, key: str = "") -> Target:
        """TLS to any port needs a custom endpoint."""
        namespace = self.namespace.namespace
        assert namespace.certificate is not None
        options: dict[str, Any] = {
            "custom_endpoint_address": f"sb://{namespace.host}:{namespace.port}",
            "transport_type": TransportType.Amqp,
        }
        if trusted:
            options["connection_verify"] = str(namespace.certificate.ca_file)
        text = self.namespace.connection_string.replace("UseDevelopmentEmulator=true", "").rstrip(";")
        return Target(text.replace("SharedAccessKey=", f"SharedAccessKey={key}"), options)


def speaker(answer: bytes | None) -> tuple[str, int]:
    """An address where no namespace answers: it sends other bytes, or closes at once."""
    server = socket.create_server(free_address())

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                if answer is not None:
                    connection.recv(100)
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    host, port = server.getsockname()
    return host, port


def text() -> ServiceBusMessage:
    return ServiceBusMessage("a message")


@dataclass(frozen=True)
class Situation:
    """A cause of a failing send, what the SDK raises for it, and its classification."""

    name: str
    cause: Cause
    error: type[ServiceBusError]
    #: Strikes the entity of this situation.
    fault: Fault | None = None
    target: Callable[[Scene], Target] = Scene.as_usual
    message: Callable[[], ServiceBusMessage] = text
    #: Whether a send succeeds before the fault.
    link_open: bool = False
    scheduled: bool = False
    #: Of the queue; None if there is none.
    properties: dict[str, Any] | None = field(default_factory=dict)
    timeout: float = PATIENCE
    #: The first version of the SDK whose sync or aio client ends the send at its timeout; older ones wait for ever.
    ends_since: Mapping[str, Version] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def on(kind: FaultKind, *operations: FaultPoint, **fields: Any) -> Fault:
    return Fault(kind, on=frozenset(operations), **fields)


TOKEN, ATTACH, SEND, MANAGEMENT = FaultPoint.TOKEN, FaultPoint.ATTACH, FaultPoint.SEND, FaultPoint.MANAGEMENT
BUSY, CALLER, DISABLED, FORBIDDEN = Cause.BUSY, Cause.CALLER, Cause.DISABLED, Cause.FORBIDDEN
NOT_FOUND, QUOTA, UNAVAILABLE = Cause.NOT_FOUND, Cause.QUOTA, Cause.UNAVAILABLE


def rejected(condition: str, at: FaultPoint = SEND) -> Fault:
    return on(FaultKind.REJECT, at, condition=condition)


SITUATIONS = [
    # Timeouts.
    Situation(
        "no answer to a message",
        UNAVAILABLE,
        OperationTimeoutError,
        on(FaultKind.DROP_ACK, SEND),
        link_open=True,
        timeout=SHORT,
        ends_since={"aio": (7, 14)},
    ),
    Situation("the service says timeout", UNAVAILABLE, OperationTimeoutError, rejected("com.microsoft:timeout")),
    *(
        Situation(
            f"no answer to {what}",
            UNAVAILABLE,
            OperationTimeoutError,
            on(FaultKind.BLACKHOLE, operation),
            timeout=SHORT,
            ends_since={"sync": (7, 15), "aio": (7, 15)},
        )
        for what, operation in (("an attach", ATTACH), ("a token", TOKEN))
    ),
    Situation(
        "no answer to a schedule",
        UNAVAILABLE,
        OperationTimeoutError,
        on(FaultKind.BLACKHOLE, MANAGEMENT),
        link_open=True,
        scheduled=True,
        timeout=SHORT,
    ),
    # Connections.
    Situation("the connection is refused", UNAVAILABLE, ServiceBusConnectionError, target=Scene.refused),
    Situation("the host has no address", UNAVAILABLE, ServiceBusConnectionError, target=Scene.to_an_unknown_host),
    Situation(
        "the peer closes without a word",
        UNAVAILABLE,
        ServiceBusConnectionError,
        target=lambda scene: scene.to_something_that_says(None),
    ),
    Situation(
        "a gateway answers in place of the service",
        UNAVAILABLE,
        ServiceBusError if SPEAKS_PLAIN_TEXT else ServiceBusConnectionError,
        target=lambda scene: scene.to_something_that_says(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"),
    ),
    Situation("a reset at the token", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.RESET, TOKEN)),
    Situation("a reset at the attach", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.RESET, ATTACH)),
    Situation(
        "a reset at the message", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.RESET, SEND), link_open=True
    ),
    Situation("the connection is closed at the attach", UNAVAILABLE, ServiceBusError, on(FaultKind.CLOSE, ATTACH)),
    Situation(
        "the connection is closed at the message", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.CLOSE, SEND)
    ),
    Situation(
        "the link is detached at the attach", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.DETACH, ATTACH)
    ),
    Situation(
        "the link is detached at the message", UNAVAILABLE, ServiceBusConnectionError, on(FaultKind.DETACH, SEND)
    ),
    # Internal and unknown errors of the service.
    Situation("an internal error at the message", UNAVAILABLE, ServiceBusError, rejected("amqp:internal-error")),
    Situation("an internal error at the attach", UNAVAILABLE, ServiceBusError, rejected("amqp:internal-error", ATTACH)),
    Situation(
        "an internal error at the token",
        UNAVAILABLE,
        ServiceBusAuthenticationError,
        rejected("amqp:internal-error", TOKEN),
    ),
    Situation(
        "an internal error at a schedule",
        UNAVAILABLE,
        ServiceBusError,
        rejected("amqp:internal-error", MANAGEMENT),
        scheduled=True,
    ),
    Situation("an unknown error condition", UNAVAILABLE, ServiceBusError, rejected("com.microsoft:something-new")),
    # Authentication and authorization.
    Situation("a wrong key", FORBIDDEN, ServiceBusAuthenticationError, target=Scene.with_a_wrong_key),
    Situation(
        "a wrong key behind a custom endpoint",
        FORBIDDEN,
        ServiceBusConnectionError,
        target=lambda scene: scene.over_tls(trusted=True, key="wrong"),
    ),
    Situation("an expired token", FORBIDDEN, ServiceBusAuthenticationError, on(FaultKind.EXPIRE, TOKEN)),
    Situation("no right to send", FORBIDDEN, ServiceBusAuthorizationError, target=Scene.without_the_right_to_send),
    Situation("an expired token at the attach", FORBIDDEN, ServiceBusAuthorizationError, on(FaultKind.EXPIRE, ATTACH)),
    Situation(
        "a refused authorization", FORBIDDEN, ServiceBusAuthorizationError, rejected("com.microsoft:auth-failed")
    ),
    Situation(
        "a certificate of an unknown authority",
        FORBIDDEN,
        ServiceBusConnectionError,
        target=lambda scene: scene.over_tls(trusted=False),
    ),
    # The message.
    Situation(
        "a message that is too large",
        CALLER,
        MessageSizeExceededError,
        message=lambda: ServiceBusMessage("x" * 300_000),
    ),
    Situation(
        "a number that AMQP cannot hold",
        CALLER,
        ServiceBusError,
        message=lambda: ServiceBusMessage("", application_properties={"large": 2**70}),
    ),
    Situation(
        "a property that AMQP does not know",
        CALLER,
        ServiceBusError,
        message=lambda: ServiceBusMessage("", application_properties={"odd": object()}),  # type: ignore[dict-item]
    ),
    Situation("no session id where one is needed", CALLER, ServiceBusError, properties={"requires_session": True}),
    Situation("a bad argument", CALLER, ServiceBusError, rejected("com.microsoft:argument-error")),
    Situation("an argument out of range", CALLER, ServiceBusError, rejected("com.microsoft:argument-out-of-range")),
    Situation("a failed precondition", CALLER, ServiceBusError, rejected("amqp:precondition-failed")),
    # Entities that are not there, not in use, or full.
    Situation("no such entity", NOT_FOUND, ServiceBusAuthenticationError, properties=None),
    Situation(
        "no such entity at the attach", NOT_FOUND, MessagingEntityNotFoundError, rejected("amqp:not-found", ATTACH)
    ),
    Situation("a disabled entity", DISABLED, MessagingEntityDisabledError, properties={"status": "Disabled"}),
    Situation("an entity disabled just now", DISABLED, MessagingEntityDisabledError, on(FaultKind.DISABLE, ATTACH)),
    Situation("a full entity", QUOTA, ServiceBusQuotaExceededError, on(FaultKind.FILL, SEND), link_open=True),
    Situation(
        "a full entity at a schedule",
        QUOTA,
        ServiceBusQuotaExceededError,
        on(FaultKind.FILL, MANAGEMENT),
        scheduled=True,
    ),
    # The service asks to slow down.
    Situation("busy at the message", BUSY, ServiceBusServerBusyError, on(FaultKind.THROTTLE, SEND), link_open=True),
    Situation("busy at the attach", BUSY, ServiceBusServerBusyError, on(FaultKind.THROTTLE, ATTACH)),
    Situation("busy at the token", BUSY, ServiceBusAuthenticationError, on(FaultKind.THROTTLE, TOKEN)),
    Situation(
        "busy at a schedule", BUSY, ServiceBusServerBusyError, on(FaultKind.THROTTLE, MANAGEMENT), scheduled=True
    ),
]

Raised = dict[str, BaseException | None]


def _ending(mode: str) -> list[Situation]:
    """Return the situations in which a send of the installed SDK ends."""
    return [one for one in SITUATIONS if one.ends_since.get(mode, INSTALLED) <= INSTALLED]


def _prepared(scene: Scene, situation: Situation, mode: str) -> str:
    """The entity of a situation, created if it is to exist."""
    path = f"{mode}-{situation.name.replace(' ', '-')}"
    if situation.properties is not None:
        scene.create(path, situation.properties)
    return path


def _tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def provoke_sync(scene: Scene) -> Raised:
    """What the SDK's synchronous client raises in each situation; None if the send succeeded."""

    def provoke(situation: Situation) -> BaseException | None:
        path = _prepared(scene, situation, "sync")
        target = situation.target(scene)
        client = ServiceBusClient.from_connection_string(target.connection_string, retry_total=0, **target.options)
        with client:
            sender = client.get_queue_sender(path)
            if situation.link_open:
                sender.send_messages(text())
            if situation.fault is not None:
                scene.strike(situation.fault, path)
            try:
                if situation.scheduled:
                    sender.schedule_messages(situation.message(), _tomorrow(), timeout=situation.timeout)
                else:
                    sender.send_messages(situation.message(), timeout=situation.timeout)
            except Exception as error:
                return error
        return None

    situations = _ending("sync")
    with ThreadPoolExecutor(max_workers=len(situations)) as pool:
        return dict(zip((one.name for one in situations), pool.map(provoke, situations), strict=True))


async def provoke_async(scene: Scene) -> Raised:
    """The same with the asynchronous client."""

    async def provoke(situation: Situation) -> BaseException | None:
        path = await asyncio.to_thread(_prepared, scene, situation, "aio")
        target = situation.target(scene)
        client = AsyncServiceBusClient.from_connection_string(target.connection_string, retry_total=0, **target.options)
        async with client:
            sender = client.get_queue_sender(path)
            if situation.link_open:
                await sender.send_messages(text())
            if situation.fault is not None:
                await asyncio.to_thread(scene.strike, situation.fault, path)
            try:
                if situation.scheduled:
                    await sender.schedule_messages(situation.message(), _tomorrow(), timeout=situation.timeout)
                else:
                    await sender.send_messages(situation.message(), timeout=situation.timeout)
            except Exception as error:
                return error
        return None

    situations = _ending("aio")
    raised = await asyncio.gather(*map(provoke, situations))
    return dict(zip((one.name for one in situations), raised, strict=True))
