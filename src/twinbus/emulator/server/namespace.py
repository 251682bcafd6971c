"""Serves one namespace: its entities, connections, access rights and faults behind one port."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import sqlite3
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from aiohttp import web

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import QueueDescription, SubscriptionDescription, TopicDescription

from ..admin.api import AdministrationApi
from ..admin.registry import NoSuchEntityError
from ..auth.certificate import Certificate, ensure_certificate, server_context
from ..auth.refusals import describe_policies, policies_in
from ..auth.security import (
    ROOT_POLICY,
    AccessPolicy,
    Authority,
    Clock,
    Grant,
    UnauthorizedError,
    connection_string,
    missing_right,
    owner_of,
)
from ..config.configured_entities import wanted_changes
from ..config.namespace_file import NamespaceConfig
from ..config.profile import PROFILES, Profile
from ..entities.entity_directory import AnyEntity, Entities, QueueEntity, SubscriptionEntity, TopicEntity
from ..entities.idle_deletion import idle_paths
from ..entities.inbox import Environment
from ..entities.timeline import Timeline
from ..faults.fault_plan import Faults
from ..faults.outage import Outage
from ..faults.throttle import Throttle
from ..protocol.connection import Connection
from ..protocol.error_conditions import BrokerError, not_found
from ..protocol.links import IncomingLink, Link, OutgoingLink
from ..storage.schema import PUT_SETTING
from ..storage.store import Durability, Store, StoreError
from . import metrics, websocket
from .http_front import HttpFront
from .listener import Listener
from .unauthenticated import UnauthenticatedConnections

logger = logging.getLogger("twinbus.emulator")

LOOPBACK = "127.0.0.1"
CLOSE_TIMEOUT = 5.0
HOUSEKEEPING_INTERVAL = 60.0


class Namespace:
    """A Service-Bus-compatible namespace, served on one port while the context is entered.

    Without a `data` folder nothing is kept after it closes. `config` may be just a name. TLS uses `certificate`, or one
    that is generated in `certificate_folder` or `data`. Add faults with `faults.add` and entities with `create`;
    clients connect with `connection_string`.
    """

    def __init__(
        self,
        config: NamespaceConfig | str,
        *,
        data: Path | None = None,
        host: str = LOOPBACK,
        profile: Profile | None = None,
        certificate: Certificate | None = None,
        certificate_folder: Path | None = None,
        certificate_names: Sequence[str] = (),
        clock: Clock = time.time,
    ) -> None:
        if isinstance(config, str):
            config = NamespaceConfig(config, port=0)
        if data is None:
            config = replace(config, durability=Durability.MEMORY)
        self.config = config
        self.name = config.name
        self.host = host
        self.clock = clock
        self.profile = config.profile_changes.apply(profile or PROFILES[config.profile])
        self.faults = Faults()
        self.deliver_pings = config.deliver_pings
        self.connections: set[Connection] = set()
        self.unauthenticated = UnauthenticatedConnections()
        self.created_at = clock()
        self.certificate = certificate
        self._data = data
        self._certificate_folder = certificate_folder or data
        self._certificate_names = certificate_names
        self._tls: ssl.SSLContext | None = None
        self._is_open = False
        self._connection_removed = asyncio.Event()
        self._housekeeping_due = asyncio.Event()
        self._listeners: list[Listener] = []
        self._background: list[asyncio.Task[None]] = []

    # ---- starting and stopping ----

    async def __aenter__(self) -> Namespace:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store and check the configuration against it, without changing anything.

        `start` calls it if needed. A caller that does not go on to `start` must call `abandon`. Raises `StoreError` or
        `ConfigError`.
        """
        loop = asyncio.get_running_loop()
        self.loop_time = loop.time
        self.store = Store(self._data, self.config.durability)
        self._is_open = True
        async with self._abandon_on_error():
            environment = Environment(
                self.store,
                lambda: int(self.clock() * 1000),
                lambda: self.deliver_pings,
                lambda message: self._timeline.watch(message),
                self.faults.forwarding_refused,
            )
            self.entities = Entities(environment, self.config.max_message_size)
            self._timeline = Timeline(self.store, environment.now_ms, self.entities.queue_by_key)
            self._changes = wanted_changes(self.config, self.entities, self.clock())

    async def start(self) -> None:
        """Open the store, create the configured entities, and listen.

        Raises `StoreError`, `ConfigError` or `OSError`.
        """
        if not self._is_open:
            await self.open()
        loop = asyncio.get_running_loop()
        async with self._abandon_on_error():
            self.throttle = Throttle(self.name, self.profile.throttle, loop.time)
            await self._load_settings()
            await self.entities.put_all(self._changes)
            if self.certificate is None and self._certificate_folder is not None:
                names = (*self._certificate_names, self.name)
                self.certificate = await asyncio.to_thread(
                    ensure_certificate, self._certificate_folder / "tls", names, self.clock
                )
            if self.certificate is not None:
                self._tls = server_context(self.certificate)
            self._timeline.start()
            self._start_serving()
        self._background = [
            loop.create_task(self._tick()),
            loop.create_task(self._run_housekeeping()),
        ]
        logger.info("%s listens on %s:%d", self.name, self.host, self.port)

    @contextlib.asynccontextmanager
    async def _abandon_on_error(self) -> AsyncIterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            await self.abandon()
            raise StoreError(f"the database {self.store.path} cannot be read: {error}") from error
        except BaseException:
            await self.abandon()
            raise

    def _start_serving(self) -> None:
        self.outage = Outage(self)
        self._http = HttpFront(self._handle_http, self.unauthenticated)
        self._api = AdministrationApi(
            self,
            tier=self.config.tier,
            max_message_size_in_kilobytes=self.config.max_message_size // 1024,
            clock=self.clock,
            on_token=self._http.trust,
            describe_policies=lambda token, path: describe_policies(self, path, policies_in(token)),
        )
        ports = (self.config.port, self.config.administration_port)
        self._listeners = [
            Listener(
                self.host,
                port,
                lambda: Connection(self),
                self._http.protocol,
                lambda: self._tls,
                self.outage.admit,
                self.unauthenticated,
            )
            for port in ports
            if port is not None
        ]
        self.listen()

    async def abandon(self) -> None:
        """Release what `open` and `start` acquired, after the start failed or was given up."""
        if not self._is_open:
            return
        self._is_open = False
        for listener in self._listeners:
            await listener.close()
        await self.store.close()

    async def close(self) -> None:
        """Close every connection, write what is pending, and close the files."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._timeline.close()
        for listener in self._listeners:
            await listener.close()
        self.outage.close()
        stopping = BrokerError("amqp:connection:forced", "The namespace is stopping.")
        for connection in list(self.connections):
            connection.close(stopping)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait_for_connections(), CLOSE_TIMEOUT)
        for connection in list(self.connections):
            connection.reset()
        # Idle connections close at once. To aiohttp a timeout of 0 would mean no limit.
        await self._http.close(CLOSE_TIMEOUT)
        for queue in self.entities.all_queues():
            queue.close()
        await self.store.close(self.entities.counted)
        self._is_open = False

    async def _wait_for_connections(self) -> None:
        self._connection_removed.clear()
        while self.connections:
            await self._connection_removed.wait()
            self._connection_removed.clear()

    def connection_ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._connection_removed.set()

    @property
    def port(self) -> int:
        return self._listeners[0].port

    @property
    def administration_port(self) -> int:
        """The port of the administration API: the shared port unless another is configured."""
        return self._listeners[-1].port

    @property
    def connection_string(self) -> str:
        """Connection string for the SDK, with every right. It holds the key."""
        return self.connection_string_for(ROOT_POLICY)

    def connection_string_for(self, policy: str) -> str:
        """Connection string with the key and the rights of a policy of the namespace; raises `KeyError`."""
        return connection_string(self.host, self.port, self.policy(policy))

    def policy(self, name: str) -> AccessPolicy:
        """A policy of the namespace itself; raises `KeyError`."""
        for policy in self._policies:
            if policy.name == name:
                return policy
        raise KeyError(name)

    def policies_for(self, path: str) -> list[AccessPolicy]:
        """The policies whose keys may give access to a path: the namespace's and the entity's own."""
        return [*self._policies, *self.entities.policies(owner_of(path))]

    # ---- stored settings ----

    async def _load_settings(self) -> None:
        rows = dict(self.store.reader.execute("SELECT name, value FROM settings").fetchall())
        stored = [
            AccessPolicy(name, primary, secondary, frozenset(Right(right) for right in rights))
            for name, primary, secondary, rights in json.loads(rows.get("policies", "[]"))
        ]
        self._policies = self.config.access_policies(stored)
        self.created_at = float(rows.get("created_at", self.clock()))
        saved = json.dumps([[p.name, p.primary_key, p.secondary_key, sorted(p.rights)] for p in self._policies])
        self._authority = Authority(
            self._policies,
            bearer_tokens=self.config.bearer_tokens,
            hosts=self.config.audience_hosts,
            clock=self.clock,
        )
        await self.store.commit(
            [
                (PUT_SETTING, ("policies", saved)),
                (PUT_SETTING, ("created_at", repr(self.created_at))),
            ]
        )

    # ---- for the administration API ----

    @property
    def entity_count(self) -> int:
        return len(self.entities)

    def find(self, path: str) -> QueueEntity | TopicEntity | None:
        return self.entities.find(path)

    def queues(self) -> Sequence[QueueEntity]:
        return sorted((entity for entity in self.entities if isinstance(entity, QueueEntity)), key=_path_of)

    def topics(self) -> Sequence[TopicEntity]:
        return sorted((entity for entity in self.entities if isinstance(entity, TopicEntity)), key=_path_of)

    async def create(self, description: QueueDescription | TopicDescription) -> QueueEntity | TopicEntity:
        """Add a queue or topic; raises `EntityExistsError`."""
        return cast(QueueEntity | TopicEntity, await self.entities.create(description))

    async def update(self, description: QueueDescription | TopicDescription) -> QueueEntity | TopicEntity:
        entity = cast(QueueEntity | TopicEntity, await self.entities.update(description))
        self._detach_disallowed_receivers(entity)
        return entity

    async def delete(self, path: str) -> None:
        await self._delete(path)

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionEntity:
        return cast(SubscriptionEntity, await self.entities.create(description))

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionEntity:
        entity = cast(SubscriptionEntity, await self.entities.update(description))
        self._detach_disallowed_receivers(entity)
        return entity

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._delete(f"{topic}/Subscriptions/{name}")

    async def _delete(self, path: str) -> None:
        node = self.entities.resolve(path)
        try:
            await self.entities.delete(path)
        finally:
            # Also if deleting failed: the links no longer lead anywhere, so clients must attach again.
            if node is not None and not node.is_dead_letter:
                self._detach_from_deleted()

    def _detach_disallowed_receivers(self, entity: AnyEntity) -> None:
        """Detach the receivers that a changed entity no longer allows. Senders get the error when they send."""
        for link in self.entity_links():
            if isinstance(link, OutgoingLink) and link.node.entity is entity:
                try:
                    link.node.require_active(Right.LISTEN)
                    link.node.require_receivable()
                except BrokerError as error:
                    link.channel.detach(link, error)

    def _detach_from_deleted(self) -> None:
        """Detach the links to deleted entities."""
        for link in self.entity_links():
            node = self.entities.resolve(link.node.path)
            if node is None or node.entity is not link.node.entity:
                link.channel.detach(link, not_found(link.node.path))

    def entity_links(self) -> list[IncomingLink | OutgoingLink]:
        """All clients' links to entities."""
        links: list[Link] = []
        for connection in self.connections:
            for channel in connection.channels.values():
                links += channel.links.values()
        return [link for link in links if isinstance(link, (IncomingLink, OutgoingLink))]

    def authorize(self, authorization: str | None, path: str, right: Right) -> None:
        """Raise `UnauthorizedError` unless the token of an Authorization header grants the right."""
        grant = self.verify(authorization, path)
        if not grant.allows(path, right):
            raise missing_right(right, path)

    def has_host_name(self, host: str) -> bool:
        """Whether `host` is a name or address of this namespace."""
        bare = host.rpartition(":")[0] if host.count(":") == 1 else host.strip("[]")
        bare = bare.lower()
        names = {self.name, f"{self.name}.servicebus.windows.net", self.host, *self._certificate_names}
        names |= {"localhost", "127.0.0.1", "::1", *self.config.audience_hosts}
        # A namespace that listens on all addresses cannot know all its names.
        return self.host in ("0.0.0.0", "::") or bare in {name.lower() for name in names}

    # ---- tokens ----

    def verify(self, token: str | None, path: str) -> Grant:
        """What a token grants on a path; raises `UnauthorizedError`."""
        return self._authority.verify(token, self.entities.policies, resource=path)

    def grant_for_key(self, name: str, key: str) -> Grant:
        """What the key of a namespace policy grants; raises `UnauthorizedError`."""
        for policy in self._policies:
            if policy.name == name and any(
                hmac.compare_digest(key.encode(), policy_key.encode()) for policy_key in policy.keys
            ):
                return Grant("", policy.rights, float("inf"), policy=policy.name)
        raise UnauthorizedError("InvalidSignature: The name or key is wrong.")

    # ---- HTTP on the shared port ----

    async def _handle_http(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.outage.wait_for_http()
        if request.path in ("/healthz", "/health") and request.method == "GET":
            return web.json_response({"status": "ok", "namespace": self.name})
        if request.path == "/metrics" and request.method == "GET":
            return web.Response(body=metrics.exposition(self).encode(), headers={"Content-Type": metrics.CONTENT_TYPE})
        if request.path == websocket.PATH:
            return await websocket.serve_websocket(self, request)
        return await self._api.handle(request)

    # ---- time ----

    def clock_was_set(self) -> None:
        """Act at once on a `clock` that jumped: expire locks and messages, deliver what is due.

        Without this call a jump is noticed within 30 seconds.
        """
        self._timeline.check_clock()
        for queue in list(self.entities.all_queues()):
            queue.check_clock()
        self._housekeeping_due.set()

    async def _tick(self) -> None:
        times = (self.profile.idle_timeout, self.profile.link_idle, self.profile.connection_idle)
        interval = min([1.0, *(seconds / 4 for seconds in times if seconds is not None)])
        while True:
            await asyncio.sleep(interval)
            now = self.loop_time()
            self.faults.expire()
            for connection in list(self.connections):
                connection.tick(now)

    async def _run_housekeeping(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._housekeeping_due.wait(), HOUSEKEEPING_INTERVAL)
            self._housekeeping_due.clear()
            for queue in list(self.entities.all_queues()):
                queue.forget_seen()
            for path in idle_paths(self.entities, self.clock()):
                logger.info("%s deletes the idle entity '%s'", self.name, path)
                with contextlib.suppress(NoSuchEntityError, StoreError):
                    await self._delete(path)

    # ---- faults ----

    def listen(self) -> None:
        """Accept connections again."""
        for listener in self._listeners:
            listener.start()

    def stop_listening(self) -> bool:
        """Refuse new connections; false if they were refused already."""
        was_listening = self._listeners[0].is_listening
        for listener in self._listeners:
            listener.stop()
        return was_listening

    def serve_socket(self, accepted: socket.socket) -> None:
        """Serve a connection that a fault had held back."""
        self._listeners[0].serve(accepted)


def _path_of(entity: QueueEntity | TopicEntity) -> str:
    return entity.description.path
