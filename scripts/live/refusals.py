"""How the service refuses: what the SDK raises, what we make of it, and what our own client is told."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import AccessRights, AuthorizationRule

from twinbus.pairing.policy import Cause, cause_of
from twinbus.syphon import AmqpError, AuthenticationFailed, LinkDetached, MessageTooLarge

from .checks import Seen, check, condition_of, described
from .drill import Drill, Site
from .messages import encoded

LISTENER = "listener"
PATIENCE = 10  # tries, until a change of an entity is known everywhere


def new_key() -> str:
    """A key as the service's own are."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


async def raised(work: Awaitable[Any]) -> Exception | None:
    """What the SDK or our client raises; anything else is not for here."""
    try:
        await work
    except (ServiceBusError, AmqpError) as error:
        return error
    return None


def sdk_said(seen: Seen, error: Exception | None, kind: type[ServiceBusError], cause: Cause) -> None:
    """The SDK should have raised this class, and the policy should see this cause in it."""
    is_so = error is not None and type(error) is kind and cause_of(error) is cause
    text = "nothing" if error is None else f"{described(error)} ({cause_of(error).value})"
    seen.that(is_so, f"SDK: {text}")


def we_were_told(seen: Seen, error: Exception | None, kind: type[AmqpError], condition: str) -> None:
    """Our client should have raised this class with this condition."""
    is_so = type(error) is kind and condition_of(error) == condition
    seen.that(is_so, f"ours: {'nothing' if error is None else described(error)}")


async def sdk_send(client: ServiceBusClient, path: str, message: ServiceBusMessage | None = None) -> None:
    async with client.get_queue_sender(path) as sender:
        await sender.send_messages(message or ServiceBusMessage(b"x"))


async def our_send(site: Site, path: str, credential: Any = None) -> None:
    async with site.exchange(path, credential) as exchange:
        await exchange.send()


@check(
    "refused: an unknown entity",
    "SDK: ServiceBusAuthenticationError, status 404, which is 'not found'; ours: AuthenticationFailed amqp:not-found",
)
async def unknown_entity(drill: Drill, seen: Seen) -> None:
    site, path = drill.at_primary, f"{drill.prefix}-unknown"
    sdk_said(seen, await raised(sdk_send(site.client, path)), ServiceBusAuthenticationError, Cause.NOT_FOUND)
    we_were_told(seen, await raised(our_send(site, path)), AuthenticationFailed, "amqp:not-found")


@check(
    "refused: a wrong key",
    "SDK: ServiceBusAuthenticationError, which is 'forbidden'; ours: AuthenticationFailed amqp:unauthorized-access",
)
async def wrong_key(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("wrong-key")
    wrong = AzureNamedKeyCredential(site.named_key[0], new_key())
    async with site.new_client(credential=wrong) as client:
        sdk_said(seen, await raised(sdk_send(client, path)), ServiceBusAuthenticationError, Cause.FORBIDDEN)
    we_were_told(seen, await raised(our_send(site, path, wrong)), AuthenticationFailed, "amqp:unauthorized-access")


@check(
    "refused: a right that is missing",
    "a rule with Listen only may attach a receiver and no sender; SDK: ServiceBusAuthorizationError;"
    " ours: LinkDetached amqp:unauthorized-access",
)
async def missing_right(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    keys = new_key(), new_key()
    site.secrets |= set(keys)
    rule = AuthorizationRule(
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.LISTEN],
        key_name=LISTENER,
        primary_key=keys[0],
        secondary_key=keys[1],
        type="SharedAccessAuthorizationRule",
    )
    path = await site.queue("missing-right", authorization_rules=[rule])
    listener = AzureNamedKeyCredential(LISTENER, keys[0])
    async with site.new_client(credential=listener) as client:
        sdk_said(seen, await raised(sdk_send(client, path)), ServiceBusAuthorizationError, Cause.FORBIDDEN)
    we_were_told(seen, await raised(our_send(site, path, listener)), LinkDetached, "amqp:unauthorized-access")
    async with site.exchange(path, listener) as exchange:
        await exchange.listen()
        seen.note("a receiver was attached")


@check(
    "refused: a message that is too large",
    "both clients know the limit of the link; SDK: MessageSizeExceededError; ours: MessageTooLarge",
)
async def too_large(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("too-large")
    async with site.exchange(path) as exchange:
        limit = (await exchange.sender()).max_message_size
        seen.note(f"the link's limit is {limit} bytes")
        if not limit:
            raise ValueError("the link has no limit")
        error = await raised(exchange.send(encoded(bytes(limit))))
        we_were_told(seen, error, MessageTooLarge, "amqp:link:message-size-exceeded")
    error = await raised(sdk_send(site.client, path, ServiceBusMessage(bytes(limit))))
    sdk_said(seen, error, MessageSizeExceededError, Cause.CALLER)


@check(
    "refused: a disabled entity",
    "Disabled or SendDisabled; SDK: MessagingEntityDisabledError; ours: LinkDetached com.microsoft:entity-disabled",
)
async def disabled(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("disabled")
    for status in ("SendDisabled", "Disabled"):
        queue = await site.admin.get_queue(path)
        queue.status = status
        await site.admin.update_queue(queue)
        seen.note(status)
        for _ in range(PATIENCE):
            error = await raised(sdk_send(site.client, path))
            if error is not None:
                break
            await asyncio.sleep(1)  # the change has not arrived yet
        sdk_said(seen, error, MessagingEntityDisabledError, Cause.DISABLED)
        we_were_told(seen, await raised(our_send(site, path)), LinkDetached, "com.microsoft:entity-disabled")


@check(
    "refused: cancelling a number that is not scheduled",
    "unknown and negative numbers: MessageNotFoundError, and no other message is touched",
)
async def unknown_number(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("cancel-unknown")
    async with site.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage(b"x"))
        for number in (1, 1_000_000, -5):
            error = await raised(sender.cancel_scheduled_messages(number))
            seen.note(f"{number}")
            sdk_said(seen, error, MessageNotFoundError, Cause.CALLER)
    async with site.exchange(path) as exchange:
        seen.value("left", len(await exchange.peek()), 1)


CHECKS = (unknown_entity, wrong_key, missing_right, too_large, disabled, unknown_number)
