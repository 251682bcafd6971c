"""Who may do what: access policies, the tokens made from them, and the grants they earn.

A client proves itself with a token, either a shared access signature (an HMAC over an audience and an expiry
time, made with a policy's key) or a bearer token listed in the configuration. `Authority.verify` turns a
token into a `Grant`, or raises `Unauthorized` in the words of the service. A missing right is not a bad
token: ask `Grant.allows` for it.

Which hosts an audience may name: a namespace is reached under 127.0.0.1, localhost, a container's name or a
mapped port, so by default the host of the audience is not compared, and its port never is. That gives nothing
away: a token is worth what the key that signed it is worth, and each namespace makes its own keys. Give
`hosts` where namespaces share a key on purpose and a token for one must not work on the other.
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
from enum import StrEnum
from urllib.parse import quote_plus, unquote, unquote_plus

Clock = Callable[[], float]

ROOT_POLICY = "RootManageSharedAccessKey"
MAX_TOKEN_LENGTH = 32_768
MAX_KEY_LENGTH = 256
MAX_POLICY_NAME_LENGTH = 256

_SAS_SCHEME = "sharedaccesssignature "
_BEARER_SCHEME = "bearer "
_AUDIENCE_SCHEMES = frozenset({"sb", "amqp", "amqps", "http", "https"})
# Twelve digits reach the year 33658, and a float still holds them exactly.
_EXPIRY = re.compile(r"[0-9]{1,12}")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")


class Right(StrEnum):
    """What a policy allows. Manage includes the other two."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS: frozenset[Right] = frozenset(Right)


class Unauthorized(Exception):  # noqa: N818 - the service's own word for it
    """A token that is not accepted, or a right that its bearer does not have.

    `message` is worded as the service words it and holds no secret. `expired` is true when the token was good
    once.
    """

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.expired = expired


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """A named pair of keys and the rights that either of them gives. An empty `secondary_key` means none.

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
        """The keys a signature may be made with."""
        return (self.primary_key, self.secondary_key) if self.secondary_key else (self.primary_key,)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token that is accepted as it is, as if an identity provider had issued it.

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
    """What an accepted token allows, until `expires_at` (seconds since the epoch, perhaps infinite).

    `audience` is the path the token was made for; "" is the whole namespace. `entity` is set when the policy
    belongs to one queue or topic: the grant then ends at that entity, however wide its audience is. `policy` is the
    name of the policy, for logs.
    """

    audience: str
    rights: frozenset[Right]
    expires_at: float
    entity: str | None = None
    policy: str | None = field(default=None, compare=False)

    def allows(self, path: str, right: Right) -> bool:
        """Whether `right` is given on `path`: the audience itself or anything below it, whatever the case."""
        if right not in self.rights and Right.MANAGE not in self.rights:
            return False
        return self.covers(path)

    def covers(self, path: str) -> bool:
        """Whether `path` is within reach of this grant, with any right."""
        asked, audience = _segments(path), _segments(self.audience)
        if asked[: len(audience)] != audience:
            return False
        return self.entity is None or _segments(owner_of(path)) == _segments(self.entity)


class Authority:
    """Verifies the tokens that clients bring to one namespace.

    Args:
        policies: the policies of the namespace itself; each reaches every entity.
        bearer_tokens: tokens accepted as they are.
        hosts: the host names and addresses an audience may name; none means any (see the module's text).
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
        """The grant that `token` earns. Decides by what the token says, as clients mislabel its type.

        Args:
            token: `SharedAccessSignature …` or a bearer token, either one also after `Bearer `; None if the
                client brought none.
            entity_policies: the policies of the queue or topic with a path, empty if there is none.
            resource: the path the client asks for, where known (the name of a put-token, the path of a
                request). It lets a policy of that entity sign for the whole namespace, and refuses a token
                made for another entity.

        Raises:
            Unauthorized: and nothing else, whatever the token is.
        """
        if not token:
            raise Unauthorized("MissingToken: The authorization header was not found.")
        if len(token) > MAX_TOKEN_LENGTH:
            raise _malformed("it is too long")
        token = _bare_token(token)
        if _is_signature(token):
            grant = self._verify_signature(_Signature.parse(token), entity_policies, resource)
        else:
            grant = self._verify_bearer(token)
        if grant.expires_at <= self._clock():
            moment = datetime.fromtimestamp(grant.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            raise Unauthorized(f"ExpiredToken: The token is expired. Expiration time: '{moment}'.", expired=True)
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
            if signature.made_by(policy):
                self._check_host(host)
                return Grant(path, policy.rights, signature.expires_at, policy=policy.name)
        if entity_policies is not None:
            # The audience names the entity, or names the namespace while the request names the entity.
            for entity in dict.fromkeys(filter(None, (owner_of(path), owner_of(resource)))):
                for policy in entity_policies(entity):
                    if signature.made_by(policy):
                        self._check_host(host)
                        return Grant(path, policy.rights, signature.expires_at, entity, policy.name)
        # An unknown policy reads like a wrong key, so that nobody can find out which names exist.
        raise Unauthorized("InvalidSignature: The token has an invalid signature.")

    def _verify_bearer(self, token: str) -> Grant:
        presented = _utf8(token)
        found: BearerToken | None = None
        for listed, bearer in self._bearer_tokens:
            if hmac.compare_digest(listed, presented):
                found = bearer
        if found is None:
            raise Unauthorized("InvalidSignature: The token has an invalid signature.")
        entity = owner_of(found.path) or None
        return Grant(found.path, found.rights, found.expires_at, entity)

    def _audience(self, resource: str) -> tuple[str, str]:
        """Host and path that the audience of a signature names."""
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
        # One bare word is more likely a queue whose host was forgotten. Reading it as a host would widen a
        # token meant for one queue to the whole namespace.
        if not separator and not path and match["port"] is None and not self._surely_host(host):
            raise _wrong_audience()
        return host, path

    def _surely_host(self, host: str) -> bool:
        return (
            host in self._hosts or host == "localhost" or _is_address(host) or host.endswith(".servicebus.windows.net")
        )

    def _check_host(self, host: str) -> None:
        if self._hosts and host not in self._hosts:
            raise _wrong_audience()


@dataclass(frozen=True, slots=True)
class _Signature:
    """The fields of a shared access signature. `resource` and `expiry` stay as sent, as they were signed."""

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
        # Base64 holds no space, so a plus sign that was not encoded is still a plus sign.
        signature = unquote(fields["sig"], errors="replace").replace(" ", "+")
        # The Python SDK encodes the policy's name twice.
        once = unquote_plus(fields["skn"], errors="replace")
        names = (fields["skn"], once, unquote_plus(once, errors="replace"))
        return cls(fields["sr"], fields["se"], names, _utf8(signature))

    @property
    def expires_at(self) -> float:
        return float(self.expiry)

    def made_by(self, policy: AccessPolicy) -> bool:
        if policy.name not in self.policy_names:
            return False
        good = False
        for key in policy.keys:
            good |= hmac.compare_digest(_digest(key, self.resource, self.expiry), self.signature)
        return good


def policy_named_in(token: str) -> str | None:
    """The policy that a shared access signature says it was made with, be it true or not; None if there is no name.

    Some clients encode it twice, so a space in it may be a plus sign here.
    """
    token = _bare_token(token) if len(token) <= MAX_TOKEN_LENGTH else ""
    if not _is_signature(token):
        return None
    try:
        return unquote(_Signature.parse(token).policy_names[1], errors="replace")
    except Unauthorized:
        return None


def _bare_token(token: str) -> str:
    is_labelled = token[: len(_BEARER_SCHEME)].lower() == _BEARER_SCHEME
    return token[len(_BEARER_SCHEME) :].strip() if is_labelled else token


def _is_signature(token: str) -> bool:
    return token[: len(_SAS_SCHEME)].lower() == _SAS_SCHEME


def owner_of(path: str) -> str:
    """The queue or topic that `path` belongs to: itself, a subscription's topic, what a `$…` node is part of.

    Empty for the namespace and for its own nodes such as `$cbs` and `$Resources/queues`.
    """
    segments = [segment for segment in path.split("/") if segment]
    for index, segment in enumerate(segments):
        if segment.startswith("$") or (index > 0 and segment.lower() == "subscriptions"):
            return "/".join(segments[:index])
    return "/".join(segments)


def missing_right(right: Right, resource: str) -> Unauthorized:
    """The service's error for a good token that lacks `right`; `resource` is a path or an address."""
    return Unauthorized(
        f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation. Resource: '{resource}'."
    )


def generate_key() -> str:
    """A fresh key: 32 random bytes in base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode("ascii")


def sign(uri: str, policy_name: str, key: str, expires_at: float) -> str:
    """A shared access signature for `uri`, made with one of a policy's keys and good until `expires_at`."""
    resource, expiry = quote_plus(uri), str(int(expires_at))
    signature = quote_plus(_digest(key, resource, expiry))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(policy_name)}"


def connection_string(host: str, port: int, policy: AccessPolicy, entity: str | None = None) -> str:
    """The ready connection string, key included, of a namespace or one entity of it on `host` and `port`.

    Raises:
        ValueError: a part cannot be written down in a connection string. The message never holds the key.
    """
    host = _bare_host(host)
    texts = {"host": host, "policy_name": policy.name, "key": policy.primary_key, "entity": entity}
    for name, value in texts.items():
        if value is not None and (not value or ";" in value):
            raise ValueError(f"{name} of a connection string must not be empty or hold a semicolon")
    if not 1 <= port <= 65535:
        raise ValueError("port of a connection string must be 1 to 65535")
    parts = [f"Endpoint=sb://{f'[{host}]' if ':' in host else host}:{port}"]
    parts += [f"SharedAccessKeyName={policy.name}", f"SharedAccessKey={policy.primary_key}"]
    if entity is not None:
        parts.append(f"EntityPath={entity}")
    # The SDK compares the value letter by letter: "True" would mean TLS.
    parts.append("UseDevelopmentEmulator=true")
    return ";".join(parts)


def _digest(key: str, resource: str, expiry: str) -> bytes:
    signed = hmac.new(_utf8(key), _utf8(f"{resource}\n{expiry}"), hashlib.sha256)
    return base64.b64encode(signed.digest())


def _malformed(why: str) -> Unauthorized:
    return Unauthorized(f"MalformedToken: The token is not in the correct format: {why}.")


def _wrong_audience() -> Unauthorized:
    return Unauthorized("InvalidAudience: The authorization header contains a token with a wrong audience.")


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
    # A header may carry lone surrogates; they must fail the comparison, not the encoder.
    return text.encode("utf-8", errors="surrogatepass")


def _names(rights: Iterable[Right]) -> str:
    return ", ".join(right.value for right in Right if right in set(rights))
