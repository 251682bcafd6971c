"""The syphon: what moves messages from the backlog back to where they belong, and the AMQP client it does so with."""

from __future__ import annotations

from .connection import Connection
from .connector import Side
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
from .host import SyphonHost
from .management import LockedMessage, Management, Settlement
from .receiver import ABANDON, ACCEPT, DEFER, RELEASE, Delivery, Receiver, dead_letter
from .report import DrainReport, QueueStatus, SyphonStatus, Tally
from .sender import Sender
from .terms import Terms

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
    "DrainReport",
    "Endpoint",
    "LinkDetached",
    "LockedMessage",
    "Management",
    "MessageTooLarge",
    "Modified",
    "NoRoom",
    "QueueStatus",
    "Receiver",
    "Rejected",
    "Released",
    "RequestFailed",
    "SasKey",
    "SasToken",
    "Sender",
    "Settlement",
    "Side",
    "SyphonHost",
    "SyphonStatus",
    "Tally",
    "Terms",
    "TimedOut",
    "Token",
    "as_credential",
    "dead_letter",
    "from_connection_string",
]
