"""More than the service takes: `THROTTLE=1`. A Standard namespace throttles everybody in it meanwhile."""

from __future__ import annotations

import asyncio
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.pairing.policy import Cause, cause_of
from twinbus.syphon import AmqpError, Sender

from .checks import Seen, check, described
from .drill import Drill, Times
from .messages import encoded

LINKS = 4


class Load:
    """Sends as fast as there is room, until it is told to stop."""

    def __init__(self, times: Times) -> None:
        self._ends = time.monotonic() + times.load
        self._left = times.load_messages
        self.accepted = 0
        self.refused: list[AmqpError] = []
        self.is_busy = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.is_busy.is_set() or self._left <= 0 or time.monotonic() >= self._ends

    async def run(self, sender: Sender, seconds: float) -> None:
        while not self.is_over:
            await sender.wait_for_room(seconds)
            for _ in range(min(sender.room, 100)):
                self._left -= 1
                sender.send(encoded(), self._outcome)
            await asyncio.sleep(0)
        async with asyncio.timeout(seconds):
            while sender.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def _outcome(self, error: AmqpError | None) -> None:
        if error is None:
            self.accepted += 1
            return
        self.refused.append(error)
        self.is_busy.set()


@check(
    "too many messages a second",
    "on Standard com.microsoft:server-busy for single messages, and the links stay; SDK: ServiceBusServerBusyError",
    lambda times: times.load + times.check,
)
async def server_busy(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("load", default_message_time_to_live="PT5M")
    async with site.connect() as connection, site.client.get_queue_sender(path) as sdk_sender:
        senders = [await connection.attach_sender(path) for _ in range(LINKS)]
        load, started = Load(site.times), time.monotonic()
        await asyncio.gather(*(load.run(sender, site.times.answer) for sender in senders))
        rate = load.accepted / max(time.monotonic() - started, 1e-3)
        seen.note(f"{load.accepted} accepted, {rate:.0f} a second")
        conditions = sorted({error.condition for error in load.refused})
        seen.value(f"{len(load.refused)} refused with", conditions, ["com.microsoft:server-busy"])
        seen.that(all(sender.error is None for sender in senders), "the links are there")
        try:
            await sdk_sender.send_messages([ServiceBusMessage(b"x") for _ in range(100)])
            seen.note("the SDK's send passed meanwhile")
        except ServiceBusError as error:
            seen.that(cause_of(error) is Cause.BUSY, f"SDK: {described(error)}")


CHECKS = (server_busy,)
