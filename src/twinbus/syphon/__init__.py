"""The syphon: drains backlog queues to their destinations, over its own AMQP client."""

from __future__ import annotations

from twinbus.amqp.client.connection import Connection
from twinbus.amqp.client.credentials import Credential, Token
from twinbus.amqp.client.endpoint import Endpoint
from twinbus.amqp.client.errors import (
    AmqpError,
    AnswerTimeoutError,
    AuthenticationFailedError,
    ConnectionLostError,
    DeliveryFailedError,
    LinkDetachedError,
    MessageTooLargeError,
    ModifiedError,
    NoCreditError,
    RejectedError,
    ReleasedError,
    RequestFailedError,
)
from twinbus.amqp.client.management import LockedMessage, Management, Settlement
from twinbus.amqp.client.receiver import ABANDON, ACCEPT, DEFER, RELEASE, Delivery, Receiver, dead_letter
from twinbus.amqp.client.sender import Sender

from .connector import Side, from_connection_string
from .credentials import BearerCredential, SasKey, SasToken, as_credential
from .drain_report import DrainReport, QueueStatus, SyphonStatus, Tally
from .host import SyphonHost
from .terms import Terms

__all__ = [
    "ABANDON",
    "ACCEPT",
    "DEFER",
    "RELEASE",
    "AmqpError",
    "AnswerTimeoutError",
    "AuthenticationFailedError",
    "BearerCredential",
    "Connection",
    "ConnectionLostError",
    "Credential",
    "Delivery",
    "DeliveryFailedError",
    "DrainReport",
    "Endpoint",
    "LinkDetachedError",
    "LockedMessage",
    "Management",
    "MessageTooLargeError",
    "ModifiedError",
    "NoCreditError",
    "QueueStatus",
    "Receiver",
    "RejectedError",
    "ReleasedError",
    "RequestFailedError",
    "SasKey",
    "SasToken",
    "Sender",
    "Settlement",
    "Side",
    "SyphonHost",
    "SyphonStatus",
    "Tally",
    "Terms",
    "Token",
    "as_credential",
    "dead_letter",
    "from_connection_string",
]
