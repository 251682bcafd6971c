"""Tokens, rights and connection strings of an embedded namespace."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest
from azure.servicebus import parse_connection_string
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from twinbus.emulator.auth.security import (
    MAX_TOKEN_LENGTH,
    ROOT_POLICY,
    AccessPolicy,
    Authority,
    BearerToken,
    Grant,
    UnauthorizedError,
    connection_string,
    generate_key,
    missing_right,
    owner_of,
    sign,
)
from twinbus.servicebus.access_rights import ALL_RIGHTS, Right
from twinbus.servicebus.connection_strings import ConnectionString

NOW = 1_700_000_000.0
LATER = NOW + 3600
SEND, LISTEN, MANAGE = Right.SEND, Right.LISTEN, Right.MANAGE

ROOT = AccessPolicy.generate()
SENDER = AccessPolicy.generate("sender", {SEND})
WORKER = AccessPolicy.generate("worker", {LISTEN})


def policies_of(path: str) -> Sequence[AccessPolicy]:
    return {"orders": (WORKER,), "events": (WORKER,), "a/b": (WORKER,)}.get(path.lower(), ())


def authority(**options: object) -> Authority:
    return Authority([ROOT, SENDER], clock=lambda: NOW, **options)  # type: ignore[arg-type]


def signed_as_sent(resource: str, key: str = ROOT.primary_key, expiry: str = "1700003600") -> str:
    """A token whose `sr` is sent and signed exactly as given."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={ROOT_POLICY}"


# SDK tokens


@pytest.mark.parametrize("uri", ["sb://127.0.0.1:5672/orders", "amqps://localhost/orders", "https://[::1]:5672/orders"])
def test_sdk_token_is_accepted(uri: str) -> None:
    token = ServiceBusSharedKeyCredential(ROOT.name, ROOT.primary_key).get_token(uri)
    grant = Authority([ROOT]).verify(token.token)
    assert grant == Grant("orders", ALL_RIGHTS, float(token.expires_on))
    assert token.expires_on > time.time()


def test_administration_client_token_for_the_whole_namespace_is_accepted() -> None:
    token = ServiceBusSharedKeyCredential(ROOT.name, ROOT.primary_key).get_token("https://127.0.0.1:5672").token
    grant = Authority([ROOT]).verify(token, resource="$Resources/queues")
    assert grant.audience == ""
    assert grant.allows("$Resources/queues", MANAGE)


def test_policy_name_that_the_sdk_encodes_twice_is_accepted() -> None:
    policy = AccessPolicy.generate("a policy & more+", {SEND})
    token = ServiceBusSharedKeyCredential(policy.name, policy.primary_key).get_token("sb://host/orders").token
    assert "%252B" in token
    assert Authority([policy]).verify(token).rights == {SEND}


# Signatures


@pytest.mark.parametrize("which", [0, 1])
def test_both_keys_of_a_policy_can_sign(which: int) -> None:
    key = (ROOT.primary_key, ROOT.secondary_key)[which]
    assert authority().verify(sign("sb://host/orders", ROOT_POLICY, key, LATER)).expires_at == LATER


def test_a_wrong_key_is_refused() -> None:
    with pytest.raises(UnauthorizedError, match=r"^InvalidSignature: ") as caught:
        authority().verify(sign("sb://host/orders", ROOT_POLICY, generate_key(), LATER))
    assert not caught.value.expired


def test_the_key_of_another_policy_is_refused() -> None:
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(sign("sb://host/orders", ROOT_POLICY, SENDER.primary_key, LATER))


def test_unknown_policy_gives_the_same_error_as_a_wrong_key() -> None:
    with pytest.raises(UnauthorizedError) as wrong_key:
        authority().verify(sign("sb://host/orders", ROOT_POLICY, "wrong", LATER))
    with pytest.raises(UnauthorizedError) as unknown:
        authority().verify(sign("sb://host/orders", "unknown", "wrong", LATER))
    assert unknown.value.message == wrong_key.value.message


def test_empty_key_does_not_match_a_missing_secondary_key() -> None:
    policy = AccessPolicy("only", generate_key(), "", frozenset({SEND}))
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        Authority([policy], clock=lambda: NOW).verify(sign("sb://host/q", "only", "", LATER))


@pytest.mark.parametrize(
    ("old", "new"), [("orders", "invoices"), (str(int(LATER)), str(int(LATER) + 1)), (ROOT_POLICY, "sender")]
)
def test_a_token_changed_after_signing_is_refused(old: str, new: str) -> None:
    token = sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, LATER)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(token.replace(old, new))


def test_signature_over_different_text_is_refused() -> None:
    token = signed_as_sent("sb://host/orders").replace("sr=sb://host/orders", f"sr={quote_plus('sb://host/orders')}")
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(token)


def test_unencoded_plus_sign_in_the_signature_is_accepted() -> None:
    uris = (f"sb://host/orders-{number}" for number in range(1000))
    token = next(token for uri in uris if "%2B" in (token := sign(uri, ROOT_POLICY, ROOT.primary_key, LATER)))
    assert authority().verify(token.replace("%2B", "+"))


# Expiry


def test_expired_token_is_refused_as_expired() -> None:
    with pytest.raises(UnauthorizedError, match=r"^ExpiredToken: .*'2023-11-14 22:13:19Z'") as caught:
        authority().verify(sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, NOW - 1))
    assert caught.value.expired


def test_token_is_expired_at_its_expiry_second() -> None:
    assert authority().verify(sign("sb://host", ROOT_POLICY, ROOT.primary_key, NOW + 1))
    with pytest.raises(UnauthorizedError, match="ExpiredToken"):
        authority().verify(sign("sb://host", ROOT_POLICY, ROOT.primary_key, NOW))


def test_expired_token_with_a_wrong_key_is_an_invalid_signature() -> None:
    with pytest.raises(UnauthorizedError, match="InvalidSignature") as caught:
        authority().verify(sign("sb://host/orders", ROOT_POLICY, "wrong", NOW - 1))
    assert not caught.value.expired


@pytest.mark.parametrize("expiry", ["", "soon", "-1", "1e9", "1700003600.5", "9" * 13, "9" * 5000, "١٧٠٠٠٠٣٦٠٠"])
def test_an_expiry_that_is_not_whole_seconds_is_malformed(expiry: str) -> None:
    with pytest.raises(UnauthorizedError, match=r"^MalformedToken: "):
        authority().verify(signed_as_sent("sb://host/orders", expiry=expiry))


# Audiences


@pytest.mark.parametrize(
    "resource",
    [
        "sb://127.0.0.1:5672/Orders",
        "SB://HOST/orders/",
        "amqp://host/orders",
        "amqps://host:5671//orders",
        "http://host/orders?api-version=2021-05",
        "host/orders",
        "host:5672/orders",
        "[::1]:5672/orders",
        quote_plus("sb://127.0.0.1:5672/orders"),
        quote("sb://127.0.0.1:5672/orders", safe=""),
        quote_plus("https://host/orders").lower(),
        "sb%3A//host/orders",
    ],
)
def test_audience_spellings_are_accepted(resource: str) -> None:
    grant = authority().verify(signed_as_sent(resource), resource="orders")
    assert grant.audience.lower() == "orders"


@pytest.mark.parametrize("resource", ["sb://host", "https://host:5672/", "localhost", "127.0.0.1", "host:5672"])
def test_an_audience_without_path_is_the_whole_namespace(resource: str) -> None:
    assert authority().verify(signed_as_sent(resource)).audience == ""


@pytest.mark.parametrize(
    "resource", ["orders", "orders.new", "ftp://host/orders", "sb://", "sb:///orders", "/orders", "a:b:c/q"]
)
def test_an_audience_that_names_no_host_is_refused(resource: str) -> None:
    with pytest.raises(UnauthorizedError, match=r"^InvalidAudience: "):
        authority().verify(signed_as_sent(resource))


def test_token_fields_may_be_in_any_order_and_case() -> None:
    scheme, _, rest = sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, LATER).partition(" ")
    fields = [field.replace("sr=", "SR=") for field in reversed(rest.split("&"))]
    assert authority().verify(f"{scheme.lower()} {'&'.join(fields)}").audience == "orders"


def test_token_for_another_entity_is_refused_if_the_resource_is_known() -> None:
    token = sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, LATER)
    with pytest.raises(UnauthorizedError, match=r"^InvalidAudience: "):
        authority().verify(token, resource="invoices")
    assert authority().verify(token, resource="orders/$management")


def test_any_audience_host_is_accepted_unless_hosts_are_listed() -> None:
    token = sign("sb://elsewhere:1/orders", ROOT_POLICY, ROOT.primary_key, LATER)
    assert authority().verify(token)
    with pytest.raises(UnauthorizedError, match=r"^InvalidAudience: "):
        authority(hosts=["contoso", "[::1]"]).verify(token)


@pytest.mark.parametrize("uri", ["sb://CONTOSO:9/orders", "https://[::1]:5672/orders", "contoso"])
def test_a_listed_host_is_accepted_in_any_case_and_on_any_port(uri: str) -> None:
    assert authority(hosts=["contoso", "[::1]"]).verify(sign(uri, ROOT_POLICY, ROOT.primary_key, LATER))


@pytest.mark.parametrize("missing", ["sr", "sig", "se", "skn"])
def test_a_missing_field_is_named(missing: str) -> None:
    scheme, _, rest = sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, LATER).partition(" ")
    fields = [field for field in rest.split("&") if not field.startswith(f"{missing}=")]
    with pytest.raises(UnauthorizedError, match=f"^MalformedToken: .*'{missing}' is missing"):
        authority().verify(f"{scheme} {'&'.join(fields)}")


def test_a_field_given_twice_is_malformed() -> None:
    token = sign("sb://host/orders", ROOT_POLICY, ROOT.primary_key, LATER)
    with pytest.raises(UnauthorizedError, match=r"^MalformedToken: "):
        authority().verify(f"{token}&sr=sb%3A%2F%2Fhost")


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_unauthorized(token: str | None) -> None:
    with pytest.raises(UnauthorizedError, match=r"^MissingToken: "):
        authority().verify(token)


def test_overlong_token_is_refused_without_parsing() -> None:
    with pytest.raises(UnauthorizedError, match="too long"):
        authority().verify("x" * (MAX_TOKEN_LENGTH + 1))


# Entity policies


@pytest.mark.parametrize(
    "path", ["orders", "ORDERS/$DeadLetterQueue", "orders/$management", "events/Subscriptions/billing"]
)
def test_entity_policy_signs_for_the_entity_and_its_nodes(path: str) -> None:
    token = sign(f"sb://host/{path}", "worker", WORKER.primary_key, LATER)
    grant = authority().verify(token, policies_of, resource=path)
    assert grant.allows(path, LISTEN)
    assert not grant.allows(path, SEND)


def test_entity_policy_does_not_sign_for_another_entity() -> None:
    for path in ("invoices", "orders-2", "orders/nested"):
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            authority().verify(sign(f"sb://host/{path}", "worker", WORKER.primary_key, LATER), policies_of)


@pytest.mark.parametrize("uri", ["https://host:5672", "sb://host/a"])
def test_entity_policy_covers_only_the_entity_whatever_the_audience(uri: str) -> None:
    grant = authority().verify(sign(uri, "worker", WORKER.primary_key, LATER), policies_of, resource="a/b")
    assert grant.allows("a/b", LISTEN)
    assert grant.allows("A/B/$DeadLetterQueue", LISTEN)
    for path in ("", "a", "a/c", "a/b/c", "orders", "$Resources/queues"):
        assert not grant.allows(path, LISTEN)


def test_entity_policy_cannot_sign_for_a_namespace_without_a_resource() -> None:
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(sign("https://host", "worker", WORKER.primary_key, LATER), policies_of)


def test_namespace_policy_covers_every_entity() -> None:
    grant = authority().verify(sign("sb://host", "sender", SENDER.secondary_key, LATER), policies_of)
    assert grant.allows("orders", SEND)
    assert grant.allows("no/such/entity", SEND)
    assert not grant.allows("orders", LISTEN)
    assert not grant.allows("orders", MANAGE)


# Grants


def test_manage_includes_send_and_listen() -> None:
    grant = Grant("", frozenset({MANAGE}), LATER)
    assert all(grant.allows("orders", right) for right in Right)


def test_grant_covers_whole_path_segments_only() -> None:
    grant = Grant("orders", frozenset({SEND}), LATER)
    assert grant.allows("Orders", SEND)
    assert grant.allows("/orders/$management/", SEND)
    assert not grant.allows("orders2", SEND)
    assert not grant.allows("", SEND)


def test_missing_right_has_the_service_wording() -> None:
    error = missing_right(LISTEN, "sb://contoso/orders")
    assert error.message == (
        "Unauthorized access. 'Listen' claim(s) are required to perform this operation. "
        "Resource: 'sb://contoso/orders'."
    )


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("orders", "orders"),
        ("a/b/c", "a/b/c"),
        ("orders/$DeadLetterQueue", "orders"),
        ("orders/$Transfer/$DeadLetterQueue", "orders"),
        ("events/Subscriptions/billing/$management", "events"),
        ("events/subscriptions/billing/rules/all", "events"),
        ("subscriptions", "subscriptions"),
        ("$cbs", ""),
        ("$Resources/queues", ""),
        ("", ""),
    ],
)
def test_owner_of_a_path_is_its_queue_or_topic(path: str, owner: str) -> None:
    assert owner_of(path) == owner


# Bearer tokens


BEARER = BearerToken("eyJ.not.signed", frozenset({SEND}), "orders")


@pytest.mark.parametrize("prefix", ["", "Bearer ", "bearer "])
def test_listed_bearer_token_is_accepted_by_value(prefix: str) -> None:
    grant = authority(bearer_tokens=[BEARER]).verify(prefix + BEARER.token, resource="orders")
    assert grant.rights == {SEND}
    assert grant.expires_at == math.inf
    assert not grant.allows("invoices", SEND)


def test_an_unlisted_bearer_token_is_refused() -> None:
    for token in ("eyJ.not.listed", BEARER.token + "x", BEARER.token[:-1], BEARER.token.upper()):
        with pytest.raises(UnauthorizedError, match="InvalidSignature"):
            authority(bearer_tokens=[BEARER]).verify(token)


def test_a_bearer_token_may_expire() -> None:
    with pytest.raises(UnauthorizedError, match="ExpiredToken"):
        authority(bearer_tokens=[replace(BEARER, expires_at=NOW)]).verify(BEARER.token)


def test_a_signature_sent_as_a_bearer_token_is_still_verified() -> None:
    token = sign("https://host", ROOT_POLICY, ROOT.primary_key, LATER)
    assert authority().verify(f"Bearer {token}")
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(f"Bearer {token}".replace(str(int(LATER)), "1800000000"))


# Garbage


@given(st.text(max_size=300))
def test_garbage_is_only_ever_unauthorized(garbage: str) -> None:
    for token in (garbage, f"Bearer {garbage}", f"SharedAccessSignature {garbage}"):
        with pytest.raises(UnauthorizedError):
            authority(bearer_tokens=[BEARER]).verify(token, policies_of, resource=garbage)


ANY_TEXT = st.text(st.characters(), max_size=60)
FIELD = st.one_of(ANY_TEXT, st.sampled_from(["sb://host/q", "%", "%zz", "%ff%fe", "%00", "\udc80", "[", "::", "1"]))


@given(resource=FIELD, signature=FIELD, expiry=FIELD, name=st.one_of(FIELD, st.just(ROOT_POLICY)))
def test_garbage_in_the_fields_is_only_ever_unauthorized(resource: str, signature: str, expiry: str, name: str) -> None:
    token = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"
    with pytest.raises(UnauthorizedError):
        authority().verify(token, policies_of)


@given(resource=ANY_TEXT.filter(lambda text: "&" not in text))
def test_a_well_signed_garbage_audience_is_a_grant_or_unauthorized(resource: str) -> None:
    digest = hmac.new(ROOT.primary_key.encode(), f"{resource}\n1700003600".encode("utf-8", "surrogatepass"), "sha256")
    signature = quote_plus(base64.b64encode(digest.digest()))
    token = f"SharedAccessSignature sr={resource}&sig={signature}&se=1700003600&skn={ROOT_POLICY}"
    try:
        grant = authority().verify(token, policies_of)
    except UnauthorizedError:
        return
    assert grant.rights == ALL_RIGHTS


@given(st.text(max_size=80), st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_own_signature_is_accepted(path: str, name: str, key: str) -> None:
    policy = AccessPolicy(name, key, "", ALL_RIGHTS)
    grant = Authority([policy], clock=lambda: NOW).verify(sign(f"sb://host/{path}", name, key, LATER))
    assert grant.expires_at == LATER


# Keys


def test_generated_key_is_32_random_bytes_in_base64() -> None:
    keys = {generate_key() for _ in range(10)}
    assert len(keys) == 10
    assert all(len(base64.b64decode(key, validate=True)) == 32 for key in keys)


def test_no_repr_shows_a_secret() -> None:
    policy = AccessPolicy("p", "first-secret", "second-secret", ALL_RIGHTS)
    bearer = BearerToken("third-secret", ALL_RIGHTS)
    for value in (
        policy,
        bearer,
        Authority([policy], bearer_tokens=[bearer]),
        [policy],
        {"p": bearer},
    ):
        assert "secret" not in repr(value) + str(value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "n" * 257}, "256"),
        ({"primary_key": ""}, "primary_key"),
        ({"primary_key": "k" * 257}, "primary_key"),
        ({"secondary_key": "k" * 257}, "secondary_key"),
        ({"rights": frozenset()}, "rights"),
    ],
)
def test_out_of_bounds_policy_names_the_field(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(ROOT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"token": ""}, "token"), ({"rights": frozenset()}, "rights"), ({"expires_at": math.nan}, "expires_at")],
)
def test_out_of_bounds_bearer_token_names_the_field(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(BEARER, **change)  # type: ignore[arg-type]


# Connection strings


def test_connection_string_is_complete_for_a_client() -> None:
    policy = AccessPolicy(ROOT_POLICY, "c2VjcmV0", "", ALL_RIGHTS)
    assert connection_string("127.0.0.1", 5672, policy) == (
        "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "broker.test"])
@pytest.mark.parametrize("entity", [None, "orders"])
def test_the_sdk_reads_the_connection_string(host: str, entity: str | None) -> None:
    written = connection_string(host, 5673, ROOT, entity)
    read = parse_connection_string(written)
    expected = "[::1]" if "::1" in host else host
    assert read.fully_qualified_namespace == f"{expected}:5673"
    assert (read.shared_access_key_name, read.shared_access_key) == (ROOT_POLICY, ROOT.primary_key)
    assert read.entity_path == entity


def test_twinbus_clients_read_the_connection_string() -> None:
    read = ConnectionString.parse(connection_string("::1", 5673, ROOT, "orders"))
    assert (read.authority, read.entity_path, read.use_tls) == ("[::1]:5673", "orders", False)
    assert (read.key_name, read.key) == (ROOT.name, ROOT.primary_key)


@pytest.mark.parametrize(
    ("host", "port", "name", "entity", "named"),
    [
        ("", 1, "n", None, "host"),
        ("h", 1, "a;b", None, "policy_name"),
        ("h", 0, "n", None, "port"),
        ("h", 1, "n", "", "entity"),
    ],
)
def test_values_a_connection_string_cannot_hold_are_refused(
    host: str, port: int, name: str, entity: str | None, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        connection_string(host, port, replace(ROOT, name=name), entity)
