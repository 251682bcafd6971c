"""Connection strings of embedded namespaces with a key of the test's choice, right or wrong."""

from __future__ import annotations

from twinbus.emulator import Namespace

ROOT_POLICY = "RootManageSharedAccessKey"


def connection_string(namespace: Namespace, key: str, policy: str = ROOT_POLICY, entity: str | None = None) -> str:
    """The connection string of a namespace with this key; with `entity` it names one entity."""
    parts = [
        f"Endpoint=sb://{namespace.host}:{namespace.port}",
        f"SharedAccessKeyName={policy}",
        f"SharedAccessKey={key}",
        *([] if entity is None else [f"EntityPath={entity}"]),
        "UseDevelopmentEmulator=true",
    ]
    return ";".join(parts)
