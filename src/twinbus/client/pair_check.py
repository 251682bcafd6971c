"""Checks whether two namespaces can be paired."""

from __future__ import annotations

from twinbus.pairing.namespace import Namespace
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.syphon.connector import endpoint_of


def check_pair(primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions) -> str:
    """Return the primary's name, which the backlog queues are named after; empty if it must be asked for it.

    Raises:
        ValueError: the two are the same, or the options or the installed SDK do not support their addresses.
    """
    if primary.fully_qualified_namespace.lower() == secondary.fully_qualified_namespace.lower():
        raise ValueError(f"primary and secondary must be two namespaces, not both {primary.fully_qualified_namespace}")
    if secondary.entity_path is not None:
        raise ValueError(
            "the connection string of the secondary must be valid for all its backlog queues, not only for"
            f" EntityPath={secondary.entity_path}"
        )
    for namespace in (primary, secondary):
        namespace.check_options()
    name = options.primary_name or primary.name or ""
    if not name and not options.create_backlog:
        raise ValueError(
            f"primary_name must be given with create_backlog=False: {primary.fully_qualified_namespace} is an address,"
            " and only administration would tell the name"
        )
    if options.enable_syphon:
        for namespace in (primary, secondary):
            endpoint_of(namespace)
    return name
