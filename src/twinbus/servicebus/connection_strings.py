"""Parses connection strings strictly: they come from files and variables that may be wrong or hostile."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from twinbus.amqp.client.endpoint import MAX_PORT as MAX_PORT

from .entity_paths import is_entity_path

MAX_LENGTH = 8192  # of the whole text; those of the service have about 200 characters
MAX_PATH_LENGTH = 260

# A DNS name or an address. International names have an ASCII form.
_ENDPOINT = re.compile(
    r"sb://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>\d{1,5}))?/?", re.IGNORECASE
)
_SIGNATURE_PARTS = ("sr=", "sig=", "se=")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string: either a key name and a key, or a signature."""

    #: A name or an address; an IPv6 address has brackets.
    host: str
    port: int | None
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    entity_path: str | None = None
    use_tls: bool = True

    @property
    def authority(self) -> str:
        """The host, with the port if there is one."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse a connection string. Unknown parts are ignored, as in the SDK.

        Raises:
            ValueError: a part is missing, malformed or out of bounds. The message names the part and never contains any
                of the text.
        """
        parts = _parts(text)
        host, port = _endpoint(parts.get("endpoint", ""))
        signature, name, key = (
            parts.get(part, "") for part in ("sharedaccesssignature", "sharedaccesskeyname", "sharedaccesskey")
        )
        _check_credential(name, key, signature)
        path = parts.get("entitypath") or None
        if path is not None and (len(path) > MAX_PATH_LENGTH or not is_entity_path(path)):
            raise ValueError(
                "EntityPath of the connection string must be the path of a queue or topic,"
                f" of at most {MAX_PATH_LENGTH} characters"
            )
        emulator = parts.get("usedevelopmentemulator", "")
        if emulator.lower() not in ("", "true", "false"):
            raise ValueError("UseDevelopmentEmulator of the connection string must be true or false")
        # The SDK compares the value case-sensitively: "True" means TLS.
        return cls(host, port, name, key, signature, path, use_tls=emulator != "true")


def _parts(text: str) -> dict[str, str]:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a connection string must have at most {MAX_LENGTH} characters, not {len(text)}")
    text = text.strip()
    if not text.isprintable():
        raise ValueError("a connection string must be one line of printable characters")
    parts: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, value = part.partition("=")
        if not separator or name.lower() in parts:
            raise ValueError("a connection string must be name=value parts, each once, separated by semicolons")
        parts[name.lower()] = value
    return parts


def _endpoint(text: str) -> tuple[str, int | None]:
    if not text:
        raise ValueError("Endpoint is missing from the connection string")
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ValueError("Endpoint of the connection string must be sb://host or sb://host:port")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 1 <= port <= MAX_PORT:
        raise ValueError(f"the port in Endpoint of the connection string must be 1 to {MAX_PORT}")
    return match["host"], port


def _check_credential(name: str, key: str, signature: str) -> None:
    if signature and (name or key):
        raise ValueError("the connection string must have a SharedAccessKey or a SharedAccessSignature, not both")
    if signature:
        if not all(part in signature for part in _SIGNATURE_PARTS):
            raise ValueError(f"SharedAccessSignature of the connection string must have {', '.join(_SIGNATURE_PARTS)}")
        return
    for label, value in (("SharedAccessKeyName", name), ("SharedAccessKey", key)):
        if not value:
            raise ValueError(f"{label} is missing from the connection string")
