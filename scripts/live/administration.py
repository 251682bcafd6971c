"""Checks names, paths and backlog queues through the administration API."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from twinbus.aio import PairedServiceBusClient
from twinbus.pairing.backlog.administration import FOR_EVER
from twinbus.pairing.backlog.provisioning import MAX_DELIVERY_COUNT, refused_properties, unexpected_properties
from twinbus.pairing.events import BacklogWarning, Event
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.servicebus.entity_paths import backlog_path

from .checks import Findings, check
from .drill import Drill, Site
from .messages import encode_message

# Properties of a new backlog queue, by their names in the API.
BACKLOG = {
    "MaxSizeInMegabytes": "5120",
    "MaxDeliveryCount": "2147483647",
    "DefaultMessageTimeToLive": FOR_EVER,
    "AutoDeleteOnIdle": FOR_EVER,
    "LockDuration": "PT1M",
    "DeadLetteringOnMessageExpiration": "true",
    "EnableBatchedOperations": "true",
}
# Runtime values, which change with use.
_RUNTIME = ("AccessedAt", "UpdatedAt", "SizeInBytes", "MessageCount", "CountDetails")


async def queue_properties(site: Site, path: str) -> dict[str, str]:
    """The properties of a queue as sent by the service, because the SDK rounds durations."""
    elements: list[Element] = []

    def keep(_: Any, element: Element, __: Any) -> Element:
        elements.append(element)
        return element

    await site.admin.get_queue(path, cls=keep)
    properties: dict[str, str] = {}
    for element in elements[0].iter():
        name = element.tag.rpartition("}")[2]
        if element.text and not len(element):
            properties.setdefault(name, element.text.strip())
    return properties


@check("the namespace's own name", "the first label of its host, and a name that a backlog queue's path can begin with")
async def own_name(drill: Drill, findings: Findings) -> None:
    for role, site in zip(("primary", "secondary"), drill.sites, strict=True):
        properties = await site.admin.get_namespace_properties()
        expected = site.namespace.name
        if expected is not None:
            findings.expect_equal(f"{role}:", properties.name, expected)
        path = backlog_path(properties.name, 0)
        findings.expect(path.startswith(properties.name), f"{role} {properties.messaging_sku}, its backlog is {path}")


@check(
    "backlog queues are created as specified",
    "every requested property is returned unchanged, the rest are defaults",
)
async def backlog_properties(drill: Drill, findings: Findings) -> None:
    primary_name, site = f"{drill.prefix}-made", drill.at_secondary
    paths = site.backlog(primary_name, 2)
    async with PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, primary_name, 2)):
        pass
    for path in paths:
        properties = await queue_properties(site, path)
        for name, expected in BACKLOG.items():
            if properties.get(name) != expected:
                findings.expect_equal(f"{path} {name}", properties.get(name), expected)
        queue = await site.admin.get_queue(path)
        others = [(name, value) for name, value, _ in (*refused_properties(queue), *unexpected_properties(queue))]
        if others:
            findings.expect_equal(f"{path} also", others, [])
    findings.expect(not findings.has_difference, f"{len(paths)} queues as requested")


@check("an existing backlog queue is left alone", "used with a warning, unchanged even after a second start")
async def existing_queue(drill: Drill, findings: Findings) -> None:
    name, site = f"{drill.prefix}-kept", drill.at_secondary
    paths = site.backlog(name, 2)
    await site.admin.create_queue(
        paths[0],
        default_message_time_to_live=FOR_EVER,
        auto_delete_on_idle=FOR_EVER,
        max_delivery_count=MAX_DELIVERY_COUNT,
        max_size_in_megabytes=1024,
        user_metadata="the owner's",
    )
    before = await queue_properties(site, paths[0])
    events: list[Event] = []
    for _ in range(2):
        client = PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, name, 2))
        client.on_event(events.append)
        async with client:
            listed = await client.list_backlog()
    after = await queue_properties(site, paths[0])
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    findings.expect_equal("changed", sorted(name for name in changed if name not in _RUNTIME), [])
    warned = {event.message.split()[0] for event in events if isinstance(event, BacklogWarning)}
    findings.expect_equal(
        "warned of", sorted(warned), ["dead_lettering_on_message_expiration", "max_size_in_megabytes"]
    )
    findings.expect_equal("queues listed", [queue.index for queue in listed], [0, 1])


@check("a path with slashes, in any case", "both clients reach the same queue by every spelling")
async def paths(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("slashes/b-c/D.e_f")
    async with site.exchange(path) as exchange:
        await exchange.send(encode_message(b"1"))
        exchange.path = path.upper()
        listener = await exchange.listen(credit=2)
        findings.expect_equal("ours, in capitals:", (await listener.take_raw()).body, b"1")
    async with site.client.get_queue_receiver(path.title(), max_wait_time=site.times.answer) as receiver:
        async with site.exchange(path) as exchange:
            await exchange.send(encode_message(b"2"))
        received = await receiver.receive_messages()
        findings.expect_equal("the SDK, in mixed case:", [b"".join(message.body) for message in received], [b"2"])
        for message in received:
            await receiver.complete_message(message)


def options_for(drill: Drill, name: str, count: int = 1, **more: Any) -> SendAvailabilityOptions:
    """Options with a backlog of the drill's own, which no other syphon in these namespaces drains."""
    values: dict[str, Any] = {"primary_name": name, "backlog_queue_count": count, "strict": True, **more}
    return SendAvailabilityOptions(attempt_timeout=drill.times.answer, **values)


CHECKS = (own_name, backlog_properties, existing_queue, paths)
