"""Whether two namespaces can be paired."""

from __future__ import annotations

from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.syphon.endpoint import Endpoint


def check_pair(primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions) -> str:
    """The primary's name, by which the backlog queues are called; empty if only the primary itself knows it.

    Raises:
        ValueError: the two are one, or are reached in a way that does not go with the options or the installed SDK.
    """
    if primary.fully_qualified_namespace.lower() == secondary.fully_qualified_namespace.lower():
        raise ValueError(f"primary and secondary must be two namespaces, not both {primary.fully_qualified_namespace}")
    if secondary.entity_path is not None:
        raise ValueError(
            "the connection string of the secondary must be good for all its backlog queues, not for"
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
            Endpoint.of(namespace)
    return name
