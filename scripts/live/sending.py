"""Duplicates, schedules and sequence numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage

from .checks import Seen, check
from .drill import Drill
from .messages import SCHEDULED, encoded

COUNT = 20
SOON = timedelta(seconds=5)
PARTITION_BITS = 48  # above these, the number of the partition


@check(
    "duplicate detection removes the same id sent again",
    "both sends are accepted, one message arrives; also if the second comes by another link or client",
)
async def duplicates(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("duplicates", requires_duplicate_detection=True)
    for _ in range(2):
        async with site.client.get_queue_sender(path) as sender:
            await sender.send_messages(ServiceBusMessage(b"x", message_id="same"))
    async with site.exchange(path) as exchange:
        await exchange.send(encoded(message_id="same"))
        await exchange.send(encoded(message_id="other"))
        seen.note("all accepted")
        seen.value("arrived", [one.message_id for one in await exchange.peek()], ["same", "other"])


@check(
    "schedule and cancel",
    "positive numbers, which a peek shows as scheduled; a cancelled one is gone, the other comes at its time",
)
async def schedules(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("schedule")
    due = datetime.now(UTC) + SOON
    async with site.client.get_queue_sender(path) as sender, site.exchange(path) as exchange:
        first, second = await sender.schedule_messages(
            [ServiceBusMessage(b"x", message_id="cancelled"), ServiceBusMessage(b"x", message_id="kept")], due
        )
        seen.that(0 < first < second, f"numbers {first} and {second}")
        peeked = {one.message_id: (one.state, one.sequence_number) for one in await exchange.peek()}
        seen.value("peek shows", peeked, {"cancelled": (SCHEDULED, first), "kept": (SCHEDULED, second)})
        await sender.cancel_scheduled_messages(first)
        listener = await exchange.listen(credit=2)
        raw = await listener.take_raw()
        seen.value("received", raw.message_id, "kept")
        late = raw.annotations["x-opt-enqueued-time"] - due.timestamp() * 1000
        seen.that(late >= -1, f"enqueued {late:.0f} ms after its time")
        seen.note(f"it then has number {raw.sequence_number}")
        seen.value("left", len(await exchange.peek()), 0)


@check("sequence numbers", "positive, rising in the order of the sends, below 2^48 in a queue without partitions")
async def sequence_numbers(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("numbers")) as exchange:
        for number in range(COUNT):
            await exchange.send(encoded(message_id=str(number)))
        peeked = await exchange.peek()
        numbers = [one.sequence_number for one in peeked]
        seen.value("messages peeked", [one.message_id for one in peeked] == [str(one) for one in range(COUNT)], True)
        seen.that(numbers == sorted(set(numbers)) and numbers[0] > 0, f"{numbers[0]} to {numbers[-1]}, rising")
        seen.that(numbers[-1] >> PARTITION_BITS == 0, "no partition in them")
        management = await exchange.management()
        page = await management.peek_messages(numbers[5], 3)
        seen.value("three from the sixth on", len(page), 3)


CHECKS = (duplicates, schedules, sequence_numbers)
