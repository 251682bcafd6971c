"""The administration API of a namespace: Atom XML over HTTP, as the SDK's administration client speaks it."""

from twinbus.broker.admin.api import AdministrationApi
from twinbus.broker.admin.registry import (
    EntityExists,
    EntityNotFound,
    QueueView,
    Registry,
    SubscriptionView,
    TopicView,
)

__all__ = [
    "AdministrationApi",
    "EntityExists",
    "EntityNotFound",
    "QueueView",
    "Registry",
    "SubscriptionView",
    "TopicView",
]
