"""Names, paths and the backlog queues, as the administration API has them."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from twinbus.aio import PairedServiceBusClient
from twinbus.pairing.administration import FOR_EVER
from twinbus.pairing.backlog import MAX_DELIVERY_COUNT, refused_properties, unexpected_properties
from twinbus.pairing.events import BacklogWarning, Event
from twinbus.pairing.naming import backlog_path
from twinbus.pairing.options import SendAvailabilityOptions

from .checks import Seen, check
from .drill import Drill, Site
from .messages import encoded

# What a backlog queue is made with, in the words of the API.
BACKLOG = {
    "MaxSizeInMegabytes": "5120",
    "MaxDeliveryCount": "2147483647",
    "DefaultMessageTimeToLive": FOR_EVER,
    "AutoDeleteOnIdle": FOR_EVER,
    "LockDuration": "PT1M",
    "DeadLetteringOnMessageExpiration": "true",
    "EnableBatchedOperations": "true",
}
# When it was last changed or used, and how full it is: not what a queue is made with.
_RUNTIME = ("AccessedAt", "UpdatedAt", "SizeInBytes", "MessageCount", "CountDetails")


async def described_queue(site: Site, path: str) -> dict[str, str]:
    """The properties of a queue as they were on the wire: the SDK rounds durations."""
    elements: list[Element] = []

    def kept(_: Any, element: Element, __: Any) -> Element:
        elements.append(element)
        return element

    await site.admin.get_queue(path, cls=kept)
    found: dict[str, str] = {}
    for element in elements[0].iter():
        name = element.tag.rpartition("}")[2]
        if element.text and not len(element):
            found.setdefault(name, element.text.strip())
    return found


@check("the namespace's own name", "the first label of its host, and a name that a backlog queue's path can begin with")
async def own_name(drill: Drill, seen: Seen) -> None:
    for role, site in zip(("primary", "secondary"), drill.sites, strict=True):
        properties = await site.admin.get_namespace_properties()
        expected = site.namespace.name
        if expected is not None:
            seen.value(f"{role}:", properties.name, expected)
        path = backlog_path(properties.name, 0)
        seen.that(path.startswith(properties.name), f"{role} {properties.messaging_sku}, its backlog is {path}")


@check(
    "backlog queues are made as specified",
    "every property that was asked for comes back to the letter, the rest are defaults",
)
async def backlog_properties(drill: Drill, seen: Seen) -> None:
    name, site = f"{drill.prefix}-made", drill.at_secondary
    paths = site.backlog(name, 2)
    async with PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, name, 2)):
        pass
    for path in paths:
        found = await described_queue(site, path)
        for one, expected in BACKLOG.items():
            if found.get(one) != expected:
                seen.value(f"{path} {one}", found.get(one), expected)
        queue = await site.admin.get_queue(path)
        others = [(one, value) for one, value, _ in (*refused_properties(queue), *unexpected_properties(queue))]
        if others:
            seen.value(f"{path} also", others, [])
    seen.that(not seen.is_different, f"{len(paths)} queues as asked for")


@check("an existing backlog queue is left alone", "used as it is, with a warning; a second start changes nothing")
async def existing_queue(drill: Drill, seen: Seen) -> None:
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
    before = await described_queue(site, paths[0])
    events: list[Event] = []
    for _ in range(2):
        client = PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, name, 2))
        client.on_event(events.append)
        async with client:
            listed = await client.list_backlog()
    after = await described_queue(site, paths[0])
    changed = [one for one in before.keys() | after.keys() if before.get(one) != after.get(one)]
    seen.value("changed", sorted(one for one in changed if one not in _RUNTIME), [])
    about = {event.message.split()[0] for event in events if isinstance(event, BacklogWarning)}
    seen.value("warned of", sorted(about), ["dead_lettering_on_message_expiration", "max_size_in_megabytes"])
    seen.value("queues listed", [queue.index for queue in listed], [0, 1])


@check("a path with slashes, in any case", "both clients reach the same queue by every spelling")
async def paths(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("slashes/b-c/D.e_f")
    async with site.exchange(path) as exchange:
        await exchange.send(encoded(b"1"))
        exchange.path = path.upper()
        listener = await exchange.listen(credit=2)
        seen.value("ours, in capitals:", (await listener.take_raw()).body, b"1")
    async with site.client.get_queue_receiver(path.title(), max_wait_time=site.times.answer) as receiver:
        async with site.exchange(path) as exchange:
            await exchange.send(encoded(b"2"))
        received = await receiver.receive_messages()
        seen.value("the SDK, in mixed case:", [b"".join(one.body) for one in received], [b"2"])
        for one in received:
            await receiver.complete_message(one)


def options_for(drill: Drill, name: str, count: int = 1, **more: Any) -> SendAvailabilityOptions:
    """A pairing of the drill has a backlog of its own: no syphon at work in these namespaces knows of it."""
    given: dict[str, Any] = {"primary_name": name, "backlog_queue_count": count, "strict": True, **more}
    return SendAvailabilityOptions(attempt_timeout=drill.times.answer, **given)


CHECKS = (own_name, backlog_properties, existing_queue, paths)
