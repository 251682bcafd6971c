"""Creates the SDK's administration client with a custom certificate authority, in every supported version."""

from __future__ import annotations

from typing import Any

from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import HeadersPolicy
from azure.servicebus.management import ServiceBusAdministrationClient


class _TrustPolicy(HeadersPolicy):
    """Sets `connection_verify` on every request: before 7.15 the client ignores that option."""

    def __init__(self, ca_file: str) -> None:
        super().__init__()
        self._ca_file = ca_file

    def on_request(self, request: PipelineRequest[Any]) -> None:
        request.context.options.setdefault("connection_verify", self._ca_file)
        super().on_request(request)


def administration_client(connection_string: str, ca_file: str) -> ServiceBusAdministrationClient:
    """The SDK's synchronous administration client, trusting the certificates that `ca_file` has signed."""
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, headers_policy=_TrustPolicy(ca_file)
    )
