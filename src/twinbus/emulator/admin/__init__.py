"""The administration API of a namespace: Atom XML over HTTP, for the SDK's administration client."""

from twinbus.emulator.admin.api import AdministrationApi
from twinbus.emulator.admin.registry import (
    EntityExistsError,
    NoSuchEntityError,
    QueueView,
    Registry,
    SubscriptionView,
    TopicView,
)

__all__ = [
    "AdministrationApi",
    "EntityExistsError",
    "NoSuchEntityError",
    "QueueView",
    "Registry",
    "SubscriptionView",
    "TopicView",
]
