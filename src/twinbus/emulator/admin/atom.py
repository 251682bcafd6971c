"""Reads and writes the Atom documents of the administration API: entities, lists, the namespace, errors.

Everything here is pure. `Document` holds what all answers to one request share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from xml.etree import ElementTree as ET

from twinbus.emulator.admin import markup
from twinbus.emulator.admin.address import Address
from twinbus.emulator.admin.properties import (
    ORDER,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    element,
    format_time,
    write_properties,
)
from twinbus.emulator.admin.registry import QueueView, SubscriptionView, TopicView, as_topic
from twinbus.emulator.admin.rules import write_rule
from twinbus.servicebus.entity_descriptions import Counts, SubscriptionDescription, Tier
from twinbus.servicebus.property_bounds import NOT_XML
from twinbus.servicebus.rule_descriptions import FilterKind, RuleDescription

ATOM = "http://www.w3.org/2005/Atom"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_ATOM = f"{{{ATOM}}}"
_SB = f"{{{SERVICE_BUS}}}"

# The API version that introduced an element; clients of older versions do not know it.
_SINCE = {
    "MaxMessageSizeInKilobytes": "2021-05",
    "SqlFilterCount": "2024-05",
    "CorrelationFilterCount": "2024-05",
}

AnyView = QueueView | TopicView | SubscriptionView


def description_in(body: bytes) -> ET.Element:
    """The one description that a request's entry contains, such as `QueueDescription`.

    Raises:
        InvalidMarkupError: the body is not XML, or not an entry with one description.
    """
    root = markup.parse(body)
    content = root.find(f"{_ATOM}content") if root.tag == f"{_ATOM}entry" else None
    if content is None or len(content) != 1 or not content[0].tag.startswith(_SB):
        raise markup.InvalidMarkupError(
            f"The request body must be an entry of {ATOM} whose content is one description of {SERVICE_BUS}."
        )
    return content[0]


def kind_of(description: ET.Element) -> str:
    """The name of a description's element, without its namespace."""
    return description.tag.removeprefix(_SB)


def default_rule_in(description: ET.Element) -> ET.Element | None:
    """The rule that a new subscription starts with, if the request names one."""
    return description.find(f"{_SB}DefaultRuleDescription")


class Page(NamedTuple):
    """The position of a page in a list, and the filter of the request."""

    skip: int
    top: int
    has_more: bool
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """Writes the answers to one request.

    `message_size` is the namespace's limit in kilobytes, shown for entities without one of their own.
    """

    address: Address
    namespace: str
    now: float
    message_size: int

    def entity(self, view: AnyView) -> bytes:
        """The entry of one queue, topic or subscription."""
        entry = self._entry(view)
        entry.set("xmlns", ATOM)
        return markup.serialize(entry)

    def listing(self, title: str, path: str, views: Sequence[AnyView], page: Page) -> bytes:
        """A page of a list."""
        return self._page(title, path, [self._entry(view) for view in views], page)

    def _page(self, title: str, path: str, entries: list[ET.Element], page: Page) -> bytes:
        """The link to the next page must come second: the SDK looks for it there."""
        options = {} if page.filter is None else {"filter": page.filter}
        feed = self._feed(title, self.address.url(path, skip=page.skip, top=page.top, **options))
        if page.has_more:
            following = self.address.url(path, skip=page.skip + page.top, top=page.top, **options)
            feed.append(element("link", rel="next", href=following))
        feed.extend(entries)
        return markup.serialize(feed)

    def rule(self, path: str, rule: RuleDescription) -> bytes:
        """The entry of a rule of the subscription at `path`."""
        entry = self._rule_entry(path, rule)
        entry.set("xmlns", ATOM)
        return markup.serialize(entry)

    def rules(self, path: str, rules: Sequence[RuleDescription], page: Page) -> bytes:
        """A page of the rules of the subscription at `path`."""
        entries = [self._rule_entry(path, rule) for rule in rules]
        return self._page("Rules", f"{path}/Rules", entries, page)

    def _rule_entry(self, path: str, rule: RuleDescription) -> ET.Element:
        url = self.address.url(f"{path}/Rules/{rule.name}")
        return self._wrap(url, rule.name, rule.created_at, rule.created_at, write_rule(rule))

    def not_found(self, path: str) -> bytes:
        """The service's answer for a path without a queue or topic: an empty list."""
        return markup.serialize(self._feed("Publicly Listed Services", self.address.url(path)))

    def namespace_info(self, created_at: float, tier: Tier) -> bytes:
        """The entry of the namespace itself."""
        info = element("NamespaceInfo", xmlns=SERVICE_BUS)
        info.set("xmlns:i", SCHEMA_INSTANCE)
        info.extend(
            [
                element("CreatedTime", format_time(created_at)),
                element("MessagingSKU", tier.value),
                element("ModifiedTime", format_time(created_at)),
                element("Name", self.namespace),
                element("NamespaceType", "Messaging"),
            ]
        )
        if tier is Tier.PREMIUM:
            info.insert(2, element("MessagingUnits", "1"))
        entry = self._wrap(self.address.url("$namespaceinfo"), self.namespace, created_at, self.now, info)
        entry.set("xmlns", ATOM)
        return markup.serialize(entry)

    def _feed(self, title: str, url: str) -> ET.Element:
        feed = element("feed", xmlns=ATOM)
        feed.append(element("title", title, type="text"))
        feed.append(element("id", url))
        feed.append(element("updated", format_time(self.now)))
        feed.append(element("link", rel="self", href=url))
        return feed

    def _entry(self, view: AnyView) -> ET.Element:
        description = view.description
        title = description.name if isinstance(description, SubscriptionDescription) else description.path
        url = self.address.url(description.path)
        return self._wrap(url, title, view.created_at, view.updated_at, self._described(view))

    def _wrap(self, url: str, title: str, published: float, updated: float, described: ET.Element) -> ET.Element:
        author = element("author")
        author.append(element("name", self.namespace))
        content = element("content", type="application/xml")
        content.append(described)
        entry = element("entry")
        entry.extend(
            [
                element("id", url),
                element("title", title, type="text"),
                element("published", format_time(published)),
                element("updated", format_time(updated)),
                author,
                element("link", rel="self", href=url),
                content,
            ]
        )
        return entry

    def _described(self, view: AnyView) -> ET.Element:
        description = view.description
        if not isinstance(description, SubscriptionDescription):
            size = description.max_message_size_in_kilobytes or self.message_size
            description = replace(description, max_message_size_in_kilobytes=size)
        elements = write_properties(description, self.address) | _runtime(view)
        described = element(f"{description.KIND}Description", xmlns=SERVICE_BUS)
        described.set("xmlns:i", SCHEMA_INSTANCE)
        for name in ORDER[type(description)]:
            if name in elements and _SINCE.get(name, "") <= self.address.api_version:
                described.append(elements[name])
        return described


def error(status: int, detail: str) -> bytes:
    """The body of an error. `detail` may quote the client, so characters that XML does not allow are replaced."""
    root = element("Error")
    root.append(element("Code", str(status)))
    root.append(element("Detail", NOT_XML.sub("\ufffd", detail)))
    return markup.serialize(root)


def _runtime(view: AnyView) -> dict[str, ET.Element]:
    """The elements with an entity's counts, sizes and times, by name."""
    values = {
        "SizeInBytes": str(view.size_in_bytes),
        "MessageCount": str(view.counts.total),
        "CreatedAt": format_time(view.created_at),
        "UpdatedAt": format_time(view.updated_at),
        "AccessedAt": format_time(view.accessed_at),
    }
    topic = as_topic(view)
    if topic is not None:
        rules = [rule for subscription in topic.subscriptions.values() for rule in subscription.description.rules]
        correlations = sum(1 for rule in rules if rule.kind is FilterKind.CORRELATION)
        values |= {
            "SubscriptionCount": str(len(topic.subscriptions)),
            "SqlFilterCount": str(len(rules) - correlations),
            "CorrelationFilterCount": str(correlations),
        }
    elements = {name: element(name, text) for name, text in values.items()}
    elements["CountDetails"] = _count_details(view.counts)
    return elements


def _count_details(counts: Counts) -> ET.Element:
    # Other official clients require the prefix's declaration on this element.
    details = element("CountDetails", **{"xmlns:d2p1": _COUNTS})
    for name, count in (
        ("ActiveMessageCount", counts.active),
        ("DeadLetterMessageCount", counts.dead_letter),
        ("ScheduledMessageCount", counts.scheduled),
        ("TransferMessageCount", counts.transfer),
        ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
    ):
        details.append(element(f"d2p1:{name}", str(count)))
    return details
