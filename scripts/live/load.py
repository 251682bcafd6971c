"""Checks throttling with `THROTTLE=1`. A Standard namespace throttles all its clients meanwhile."""

from __future__ import annotations

import asyncio
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.syphon import AmqpError, Sender

from .checks import Findings, check, describe
from .drill import Drill, Times
from .messages import encode_message

LINKS = 4


class Load:
    """Sends as fast as credit allows, until the service is busy or a limit is reached."""

    def __init__(self, times: Times) -> None:
        self._deadline = time.monotonic() + times.load
        self._left = times.load_messages
        self.accepted = 0
        self.refused: list[AmqpError] = []
        self.is_busy = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.is_busy.is_set() or self._left <= 0 or time.monotonic() >= self._deadline

    async def run(self, sender: Sender, seconds: float) -> None:
        while not self.is_over:
            await sender.wait_for_credit(seconds)
            for _ in range(min(sender.available, 100)):
                self._left -= 1
                sender.send(encode_message(), self._outcome)
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
    "on Standard com.microsoft:server-busy for single messages, links stay open; SDK: ServiceBusServerBusyError",
    lambda times: times.load + times.check,
)
async def server_busy(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("load", default_message_time_to_live="PT5M")
    async with site.connect() as connection, site.client.get_queue_sender(path) as sdk_sender:
        senders = [await connection.attach_sender(path) for _ in range(LINKS)]
        load, started = Load(site.times), time.monotonic()
        await asyncio.gather(*(load.run(sender, site.times.answer) for sender in senders))
        rate = load.accepted / max(time.monotonic() - started, 1e-3)
        findings.note(f"{load.accepted} accepted, {rate:.0f} a second")
        conditions = sorted({error.condition for error in load.refused})
        findings.expect_equal(f"{len(load.refused)} refused with", conditions, ["com.microsoft:server-busy"])
        findings.expect(all(sender.error is None for sender in senders), "the links are open")
        try:
            await sdk_sender.send_messages([ServiceBusMessage(b"x") for _ in range(100)])
            findings.note("the SDK's send was accepted meanwhile")
        except ServiceBusError as error:
            findings.expect(cause_of(error) is Cause.BUSY, f"SDK: {describe(error)}")


CHECKS = (server_busy,)
