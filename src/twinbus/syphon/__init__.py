"""The syphon: what moves messages from the backlog back to where they belong, and the AMQP client it does so with."""

from __future__ import annotations

from .connection import Connection
from .credentials import BearerCredential, Credential, SasKey, SasToken, Token, as_credential
from .endpoint import Endpoint, from_connection_string
from .errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionLost,
    DeliveryFailed,
    LinkDetached,
    MessageTooLarge,
    Modified,
    NoRoom,
    Rejected,
    Released,
    RequestFailed,
    TimedOut,
)
from .management import LockedMessage, Management, Settlement
from .receiver import ABANDON, ACCEPT, DEFER, RELEASE, Delivery, Receiver, dead_letter
from .sender import Sender

__all__ = [
    "ABANDON",
    "ACCEPT",
    "DEFER",
    "RELEASE",
    "AmqpError",
    "AuthenticationFailed",
    "BearerCredential",
    "Connection",
    "ConnectionLost",
    "Credential",
    "Delivery",
    "DeliveryFailed",
    "Endpoint",
    "LinkDetached",
    "LockedMessage",
    "Management",
    "MessageTooLarge",
    "Modified",
    "NoRoom",
    "Receiver",
    "Rejected",
    "Released",
    "RequestFailed",
    "SasKey",
    "SasToken",
    "Sender",
    "Settlement",
    "TimedOut",
    "Token",
    "as_credential",
    "dead_letter",
    "from_connection_string",
]
