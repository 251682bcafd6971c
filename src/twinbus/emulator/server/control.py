"""Serves the control port: add faults, switch pings and read counts over HTTP.

It is a separate port because a namespace that refuses connections could not be told to stop refusing. Every
request except /healthz needs the token that `twinbus serve` prints. The port listens on loopback only.

    GET    /healthz
    GET    /namespaces
    GET    /namespaces/NAME/entities
    GET    /namespaces/NAME/faults
    POST   /namespaces/NAME/faults          {"kind": "blackhole", "seconds": 5}
    GET    /namespaces/NAME/faults/ID       also after it ended: how often it fired
    DELETE /namespaces/NAME/faults          end all faults
    DELETE /namespaces/NAME/faults/ID
    PUT    /namespaces/NAME/pings           {"deliver": true}
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from ..entities.entity_directory import AnyEntity, TopicEntity
from ..faults.fault_plan import Fault, FaultError
from .namespace import LOOPBACK, Namespace

MAX_BODY = 64 * 1024
MAX_SHOWN = 50

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


class Control:
    """Serves the control API of the given namespaces while its context is entered."""

    def __init__(self, namespaces: Mapping[str, Namespace], port: int = 0, token: str | None = None) -> None:
        self._namespaces = namespaces
        self._port = port
        self.token = token or secrets.token_urlsafe(24)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Control:
        app = web.Application(middlewares=[self._authorize], client_max_size=MAX_BODY)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/namespaces", self._list)
        app.router.add_get("/namespaces/{name}/entities", self._entities)
        app.router.add_get("/namespaces/{name}/faults", self._faults)
        app.router.add_post("/namespaces/{name}/faults", self._add_fault)
        app.router.add_get("/namespaces/{name}/faults/{id}", self._fault)
        app.router.add_delete("/namespaces/{name}/faults", self._clear_faults)
        app.router.add_delete("/namespaces/{name}/faults/{id}", self._remove_fault)
        app.router.add_put("/namespaces/{name}/pings", self._set_pings)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, LOOPBACK, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            cause = os.strerror(error.errno) if error.errno else error
            message = f"--control-port: cannot listen on {LOOPBACK}, port {self._port}: {cause}"
            raise OSError(error.errno, message) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        if request.path != "/healthz" and not hmac.compare_digest(
            authorization.encode(errors="replace"), f"Bearer {self.token}".encode()
        ):
            return _error(401, "the Authorization header must be 'Bearer ' and the control token")
        return await handler(request)

    def _namespace(self, request: web.Request) -> Namespace:
        name = request.match_info["name"]
        namespace = self._namespaces.get(name)
        if namespace is None:
            known = ", ".join(self._namespaces)
            raise web.HTTPNotFound(
                text=json.dumps({"error": f"no namespace {name[:MAX_SHOWN]!r}; there are {known}"}),
                content_type="application/json",
            )
        return namespace

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                name: {
                    "port": namespace.port,
                    "connections": len(namespace.connections),
                    "profile": namespace.profile.name.value,
                }
                for name, namespace in self._namespaces.items()
            }
        )

    async def _entities(self, request: web.Request) -> web.Response:
        namespace = self._namespace(request)
        counts: dict[str, Any] = {}
        for entity in namespace.entities:
            counts[entity.description.path] = _counts(entity)
            if isinstance(entity, TopicEntity):
                for subscription in entity.subscriptions.values():
                    counts[subscription.description.path] = _counts(subscription)
        return web.json_response(counts)

    async def _faults(self, request: web.Request) -> web.Response:
        return web.json_response([fault.to_json() for fault in self._namespace(request).faults])

    async def _fault(self, request: web.Request) -> web.Response:
        text = request.match_info["id"]
        fault = self._namespace(request).faults.find(int(text)) if _is_id(text) else None
        if fault is None:
            return _error(404, f"no fault {text[:MAX_SHOWN]!r} is known")
        return web.json_response(fault.to_json())

    async def _add_fault(self, request: web.Request) -> web.Response:
        namespace = self._namespace(request)
        try:
            fault = Fault.from_json(await request.json())
            added = namespace.faults.add(fault)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        except FaultError as error:
            return _error(400, str(error))
        return web.json_response(added.to_json(), status=201)

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self._namespace(request).faults.clear()
        return web.json_response({"cleared": True})

    async def _remove_fault(self, request: web.Request) -> web.Response:
        namespace = self._namespace(request)
        text = request.match_info["id"]
        if not _is_id(text) or not namespace.faults.remove(int(text)):
            return _error(404, f"no fault {text[:MAX_SHOWN]!r} is in force")
        return web.json_response({"removed": int(text)})

    async def _set_pings(self, request: web.Request) -> web.Response:
        namespace = self._namespace(request)
        try:
            deliver = (await request.json())["deliver"]
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
            deliver = None
        if not isinstance(deliver, bool):
            return _error(400, 'the body must be {"deliver": true} or {"deliver": false}')
        namespace.deliver_pings = deliver
        return web.json_response({"deliver": deliver})


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _counts(entity: AnyEntity) -> dict[str, Any]:
    """The entity's message counts, and its activity since the namespace started."""
    queue, counts = entity.queue, entity.counts
    return {
        "active": counts.active,
        "deferred": queue.counters.deferred,
        "scheduled": counts.scheduled,
        "dead_letter": counts.dead_letter,
        "transfer": counts.transfer,
        "transfer_dead_letter": counts.transfer_dead_letter,
        "bytes": entity.size_in_bytes,
        "locked": queue.locked,
        "received": queue.activity.received,
        "pings": queue.activity.pings,
        "delivered": queue.activity.delivered,
        "completed": queue.activity.completed,
        "polls": queue.activity.polls,
    }
