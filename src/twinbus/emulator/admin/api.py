"""Handles the HTTP requests of the administration API: routes them, checks rights, answers in Atom XML.

PUT     /{path}                             create; with `If-Match: *` or an ETag, update
GET     /{path}                             properties, message counts and sizes
DELETE  /{path}
...     /{topic}/subscriptions/{name}       the same for a subscription
...     /{topic}/subscriptions/{name}/rules/{rule}
GET     /{topic}/subscriptions              lists, a page at a time: `$skip`, `$top`, `$filter`
GET     /$Resources/queues, /$Resources/topics
GET     /$namespaceinfo
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args
from xml.etree import ElementTree as ET

from aiohttp import web

from twinbus.emulator.admin import atom
from twinbus.emulator.admin.errors import AnyRequestError, RequestError, request_error_for
from twinbus.emulator.admin.filters import parse_filter
from twinbus.emulator.admin.incoming import address_of, body_of, check_version, etag_of, is_update, page_of, path_of
from twinbus.emulator.admin.properties import format_time, read_properties
from twinbus.emulator.admin.registry import (
    EntityExistsError,
    NoSuchEntityError,
    Registry,
    SubscriptionView,
    TopicView,
    as_topic,
)
from twinbus.emulator.admin.rules import read_rule
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    check_change,
    with_rule_times,
    with_size_of_partitions,
)
from twinbus.servicebus.property_bounds import SUBSCRIPTIONS_SEGMENT
from twinbus.servicebus.rule_descriptions import RuleDescription

MAX_ENTITIES = 10_000
MAX_SUBSCRIPTIONS_PER_TOPIC = 2_000
# Forwarding requires the right to send to the target; its token comes in a separate header.
_FORWARD_TOKENS = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}
_BASES: dict[str, Callable[[str], QueueDescription | TopicDescription]] = {
    "QueueDescription": QueueDescription,
    "TopicDescription": TopicDescription,
}
_FILTER = "$filter"
_Description = TypeVar("_Description", bound=AnyDescription)
_Listed = TypeVar("_Listed")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, the document to answer with, and the named parts of its path (`target`)."""

    request: web.BaseRequest
    document: atom.Document
    target: dict[str, str]


_Operation = Callable[[_Call], Awaitable[web.Response]]


class AdministrationApi:
    """Answers the administration requests of one namespace.

    `max_message_size_in_kilobytes` is the namespace's limit, shown for entities without one. `on_token` is called for
    each request with a valid token. `describe_policies` describes the policy of
    a token and its path for the log, without secrets.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        tier: Tier = Tier.STANDARD,
        max_message_size_in_kilobytes: int = 256,
        clock: Callable[[], float] = time.time,
        on_token: Callable[[web.BaseRequest], None] = lambda request: None,
        describe_policies: Callable[[str | None, str], str] = lambda token, path: "",
    ) -> None:
        self._registry = registry
        self._on_token = on_token
        self._describe_policies = describe_policies
        self._tier = tier
        self._message_size = max_message_size_in_kilobytes
        self._clock = clock
        self._routes = self._routing_table()

    def _routing_table(self) -> list[tuple[re.Pattern[str], dict[str, _Operation]]]:
        """The operations of each path pattern, by method. The first matching pattern wins."""
        entity: dict[str, _Operation] = {"GET": self._get, "PUT": self._put, "DELETE": self._delete}
        subscription: dict[str, _Operation] = {
            "GET": self._get_subscription,
            "PUT": self._put_subscription,
            "DELETE": self._delete_subscription,
        }
        rule: dict[str, _Operation] = {"GET": self._get_rule, "PUT": self._put_rule, "DELETE": self._delete_rule}
        return [
            (_pattern(r"\$namespaceinfo"), {"GET": self._get_namespace}),
            (_pattern(r"\$Resources/queues"), {"GET": self._list_queues}),
            (_pattern(r"\$Resources/topics"), {"GET": self._list_topics}),
            (_pattern(r"(?P<topic>.+)/subscriptions"), {"GET": self._list_subscriptions}),
            (_pattern(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)"), subscription),
            (_pattern(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)/rules"), {"GET": self._list_rules}),
            (_pattern(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)/rules/(?P<rule>[^/]+)"), rule),
            (_pattern(r"(?P<path>.*)"), entity),
        ]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; errors get the service's status codes and texts."""
        try:
            return await self._dispatch(request)
        except get_args(AnyRequestError) as error:
            return self._error_response(request, request_error_for(error))

    async def _dispatch(self, request: web.BaseRequest) -> web.Response:
        path = path_of(request)
        target, operations = self._route(path)
        # The SDK for JavaScript signs each request for its exact URL, even for a list.
        self._registry.authorize(request.headers.get("Authorization"), path, Right.MANAGE)
        self._on_token(request)
        operation = operations.get(request.method)
        if operation is None:
            allowed = ", ".join(operations)
            raise RequestError(405, f"The method must be one of {allowed}.", headers={"Allow": allowed})
        document = atom.Document(address_of(request), self._registry.name, self._clock(), self._message_size)
        return await operation(_Call(request, document, target))

    def _route(self, path: str) -> tuple[dict[str, str], dict[str, _Operation]]:
        for pattern, operations in self._routes:
            match = pattern.fullmatch(path)
            if match:
                return match.groupdict(), operations
        raise NoSuchEntityError(path)

    def _error_response(self, request: web.BaseRequest, error: RequestError) -> web.Response:
        tracking_id = uuid.uuid4()
        if _log.isEnabledFor(logging.INFO):
            client = self._describe_policies(request.headers.get("Authorization"), request.path.strip("/"))
            operation = f"{request.method} {request.rel_url.raw_path!r}{client}"
            cause = f"{error.status} {error.detail!r}"
            _log.info("%s refused %s: %s, tracking id %s", self._registry.name, operation, cause, tracking_id)
        detail = f"{error.detail} TrackingId:{tracking_id}, Timestamp:{format_time(self._clock())}"
        headers = {"Content-Type": "application/xml; charset=utf-8", **error.headers}
        return web.Response(body=atom.error(error.status, detail), status=error.status, headers=headers)

    async def _get_namespace(self, call: _Call) -> web.Response:
        return _entry(call.document.namespace_info(self._registry.created_at, self._tier))

    async def _list_queues(self, call: _Call) -> web.Response:
        return _page(call, "Queues", "$Resources/queues", self._registry.queues())

    async def _list_topics(self, call: _Call) -> web.Response:
        return _page(call, "Topics", "$Resources/topics", self._registry.topics())

    async def _list_subscriptions(self, call: _Call) -> web.Response:
        topic = self._topic(call.target["topic"])
        subscriptions = [topic.subscriptions[name] for name in sorted(topic.subscriptions)]
        path = f"{topic.description.path}/{SUBSCRIPTIONS_SEGMENT}"
        return _page(call, SUBSCRIPTIONS_SEGMENT, path, subscriptions)

    async def _get(self, call: _Call) -> web.Response:
        path = call.target["path"]
        view = self._registry.find(path)
        return _feed(call.document.not_found(path)) if view is None else _entity_response(call, view)

    async def _put(self, call: _Call) -> web.Response:
        path = call.target["path"]
        element = atom.description_in(await body_of(call.request))
        kind = atom.kind_of(element)
        if kind not in _BASES:
            raise RequestError(400, f"SubCode=40000. Expected one of {', '.join(_BASES)}, not {kind}.")
        base, view = _BASES[kind](path), self._registry.find(path)
        if not is_update(call.request):
            if view is not None:
                raise EntityExistsError(view.description.path)
            self._check_room_for_entity()
            description = self._stored(call, base, None, element)
            return _entity_response(call, await self._registry.create(description), 201)
        if view is None:
            raise NoSuchEntityError(path)
        check_version(call.request, view.updated_at)
        before = view.description
        if before.KIND != base.KIND:
            raise RequestError(400, f"SubCode=40000. '{path}' is a {before.KIND}, not a {base.KIND}.")
        description = self._stored(call, replace(base, path=before.path), before, element)
        return _entity_response(call, await self._registry.update(description))

    async def _delete(self, call: _Call) -> web.Response:
        view = self._registry.find(call.target["path"])
        if view is not None:
            check_version(call.request, view.updated_at)
        await self._registry.delete(call.target["path"])
        return web.Response()

    async def _get_subscription(self, call: _Call) -> web.Response:
        return _entity_response(call, self._subscription(call.target["topic"], call.target["name"]))

    async def _put_subscription(self, call: _Call) -> web.Response:
        element = atom.description_in(await body_of(call.request))
        topic, name = self._topic(call.target["topic"]), call.target["name"]
        if atom.kind_of(element) != "SubscriptionDescription":
            raise RequestError(400, f"SubCode=40000. Expected SubscriptionDescription, not {atom.kind_of(element)}.")
        if not is_update(call.request):
            base = SubscriptionDescription(topic.description.path, name)
            if name.lower() in topic.subscriptions:
                raise EntityExistsError(base.path)
            if len(topic.subscriptions) >= MAX_SUBSCRIPTIONS_PER_TOPIC:
                raise RequestError(403, f"A topic can have at most {MAX_SUBSCRIPTIONS_PER_TOPIC} subscriptions.")
            first = atom.default_rule_in(element)
            rule = RuleDescription(created_at=self._clock()) if first is None else read_rule(first, None, self._clock())
            description = self._read(call, replace(base, rules=(rule,)), None, element)
            self._check(call, None, description)
            return _entity_response(call, await self._registry.create_subscription(description), 201)
        view = self._subscription(topic.description.path, name)
        check_version(call.request, view.updated_at)
        before = view.description
        base = SubscriptionDescription(before.topic, before.name, rules=before.rules)
        description = self._read(call, base, before, element)
        self._check(call, before, description)
        return _entity_response(call, await self._registry.update_subscription(description))

    async def _delete_subscription(self, call: _Call) -> web.Response:
        check_version(call.request, self._subscription(call.target["topic"], call.target["name"]).updated_at)
        await self._registry.delete_subscription(call.target["topic"], call.target["name"])
        return web.Response()

    # ---- rules ----

    async def _list_rules(self, call: _Call) -> web.Response:
        owner = self._subscription(call.target["topic"], call.target["name"]).description
        rules = sorted(owner.rules, key=lambda rule: rule.name)
        if _FILTER in call.request.query:
            raise RequestError(400, f"SubCode=40000. The query option {_FILTER} is not supported for rules.")
        shown, page = _page_of(call, rules)
        return _feed(call.document.rules(owner.path, shown, page))

    async def _get_rule(self, call: _Call) -> web.Response:
        owner, rule = self._rule(call)
        if rule is None:
            raise NoSuchEntityError(f"{owner.path}/Rules/{call.target['rule']}")
        return _entry(call.document.rule(owner.path, rule))

    async def _put_rule(self, call: _Call) -> web.Response:
        element = atom.description_in(await body_of(call.request))
        if atom.kind_of(element) != "RuleDescription":
            raise RequestError(400, f"SubCode=40000. Expected RuleDescription, not {atom.kind_of(element)}.")
        owner, before = self._rule(call)
        path = f"{owner.path}/Rules/{call.target['rule']}"
        if is_update(call.request) and before is None:
            raise NoSuchEntityError(path)
        if not is_update(call.request) and before is not None:
            raise EntityExistsError(path)
        self._check_owner_version(call)
        rule = read_rule(element, call.target["rule"], self._clock() if before is None else before.created_at)
        others = tuple(other for other in owner.rules if other is not before)
        await self._replace_rules(owner, (*others, rule))
        return _entry(call.document.rule(owner.path, rule), 200 if before else 201)

    async def _delete_rule(self, call: _Call) -> web.Response:
        owner, rule = self._rule(call)
        if rule is None:
            raise NoSuchEntityError(f"{owner.path}/Rules/{call.target['rule']}")
        self._check_owner_version(call)
        await self._replace_rules(owner, tuple(other for other in owner.rules if other is not rule))
        return web.Response()

    def _check_owner_version(self, call: _Call) -> None:
        """Check the version of the rule's subscription: rules have none of their own."""
        check_version(call.request, self._subscription(call.target["topic"], call.target["name"]).updated_at)

    def _rule(self, call: _Call) -> tuple[SubscriptionDescription, RuleDescription | None]:
        owner = self._subscription(call.target["topic"], call.target["name"]).description
        name = call.target["rule"].lower()
        return owner, next((rule for rule in owner.rules if rule.name.lower() == name), None)

    async def _replace_rules(self, owner: SubscriptionDescription, rules: tuple[RuleDescription, ...]) -> None:
        description = replace(owner, rules=rules)
        description.validate(self._tier)
        await self._registry.update_subscription(description)

    # ---- finding and checking ----

    def _topic(self, path: str) -> TopicView:
        view = self._registry.find(path)
        topic = as_topic(view) if view else None
        if topic is None:
            raise NoSuchEntityError(path)
        return topic

    def _subscription(self, topic: str, name: str) -> SubscriptionView:
        view = self._topic(topic).subscriptions.get(name.lower())
        if view is None:
            raise NoSuchEntityError(SubscriptionDescription(topic, name).path)
        return view

    def _check_room_for_entity(self) -> None:
        if self._registry.entity_count >= MAX_ENTITIES:
            raise RequestError(403, f"A namespace can have at most {MAX_ENTITIES} queues and topics.")

    def _stored(
        self,
        call: _Call,
        base: QueueDescription | TopicDescription,
        before: QueueDescription | TopicDescription | None,
        element: ET.Element,
    ) -> QueueDescription | TopicDescription:
        """The requested queue or topic, as the service would store it."""
        description = self._read(call, base, before, element)
        if description.max_message_size_in_kilobytes == self._message_size:
            # A client that sends back the namespace's limit does not set one of its own.
            description = replace(description, max_message_size_in_kilobytes=None)
        self._check(call, before, description)
        description = with_size_of_partitions(description, self._tier)
        return with_rule_times(description, before, self._clock())

    def _read(self, call: _Call, base: _Description, before: _Description | None, element: ET.Element) -> _Description:
        """The requested entity.

        A property missing from the request gets its default, or its previous value if it cannot be changed.
        """
        fixed = {name: getattr(before, name) for name in before.FIXED} if before else {}
        return read_properties(element, replace(base, **fixed), call.document.address)

    def _check(self, call: _Call, before: AnyDescription | None, description: AnyDescription) -> None:
        description.validate(self._tier)
        if before:
            check_change(before, description)
        self._check_forwarding(call.request, before, description)

    def _check_forwarding(
        self, request: web.BaseRequest, before: AnyDescription | None, description: AnyDescription
    ) -> None:
        for name, header in _FORWARD_TOKENS.items():
            target = getattr(description, name, None)
            if target is None or target == getattr(before, name, None):
                continue
            token = request.headers.get(header) or request.headers.get("Authorization")
            self._registry.authorize(token, target, Right.SEND)
            if self._registry.find(target) is None:
                detail = f"The auto forwarding destination entity '{target}' does not exist."
                raise RequestError(400, f"SubCode=40400. {detail}")


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(path, re.IGNORECASE | re.DOTALL)


def _page(call: _Call, title: str, path: str, views: Sequence[atom.AnyView]) -> web.Response:
    if _FILTER in call.request.query:
        is_shown = parse_filter(call.request.query[_FILTER])
        views = [view for view in views if is_shown(view)]
    shown, page = _page_of(call, views)
    return _feed(call.document.listing(title, path, shown, page))


def _page_of(call: _Call, listed: Sequence[_Listed]) -> tuple[Sequence[_Listed], atom.Page]:
    """The requested page of a list, and its position."""
    skip, top = page_of(call.request)
    # Without `top > 0`, an empty page would link to itself.
    has_more = top > 0 and len(listed) > skip + top
    return listed[skip : skip + top], atom.Page(skip, top, has_more, call.request.query.get(_FILTER))


def _entity_response(call: _Call, view: atom.AnyView, status: int = 200) -> web.Response:
    response = _entry(call.document.entity(view), status)
    response.headers["ETag"] = etag_of(view.updated_at)
    return response


def _entry(body: bytes, status: int = 200) -> web.Response:
    headers = {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"}
    return web.Response(body=body, status=status, headers=headers)


def _feed(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": "application/atom+xml;type=feed;charset=utf-8"})
