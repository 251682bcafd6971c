"""Verifies access tokens and turns them into grants.

A token is a shared access signature (an HMAC over an audience and an expiry time, made with a policy's key) or a
bearer token listed in the configuration. `Authority.verify` turns a token into a `Grant`, or raises
`UnauthorizedError` in the words of the service. A missing right is not a bad token: check it with `Grant.allows`.

Hosts: a namespace is reached under 127.0.0.1, localhost, a container's name or a mapped port, so by default the host
of an audience is not compared, and its port never is. That is safe because each namespace has its own keys. Give
`hosts` if namespaces share a key on purpose and a token for one must not work on another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote_plus, unquote, unquote_plus

from twinbus.servicebus.access_rights import ALL_RIGHTS, MAX_KEY_LENGTH, MAX_POLICY_NAME_LENGTH, Right

Clock = Callable[[], float]

ROOT_POLICY = "RootManageSharedAccessKey"
MAX_TOKEN_LENGTH = 32_768

_SAS_SCHEME = "sharedaccesssignature "
_BEARER_SCHEME = "bearer "
_AUDIENCE_SCHEMES = frozenset({"sb", "amqp", "amqps", "http", "https"})
# Twelve digits reach the year 33658, and a float still holds them exactly.
_EXPIRY = re.compile(r"[0-9]{1,12}")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")


class UnauthorizedError(Exception):
    """A token was not accepted, or does not grant a right.

    `message` has the service's wording and holds no secret. `expired` is true if the token was valid before.
    """

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.expired = expired


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """A named pair of keys and the rights that both grant. An empty `secondary_key` means none.

    Raises:
        ValueError: a field is out of its bounds; the message names it.
    """

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    rights: frozenset[Right]

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_POLICY_NAME_LENGTH:
            raise ValueError(f"name of an access policy must have 1 to {MAX_POLICY_NAME_LENGTH} characters")
        if not 1 <= len(self.primary_key) <= MAX_KEY_LENGTH:
            raise ValueError(f"primary_key of policy {self.name!r} must have 1 to {MAX_KEY_LENGTH} characters")
        if len(self.secondary_key) > MAX_KEY_LENGTH:
            raise ValueError(f"secondary_key of policy {self.name!r} must have at most {MAX_KEY_LENGTH} characters")
        if not self.rights:
            raise ValueError(f"rights of policy {self.name!r} must name at least one of {_names(ALL_RIGHTS)}")

    @classmethod
    def generate(cls, name: str = ROOT_POLICY, rights: Iterable[Right] = ALL_RIGHTS) -> AccessPolicy:
        """A policy with two fresh random keys."""
        return cls(name, generate_key(), generate_key(), frozenset(rights))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that may sign a token."""
        return (self.primary_key, self.secondary_key) if self.secondary_key else (self.primary_key,)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token that is accepted by value, as if an identity provider had issued it.

    `path` limits it to one queue or topic.
    """

    token: str = field(repr=False)
    rights: frozenset[Right]
    path: str = ""
    expires_at: float = math.inf

    def __post_init__(self) -> None:
        if not 1 <= len(self.token) <= MAX_TOKEN_LENGTH:
            raise ValueError(f"token of a bearer token must have 1 to {MAX_TOKEN_LENGTH} characters")
        if not self.rights:
            raise ValueError(f"rights of a bearer token must name at least one of {_names(ALL_RIGHTS)}")
        if not self.expires_at >= 0:
            raise ValueError("expires_at of a bearer token must be seconds since 1970-01-01, 0 or more")


@dataclass(frozen=True, slots=True)
class Grant:
    """What an accepted token allows, until `expires_at` (seconds since the epoch, or infinity).

    `audience` is the path the token was made for; "" is the whole namespace. `entity` is set if the policy belongs to
    one queue or topic: the grant then covers only that entity, even if its audience is wider. `policy` is the name of
    the policy, for logs.
    """

    audience: str
    rights: frozenset[Right]
    expires_at: float
    entity: str | None = None
    policy: str | None = field(default=None, compare=False)

    def allows(self, path: str, right: Right) -> bool:
        """Whether the grant gives `right` on `path`. Paths compare without case."""
        if right not in self.rights and Right.MANAGE not in self.rights:
            return False
        return self.covers(path)

    def covers(self, path: str) -> bool:
        """Whether `path` is the audience or below it, and within `entity`."""
        requested, audience = _segments(path), _segments(self.audience)
        if requested[: len(audience)] != audience:
            return False
        return self.entity is None or _segments(owner_of(path)) == _segments(self.entity)


class Authority:
    """Verifies the tokens of one namespace's clients.

    Args:
        policies: the policies of the namespace itself; each covers every entity.
        bearer_tokens: tokens accepted by value.
        hosts: the host names and addresses an audience may name; none means any (see the module docstring).
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        policies: Sequence[AccessPolicy],
        *,
        bearer_tokens: Sequence[BearerToken] = (),
        hosts: Iterable[str] = (),
        clock: Clock = time.time,
    ) -> None:
        self._policies = tuple(policies)
        self._bearer_tokens = tuple((_utf8(bearer.token), bearer) for bearer in bearer_tokens)
        self._hosts = frozenset(_bare_host(host) for host in hosts)
        self._clock = clock

    def verify(
        self,
        token: str | None,
        entity_policies: Callable[[str], Sequence[AccessPolicy]] | None = None,
        *,
        resource: str = "",
    ) -> Grant:
        """The grant of a token. Its kind is read from the token itself, as clients mislabel its type.

        Args:
            token: `SharedAccessSignature …` or a bearer token, optionally after `Bearer `; None if there is
                none.
            entity_policies: returns the policies of the queue or topic at a path.
            resource: the requested path, if known (the name of a put-token, the path of a request). It lets a
                policy of that entity sign for the whole namespace, and refuses a token for another entity.

        Raises:
            UnauthorizedError: for any bad token, and no other error.
        """
        if not token:
            raise UnauthorizedError("MissingToken: The authorization header was not found.")
        if len(token) > MAX_TOKEN_LENGTH:
            raise _malformed("it is too long")
        token = _without_bearer(token)
        if _is_signature(token):
            grant = self._verify_signature(_Signature.parse(token), entity_policies, resource)
        else:
            grant = self._verify_bearer(token)
        if grant.expires_at <= self._clock():
            moment = datetime.fromtimestamp(grant.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            raise UnauthorizedError(f"ExpiredToken: The token is expired. Expiration time: '{moment}'.", expired=True)
        if resource and not grant.covers(resource):
            raise _wrong_audience()
        return grant

    def _verify_signature(
        self,
        signature: _Signature,
        entity_policies: Callable[[str], Sequence[AccessPolicy]] | None,
        resource: str,
    ) -> Grant:
        host, path = self._audience(signature.resource)
        for policy in self._policies:
            if signature.is_signed_by(policy):
                self._check_host(host)
                return Grant(path, policy.rights, signature.expires_at, policy=policy.name)
        if entity_policies is not None:
            # The audience names the entity, or names the namespace while the request names the entity.
            for entity in dict.fromkeys(filter(None, (owner_of(path), owner_of(resource)))):
                for policy in entity_policies(entity):
                    if signature.is_signed_by(policy):
                        self._check_host(host)
                        return Grant(path, policy.rights, signature.expires_at, entity, policy.name)
        # Same error for an unknown policy and a wrong key, so that policy names cannot be probed.
        raise UnauthorizedError("InvalidSignature: The token has an invalid signature.")

    def _verify_bearer(self, token: str) -> Grant:
        presented = _utf8(token)
        match: BearerToken | None = None
        for listed, bearer in self._bearer_tokens:
            if hmac.compare_digest(listed, presented):
                match = bearer
        if match is None:
            raise UnauthorizedError("InvalidSignature: The token has an invalid signature.")
        entity = owner_of(match.path) or None
        return Grant(match.path, match.rights, match.expires_at, entity)

    def _audience(self, resource: str) -> tuple[str, str]:
        """The host and path in the audience of a signature."""
        uri = unquote_plus(resource, errors="replace")
        scheme, separator, rest = uri.partition("://")
        if not separator:
            rest = uri
        elif scheme.lower() not in _AUDIENCE_SCHEMES:
            raise _wrong_audience()
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
        authority, _, path = rest.partition("/")
        match = _HOST_AND_PORT.fullmatch(authority)
        if match is None or not match["host"]:
            raise _wrong_audience()
        host, path = _bare_host(match["host"]), "/".join(filter(None, path.split("/")))
        # A single word is more likely a queue name without its host. Reading it as a host would widen a token for
        # one queue to the whole namespace.
        if not separator and not path and match["port"] is None and not self._is_certainly_host(host):
            raise _wrong_audience()
        return host, path

    def _is_certainly_host(self, host: str) -> bool:
        return (
            host in self._hosts or host == "localhost" or _is_address(host) or host.endswith(".servicebus.windows.net")
        )

    def _check_host(self, host: str) -> None:
        if self._hosts and host not in self._hosts:
            raise _wrong_audience()


@dataclass(frozen=True, slots=True)
class _Signature:
    """The fields of a shared access signature. `resource` and `expiry` stay encoded, as they were signed."""

    resource: str
    expiry: str
    policy_names: tuple[str, ...]
    signature: bytes = field(repr=False)

    @classmethod
    def parse(cls, token: str) -> _Signature:
        fields: dict[str, str] = {}
        for part in token[len(_SAS_SCHEME) :].strip().split("&"):
            name, separator, value = part.partition("=")
            name = name.strip().lower()
            if not separator or name in fields:
                raise _malformed("its fields must be name=value, each once")
            fields[name] = value
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise _malformed(f"'{missing[0]}' is missing")
        if _EXPIRY.fullmatch(fields["se"]) is None:
            raise _malformed("'se' must be whole seconds since 1970-01-01, of at most 12 digits")
        # Base64 has no spaces, so a space is a plus sign that was not encoded.
        signature = unquote(fields["sig"], errors="replace").replace(" ", "+")
        # The Python SDK encodes the policy's name twice.
        decoded_once = unquote_plus(fields["skn"], errors="replace")
        names = (fields["skn"], decoded_once, unquote_plus(decoded_once, errors="replace"))
        return cls(fields["sr"], fields["se"], names, _utf8(signature))

    @property
    def expires_at(self) -> float:
        return float(self.expiry)

    def is_signed_by(self, policy: AccessPolicy) -> bool:
        if policy.name not in self.policy_names:
            return False
        is_match = False
        for key in policy.keys:
            is_match |= hmac.compare_digest(_digest(key, self.resource, self.expiry), self.signature)
        return is_match


def policy_named_in(token: str) -> str | None:
    """The policy name in a shared access signature, not verified; None if there is none.

    Some clients encode it twice, so a space may appear as a plus sign.
    """
    token = _without_bearer(token) if len(token) <= MAX_TOKEN_LENGTH else ""
    if not _is_signature(token):
        return None
    try:
        return unquote(_Signature.parse(token).policy_names[1], errors="replace")
    except UnauthorizedError:
        return None


def _without_bearer(token: str) -> str:
    is_labelled = token[: len(_BEARER_SCHEME)].lower() == _BEARER_SCHEME
    return token[len(_BEARER_SCHEME) :].strip() if is_labelled else token


def _is_signature(token: str) -> bool:
    return token[: len(_SAS_SCHEME)].lower() == _SAS_SCHEME


def owner_of(path: str) -> str:
    """The queue or topic that `path` belongs to: the path itself, a subscription's topic, or a `$…` node's entity.

    Empty for the namespace and its own nodes, such as `$cbs` and `$Resources/queues`.
    """
    segments = [segment for segment in path.split("/") if segment]
    for index, segment in enumerate(segments):
        if segment.startswith("$") or (index > 0 and segment.lower() == "subscriptions"):
            return "/".join(segments[:index])
    return "/".join(segments)


def missing_right(right: Right, resource: str) -> UnauthorizedError:
    """The service's error for a good token that lacks `right`; `resource` is a path or an address."""
    return UnauthorizedError(
        f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation. Resource: '{resource}'."
    )


def generate_key() -> str:
    """A new key: 32 random bytes in base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode("ascii")


def sign(uri: str, policy_name: str, key: str, expires_at: float) -> str:
    """A shared access signature for `uri`, made with a policy's key and valid until `expires_at`.

    `expires_at` is in seconds since the epoch.
    """
    resource, expiry = quote_plus(uri), str(int(expires_at))
    signature = quote_plus(_digest(key, resource, expiry))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(policy_name)}"


def connection_string(host: str, port: int, policy: AccessPolicy, entity: str | None = None) -> str:
    """The connection string, key included, of a namespace or one of its entities on `host` and `port`.

    Raises:
        ValueError: a part cannot appear in a connection string. The message never holds the key.
    """
    host = _bare_host(host)
    parts_by_name = {"host": host, "policy_name": policy.name, "key": policy.primary_key, "entity": entity}
    for name, value in parts_by_name.items():
        if value is not None and (not value or ";" in value):
            raise ValueError(f"{name} of a connection string must not be empty or contain a semicolon")
    if not 1 <= port <= 65535:
        raise ValueError("port of a connection string must be 1 to 65535")
    parts = [f"Endpoint=sb://{f'[{host}]' if ':' in host else host}:{port}"]
    parts += [f"SharedAccessKeyName={policy.name}", f"SharedAccessKey={policy.primary_key}"]
    if entity is not None:
        parts.append(f"EntityPath={entity}")
    # The SDK compares the value exactly: "True" would mean TLS.
    parts.append("UseDevelopmentEmulator=true")
    return ";".join(parts)


def _digest(key: str, resource: str, expiry: str) -> bytes:
    signed = hmac.new(_utf8(key), _utf8(f"{resource}\n{expiry}"), hashlib.sha256)
    return base64.b64encode(signed.digest())


def _malformed(reason: str) -> UnauthorizedError:
    return UnauthorizedError(f"MalformedToken: The token is not in the correct format: {reason}.")


def _wrong_audience() -> UnauthorizedError:
    return UnauthorizedError("InvalidAudience: The authorization header contains a token with a wrong audience.")


def _segments(path: str) -> list[str]:
    return [segment.lower() for segment in path.split("/") if segment]


def _bare_host(host: str) -> str:
    return host.strip().strip("[]").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _utf8(text: str) -> bytes:
    # A header may contain lone surrogates: they must fail the comparison, not the encoding.
    return text.encode("utf-8", errors="surrogatepass")


def _names(rights: Iterable[Right]) -> str:
    return ", ".join(right.value for right in Right if right in set(rights))
