"""A namespace: entities, connections, rights and faults behind one port. `async with Namespace("contoso")`."""

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

from . import metrics, websocket
from .admin.api import AdministrationApi
from .admin.registry import EntityNotFound
from .certificate import Certificate, ensure_certificate, server_context
from .config import NamespaceConfig
from .configured import wanted_changes
from .connection import Connection
from .descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from .entities import AnyEntity, Entities, QueueEntity, SubscriptionEntity, TopicEntity
from .errors import BrokerError, not_found
from .faults import Faults
from .http_front import HttpFront
from .idle import idle_paths
from .inbox import Environment
from .links import IncomingLink, Link, OutgoingLink
from .listener import Listener
from .newcomers import Newcomers
from .outage import Outage
from .profile import PROFILES, Profile
from .refusals import policies_in, said_of
from .schema import PUT_SETTING
from .security import (
    ROOT_POLICY,
    AccessPolicy,
    Authority,
    Clock,
    Grant,
    Right,
    Unauthorized,
    connection_string,
    missing_right,
    owner_of,
)
from .store import Durability, Store, StoreError
from .throttle import Throttle
from .timeline import Timeline

logger = logging.getLogger("twinbus.broker")

LOOPBACK = "127.0.0.1"
CLOSE_TIMEOUT = 5.0
HOUSEKEEPING_INTERVAL = 60.0


class Namespace:
    """One Service-Bus-compatible namespace, served on one port for as long as the context is entered.

    Without a `data` folder nothing outlives it. `config` may be just a name. TLS is spoken with `certificate`, or with
    one that is made in `certificate_folder` or `data`. Faults are put in force through
    `faults`, entities through `create`, and clients connect with `connection_string`.
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
        self.newcomers = Newcomers()
        self.created_at = clock()
        self.certificate = certificate
        self._data = data
        self._certificate_folder = certificate_folder or data
        self._certificate_names = certificate_names
        self._tls: ssl.SSLContext | None = None
        self._is_open = False
        self._gone = asyncio.Event()
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
        """Open the store and check the configuration against it; nothing is changed. `start` does it if nobody did.

        Raises `StoreError` or `ConfigError`. Who does not go on to `start` calls `abandon`.
        """
        loop = asyncio.get_running_loop()
        self.loop_time = loop.time
        self.store = Store(self._data, self.config.durability)
        self._is_open = True
        async with self._abandoned_on_error():
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
        async with self._abandoned_on_error():
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
            loop.create_task(self._keep_house()),
        ]
        logger.info("%s listens on %s:%d", self.name, self.host, self.port)

    @contextlib.asynccontextmanager
    async def _abandoned_on_error(self) -> AsyncIterator[None]:
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
        self._http = HttpFront(self._handle_http, self.newcomers)
        self._api = AdministrationApi(
            self,
            tier=self.config.tier,
            max_message_size_in_kilobytes=self.config.max_message_size // 1024,
            clock=self.clock,
            on_token=self._http.trust,
            said_of=lambda token, path: said_of(self, path, policies_in(token)),
        )
        ports = (self.config.port, self.config.administration_port)
        self._listeners = [
            Listener(
                self.host,
                port,
                lambda: Connection(self),
                self._http.protocol,
                lambda: self._tls,
                self.outage.arriving,
                self.newcomers,
            )
            for port in ports
            if port is not None
        ]
        self.listen()

    async def abandon(self) -> None:
        """It does not start after all: let go of what it had already."""
        if not self._is_open:
            return
        self._is_open = False
        for listener in self._listeners:
            await listener.close()
        await self.store.close()

    async def close(self) -> None:
        """Say goodbye to every client, write what is pending, and close the files."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._timeline.close()
        for listener in self._listeners:
            await listener.close()
        self.outage.close()
        goodbye = BrokerError("amqp:connection:forced", "The namespace is stopping.")
        for connection in list(self.connections):
            connection.close(goodbye)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_gone(), CLOSE_TIMEOUT)
        for connection in list(self.connections):
            connection.reset()
        # Connections that are kept alive close at once; for aiohttp a timeout of 0 would mean none.
        await self._http.close(CLOSE_TIMEOUT)
        for queue in self.entities.all_queues():
            queue.close()
        await self.store.close(self.entities.counted)
        self._is_open = False

    async def _all_gone(self) -> None:
        self._gone.clear()
        while self.connections:
            await self._gone.wait()
            self._gone.clear()

    def connection_ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._gone.set()

    @property
    def port(self) -> int:
        return self._listeners[0].port

    @property
    def administration_port(self) -> int:
        """The port for administration; the same as for all else unless one of its own is configured."""
        return self._listeners[-1].port

    @property
    def connection_string(self) -> str:
        """For the SDK, with every right. It holds the key."""
        return connection_string(self.host, self.port, self.policy(ROOT_POLICY))

    def policy(self, name: str) -> AccessPolicy:
        """A policy of the namespace itself."""
        for policy in self._policies:
            if policy.name == name:
                return policy
        raise KeyError(name)

    def policies_for(self, path: str) -> list[AccessPolicy]:
        """The policies whose keys may open an entity: the namespace's and its own."""
        return [*self._policies, *self.entities.policies(owner_of(path))]

    # ---- what is kept ----

    async def _load_settings(self) -> None:
        rows = dict(self.store.reader.execute("SELECT name, value FROM settings").fetchall())
        kept = [
            AccessPolicy(name, primary, secondary, frozenset(Right(right) for right in rights))
            for name, primary, secondary, rights in json.loads(rows.get("policies", "[]"))
        ]
        self._policies = self.config.access_policies(kept)
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

    # ---- what the administration API asks ----

    @property
    def entity_count(self) -> int:
        return len(self.entities)

    def find(self, path: str) -> QueueEntity | TopicEntity | None:
        return self.entities.find(path)

    def queues(self) -> Sequence[QueueEntity]:
        return sorted((one for one in self.entities if isinstance(one, QueueEntity)), key=lambda q: q.description.path)

    def topics(self) -> Sequence[TopicEntity]:
        return sorted((one for one in self.entities if isinstance(one, TopicEntity)), key=lambda t: t.description.path)

    async def create(self, description: QueueDescription | TopicDescription) -> QueueEntity | TopicEntity:
        """Add a queue or topic; raises `EntityExists`."""
        return cast(QueueEntity | TopicEntity, await self.entities.create(description))

    async def update(self, description: QueueDescription | TopicDescription) -> QueueEntity | TopicEntity:
        entity = cast(QueueEntity | TopicEntity, await self.entities.update(description))
        self._detach_barred(entity)
        return entity

    async def delete(self, path: str) -> None:
        await self._delete(path)

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionEntity:
        return cast(SubscriptionEntity, await self.entities.create(description))

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionEntity:
        entity = cast(SubscriptionEntity, await self.entities.update(description))
        self._detach_barred(entity)
        return entity

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._delete(f"{topic}/Subscriptions/{name}")

    async def _delete(self, path: str) -> None:
        node = self.entities.resolve(path)
        try:
            await self.entities.delete(path)
        finally:
            # If it could not be deleted, its links lead nowhere all the same: clients must come again.
            if node is not None and not node.is_dead_letter:
                self._detach_lost()

    def _detach_barred(self, entity: AnyEntity) -> None:
        """End the receivers that a changed entity would no longer let in. Senders are told when they send."""
        for link in self.entity_links():
            if isinstance(link, OutgoingLink) and link.node.entity is entity:
                try:
                    link.node.require_active(Right.LISTEN)
                    link.node.require_receivable()
                except BrokerError as error:
                    link.channel.detach(link, error)

    def _detach_lost(self) -> None:
        """End the links to entities that are no longer there."""
        for link in self.entity_links():
            found = self.entities.resolve(link.node.path)
            if found is None or found.entity is not link.node.entity:
                link.channel.detach(link, not_found(link.node.path))

    def entity_links(self) -> list[IncomingLink | OutgoingLink]:
        """The links of all clients to entities."""
        links: list[Link] = []
        for connection in self.connections:
            for channel in connection.channels.values():
                links += channel.links.values()
        return [link for link in links if isinstance(link, (IncomingLink, OutgoingLink))]

    def authorize(self, authorization: str | None, path: str, right: Right) -> None:
        """Raise `Unauthorized` unless the header's token gives the right."""
        grant = self.verify(authorization, path)
        if not grant.allows(path, right):
            raise missing_right(right, path)

    def is_called(self, host: str) -> bool:
        """Whether a client may reach this namespace under the name or address of `host`."""
        bare = host.rpartition(":")[0] if host.count(":") == 1 else host.strip("[]")
        bare = bare.lower()
        names = {self.name, f"{self.name}.servicebus.windows.net", self.host, *self._certificate_names}
        names |= {"localhost", "127.0.0.1", "::1", *self.config.audience_hosts}
        # Whoever listens on all addresses is reached under names that nobody here can know.
        return self.host in ("0.0.0.0", "::") or bare in {name.lower() for name in names}

    # ---- tokens ----

    def verify(self, token: str | None, path: str) -> Grant:
        """What a token allows; raises `Unauthorized`."""
        return self._authority.verify(token, self.entities.policies, resource=path)

    def grant_for_key(self, name: str, key: str) -> Grant:
        """What the bearer of a namespace policy's key may do; raises `Unauthorized`."""
        for policy in self._policies:
            if policy.name == name and any(hmac.compare_digest(key.encode(), one.encode()) for one in policy.keys):
                return Grant("", policy.rights, float("inf"), policy=policy.name)
        raise Unauthorized("InvalidSignature: The name or key is wrong.")

    # ---- HTTP on the shared port ----

    async def _handle_http(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.outage.pass_http()
        if request.path in ("/healthz", "/health") and request.method == "GET":
            return web.json_response({"status": "ok", "namespace": self.name})
        if request.path == "/metrics" and request.method == "GET":
            return web.Response(body=metrics.exposition(self).encode(), headers={"Content-Type": metrics.CONTENT_TYPE})
        if request.path == websocket.PATH:
            return await websocket.serve_websocket(self, request)
        return await self._api.handle(request)

    # ---- time ----

    def clock_was_set(self) -> None:
        """Act at once on a `clock` that jumped: locks run out, messages become due or expire.

        Without this call a jump is noticed within half a minute.
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

    async def _keep_house(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._housekeeping_due.wait(), HOUSEKEEPING_INTERVAL)
            self._housekeeping_due.clear()
            for queue in list(self.entities.all_queues()):
                queue.forget_seen()
            for path in idle_paths(self.entities, self.clock()):
                logger.info("%s deletes '%s', which nobody uses", self.name, path)
                with contextlib.suppress(EntityNotFound, StoreError):
                    await self._delete(path)

    # ---- faults ----

    def listen(self) -> None:
        """Accept connections again."""
        for listener in self._listeners:
            listener.start()

    def stop_listening(self) -> bool:
        """Have new connections refused; false if they are already."""
        was_listening = self._listeners[0].is_listening
        for listener in self._listeners:
            listener.stop()
        return was_listening

    def serve_socket(self, accepted: socket.socket) -> None:
        """Serve a connection that a fault has held back."""
        self._listeners[0].serve(accepted)
