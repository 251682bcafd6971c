"""Access policies of an entity, created, listed and given new keys by the administration client."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule
from tests.emulator.contract.bus import Bus
from tests.emulator.wire import async_administration

from twinbus.emulator.auth.security import generate_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


def rule(name: str, rights: list[AccessRights], key: str) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=rights,
        key_name=name,
        primary_key=key,
        secondary_key=generate_key(),
    )


async def send_with(bus: Bus, name: str, key: str) -> None:
    endpoint = f"Endpoint=sb://127.0.0.1:{bus.namespace.port};UseDevelopmentEmulator=true"
    text = f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};EntityPath=guarded"
    async with (
        ServiceBusClient.from_connection_string(text, retry_total=0) as client,
        client.get_queue_sender("guarded") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("allowed"))


async def test_key_of_a_rule_is_valid_until_it_is_replaced(bus: Bus) -> None:
    old, new = generate_key(), generate_key()
    async with async_administration(bus.namespace.connection_string) as admin:
        both = [rule("sender", [AccessRights.SEND], old), rule("reader", [AccessRights.LISTEN], generate_key())]
        queue = await admin.create_queue("guarded", authorization_rules=both)
        assert [rule.key_name for rule in queue.authorization_rules] == ["sender", "reader"]
        await send_with(bus, "sender", old)
        with pytest.raises(ServiceBusError):
            await send_with(bus, "reader", both[1].primary_key)

        queue.authorization_rules[0].primary_key = new
        await admin.update_queue(queue)
        shown = (await admin.get_queue("guarded")).authorization_rules
        assert [rule.primary_key for rule in shown] == [new, both[1].primary_key]
        await send_with(bus, "sender", new)
        with pytest.raises(ServiceBusError):
            await send_with(bus, "sender", old)
        assert bus.broker_queue("guarded").counters.active == 2
