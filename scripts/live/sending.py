"""Checks duplicate detection, scheduling and sequence numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusMessage

from .checks import Findings, check
from .drill import Drill
from .messages import SCHEDULED, encode_message

COUNT = 20
SOON = timedelta(seconds=5)
PARTITION_BITS = 48  # the bits above hold the partition number


@check(
    "duplicate detection removes the same id sent again",
    "both sends are accepted, one message arrives; also if the second comes by another link or client",
)
async def duplicates(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("duplicates", requires_duplicate_detection=True)
    for _ in range(2):
        async with site.client.get_queue_sender(path) as sender:
            await sender.send_messages(ServiceBusMessage(b"x", message_id="same"))
    async with site.exchange(path) as exchange:
        await exchange.send(encode_message(message_id="same"))
        await exchange.send(encode_message(message_id="other"))
        findings.note("all accepted")
        findings.expect_equal("arrived", [message.message_id for message in await exchange.peek()], ["same", "other"])


@check(
    "schedule and cancel",
    "positive numbers, which a peek shows as scheduled; a cancelled one is gone, the other arrives on time",
)
async def schedules(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("schedule")
    due = datetime.now(UTC) + SOON
    async with site.client.get_queue_sender(path) as sender, site.exchange(path) as exchange:
        first, second = await sender.schedule_messages(
            [ServiceBusMessage(b"x", message_id="cancelled"), ServiceBusMessage(b"x", message_id="kept")], due
        )
        findings.expect(0 < first < second, f"numbers {first} and {second}")
        peeked = {message.message_id: (message.state, message.sequence_number) for message in await exchange.peek()}
        findings.expect_equal("peek shows", peeked, {"cancelled": (SCHEDULED, first), "kept": (SCHEDULED, second)})
        await sender.cancel_scheduled_messages(first)
        listener = await exchange.listen(credit=2)
        raw = await listener.take_raw()
        findings.expect_equal("received", raw.message_id, "kept")
        late = raw.annotations["x-opt-enqueued-time"] - due.timestamp() * 1000
        findings.expect(late >= -1, f"enqueued {late:.0f} ms after the scheduled time")
        findings.note(f"new sequence number {raw.sequence_number}")
        findings.expect_equal("left", len(await exchange.peek()), 0)


@check("sequence numbers", "positive, rising in the order of the sends, below 2^48 in a queue without partitions")
async def sequence_numbers(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("numbers")) as exchange:
        for number in range(COUNT):
            await exchange.send(encode_message(message_id=str(number)))
        peeked = await exchange.peek()
        numbers = [message.sequence_number for message in peeked]
        findings.expect_equal(
            "messages peeked", [message.message_id for message in peeked] == list(map(str, range(COUNT))), True
        )
        findings.expect(numbers == sorted(set(numbers)) and numbers[0] > 0, f"{numbers[0]} to {numbers[-1]}, rising")
        findings.expect(numbers[-1] >> PARTITION_BITS == 0, "no partition bits")
        management = await exchange.management()
        page = await management.peek_messages(numbers[5], 3)
        findings.expect_equal("three from the sixth on", len(page), 3)


CHECKS = (duplicates, schedules, sequence_numbers)
