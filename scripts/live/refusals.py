"""Checks the service's refusals as the SDK, the failover policy and our client see them."""

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

from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.syphon import AmqpError, AuthenticationFailedError, LinkDetachedError, MessageTooLargeError

from .checks import Findings, check, condition_of, describe
from .drill import Drill, Site
from .messages import encode_message

LISTENER = "listener"
MAX_ATTEMPTS = 10  # until a change of an entity has taken effect


def new_key() -> str:
    """A random key in the service's format."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


async def raised(work: Awaitable[Any]) -> Exception | None:
    """The error that the SDK or our client raises, or `None`; other exceptions propagate."""
    try:
        await work
    except (ServiceBusError, AmqpError) as error:
        return error
    return None


def expect_sdk_error(findings: Findings, error: Exception | None, kind: type[ServiceBusError], cause: Cause) -> None:
    """Expect an SDK error of this class, which the failover policy classifies as this cause."""
    is_expected = error is not None and type(error) is kind and cause_of(error) is cause
    text = "nothing" if error is None else f"{describe(error)} ({cause_of(error).value})"
    findings.expect(is_expected, f"SDK: {text}")


def expect_client_error(findings: Findings, error: Exception | None, kind: type[AmqpError], condition: str) -> None:
    """Expect an error of our client of this class with this condition."""
    is_expected = type(error) is kind and condition_of(error) == condition
    findings.expect(is_expected, f"ours: {'nothing' if error is None else describe(error)}")


async def sdk_send(client: ServiceBusClient, path: str, message: ServiceBusMessage | None = None) -> None:
    async with client.get_queue_sender(path) as sender:
        await sender.send_messages(message or ServiceBusMessage(b"x"))


async def our_send(site: Site, path: str, credential: Any = None) -> None:
    async with site.exchange(path, credential) as exchange:
        await exchange.send()


@check(
    "refused: an unknown entity",
    "SDK: ServiceBusAuthenticationError, status 404 (not found); ours: AuthenticationFailedError amqp:not-found",
)
async def unknown_entity(drill: Drill, findings: Findings) -> None:
    site, path = drill.at_primary, f"{drill.prefix}-unknown"
    expect_sdk_error(
        findings, await raised(sdk_send(site.client, path)), ServiceBusAuthenticationError, Cause.NOT_FOUND
    )
    expect_client_error(findings, await raised(our_send(site, path)), AuthenticationFailedError, "amqp:not-found")


@check(
    "refused: a wrong key",
    "SDK: ServiceBusAuthenticationError (forbidden); ours: AuthenticationFailedError amqp:unauthorized-access",
)
async def wrong_key(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("wrong-key")
    wrong = AzureNamedKeyCredential(site.named_key[0], new_key())
    async with site.new_client(credential=wrong) as client:
        expect_sdk_error(findings, await raised(sdk_send(client, path)), ServiceBusAuthenticationError, Cause.FORBIDDEN)
    expect_client_error(
        findings, await raised(our_send(site, path, wrong)), AuthenticationFailedError, "amqp:unauthorized-access"
    )


@check(
    "refused: a missing right",
    "a rule with Listen only may attach a receiver and no sender; SDK: ServiceBusAuthorizationError;"
    " ours: LinkDetachedError amqp:unauthorized-access",
)
async def missing_right(drill: Drill, findings: Findings) -> None:
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
        expect_sdk_error(findings, await raised(sdk_send(client, path)), ServiceBusAuthorizationError, Cause.FORBIDDEN)
    expect_client_error(
        findings, await raised(our_send(site, path, listener)), LinkDetachedError, "amqp:unauthorized-access"
    )
    async with site.exchange(path, listener) as exchange:
        await exchange.listen()
        findings.note("a receiver was attached")


@check(
    "refused: a too large message",
    "both clients know the limit of the link; SDK: MessageSizeExceededError; ours: MessageTooLargeError",
)
async def too_large(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("too-large")
    async with site.exchange(path) as exchange:
        limit = (await exchange.sender()).max_message_size
        findings.note(f"the link's limit is {limit} bytes")
        if not limit:
            raise ValueError("the link has no limit")
        error = await raised(exchange.send(encode_message(bytes(limit))))
        expect_client_error(findings, error, MessageTooLargeError, "amqp:link:message-size-exceeded")
    error = await raised(sdk_send(site.client, path, ServiceBusMessage(bytes(limit))))
    expect_sdk_error(findings, error, MessageSizeExceededError, Cause.CALLER)


@check(
    "refused: a disabled entity",
    "(Send)Disabled; SDK: MessagingEntityDisabledError; ours: LinkDetachedError com.microsoft:entity-disabled",
)
async def disabled(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("disabled")
    for status in ("SendDisabled", "Disabled"):
        queue = await site.admin.get_queue(path)
        queue.status = status
        await site.admin.update_queue(queue)
        findings.note(status)
        for _ in range(MAX_ATTEMPTS):
            error = await raised(sdk_send(site.client, path))
            if error is not None:
                break
            await asyncio.sleep(1)  # the change has not taken effect yet
        expect_sdk_error(findings, error, MessagingEntityDisabledError, Cause.DISABLED)
        expect_client_error(
            findings, await raised(our_send(site, path)), LinkDetachedError, "com.microsoft:entity-disabled"
        )


@check(
    "refused: cancelling a number that is not scheduled",
    "unknown and negative numbers: MessageNotFoundError, and no other message is touched",
)
async def unknown_number(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("cancel-unknown")
    async with site.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage(b"x"))
        for number in (1, 1_000_000, -5):
            error = await raised(sender.cancel_scheduled_messages(number))
            findings.note(f"{number}")
            expect_sdk_error(findings, error, MessageNotFoundError, Cause.CALLER)
    async with site.exchange(path) as exchange:
        findings.expect_equal("left", len(await exchange.peek()), 1)


CHECKS = (unknown_entity, wrong_key, missing_right, too_large, disabled, unknown_number)
