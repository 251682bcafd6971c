"""Forged tokens and addresses, sent frame by frame, give no extra access."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from tests.emulator.access.conftest import KEYS, OTHER, QUEUE, Records
from tests.emulator.frame_peer import ConnectionEndedError, Peer, receiver_attach, sender_attach
from tests.emulator.raw_client import RawClient, RefusedError

from twinbus.amqp.codec import performatives as amqp
from twinbus.emulator import Namespace
from twinbus.emulator.auth.security import sign

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = "RootManageSharedAccessKey"
HOST = "sb://127.0.0.1"


def token(path: str, key: str = KEYS.root, name: str = ROOT, expires_in: float = 60) -> str:
    return sign(f"{HOST}/{path}".rstrip("/"), name, key, time.time() + expires_in)


async def put(client: RawClient, name: str, body: Any, kind: str = "servicebus.windows.net:sastoken") -> int:
    """Put a token and return the status."""
    answer = await client.request("$cbs", {"operation": "put-token", "type": kind, "name": name}, body)
    return int(answer.properties["status-code"])


@pytest.mark.parametrize("kind", ["servicebus.windows.net:sastoken", "jwt", "nonsense", ""])
async def test_token_type_property_is_ignored(namespace: Namespace, kind: str) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE), kind) == 202
        assert await put(client, f"{HOST}/{QUEUE}", KEYS.bearer, kind) == 202


@pytest.mark.parametrize(
    "name",
    [
        f"{HOST}/{OTHER}",
        f"{HOST}/{QUEUE}/../{OTHER}",
        f"{HOST}/{QUEUE}2",
        f"{HOST}/",
        HOST,
        "",
        "/",
        f"{HOST}/{OTHER}/{QUEUE}",
        f"{HOST}/{OTHER}?{QUEUE}",
        f"{HOST}/{OTHER}%2F{QUEUE}",
        f"{HOST}/ {QUEUE}",
    ],
)
async def test_token_for_one_entity_gives_no_access_to_another_under_any_put_token_name(
    namespace: Namespace, name: str
) -> None:
    async with RawClient(namespace.connection_string) as client:
        await put(client, name, token(QUEUE))  # it may be refused here or at the attach
        for entity in (OTHER, f"{OTHER}/$management", f"{OTHER}/$DeadLetterQueue"):
            with pytest.raises(RefusedError, match="unauthorized-access"):
                await client.receiver(entity, lambda delivery: None)


@pytest.mark.parametrize(
    "address",
    [
        OTHER,
        f"amqps://127.0.0.1/{OTHER}",
        f"/{OTHER}",
        OTHER.upper(),
        f"{QUEUE}/../{OTHER}",
        f"amqps://127.0.0.1/{QUEUE}/../{OTHER}",
        f"amqps://127.0.0.1/{QUEUE}/%2e%2e/{OTHER}",
        f"{QUEUE}/$management/../{OTHER}",
        f"{OTHER}/$management",
        f"{OTHER}/$DeadLetterQueue",
        f"{QUEUE}%00{OTHER}",
        f"{OTHER}#{QUEUE}",
        f"amqps://127.0.0.1/{OTHER}?x={QUEUE}",
    ],
)
async def test_address_spelling_does_not_bypass_the_token(namespace: Namespace, address: str) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE)) == 202
        with pytest.raises(RefusedError) as refused:
            await client.receiver(address, lambda delivery: None)
        assert refused.value.condition in ("amqp:unauthorized-access", "amqp:not-found")
        await client.receiver(QUEUE, lambda delivery: None)


BAD_TOKENS = [
    ("empty", "", 401),
    ("signature missing", f"SharedAccessSignature sr={HOST}&se=99999999999&skn={ROOT}", 401),
    ("signature empty", f"SharedAccessSignature sr={HOST}&sig=&se=99999999999&skn={ROOT}", 401),
    ("expiry not a number", f"SharedAccessSignature sr={HOST}&sig=x&se=soon&skn={ROOT}", 401),
    ("expiry too long", f"SharedAccessSignature sr={HOST}&sig=x&se={'9' * 400}&skn={ROOT}", 401),
    ("fields repeated", f"{token(QUEUE)}&{token(QUEUE)[22:]}", 401),
    ("wrong scheme", token(QUEUE).replace("sb%3A", "ftp%3A"), 401),
    ("expiry changed after signing", token(QUEUE, expires_in=-60).replace("&se=1", "&se=9"), 401),
    ("expired", token(QUEUE, expires_in=-60), 401),
    ("token too long", "SharedAccessSignature " + "x" * 40_000, 401),
    ("number instead of text", 5, 400),
    ("null", None, 400),
    ("bytes not UTF-8", b"\xff\xfe", 401),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), [case[1:] for case in BAD_TOKENS], ids=[case[0] for case in BAD_TOKENS])
async def test_bad_token_is_refused_and_the_connection_stays_usable(
    namespace: Namespace, body: Any, status: int
) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", body) == status
        with pytest.raises(RefusedError, match="unauthorized-access"):
            await client.sender(QUEUE)
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE)) == 202
        await client.sender(QUEUE)


async def test_valid_token_for_a_missing_entity_is_not_found(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/nowhere", token("")) == 404
        assert await put(client, f"{HOST}/nowhere", token("nowhere", key="wrong")) == 401


async def test_bad_token_does_not_replace_a_good_one(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE)) == 202
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE, key="wrong")) == 401
        await client.sender(QUEUE)


async def test_overlong_audience_is_refused(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}/$management/{'x' * 5000}", token(QUEUE)) == 400


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("peek-message", {"from-sequence-number": 0, "message-count": 1}),
        ("renew-lock", {"lock-tokens": [uuid.uuid4()]}),
        ("update-disposition", {"disposition-status": "completed", "lock-tokens": [uuid.uuid4()]}),
        ("receive-by-sequence-number", {"sequence-numbers": [1]}),
        ("get-message-sessions", {"last-updated-time": 0, "skip": 0, "top": 1}),
        ("get-session-state", {"session-id": "a"}),
        ("set-session-state", {"session-id": "a", "session-state": b""}),
    ],
)
async def test_sender_right_allows_no_listen_operation_on_the_management_node(
    namespace: Namespace, operation: str, body: Any
) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE, KEYS.sender, "sender")) == 202
        properties = {"operation": f"com.microsoft:{operation}"}
        answer = (await client.request(f"{QUEUE}/$management", properties, body)).properties
        assert answer["statusCode"] == 401
        assert "'Listen' claim(s) are required" in answer["statusDescription"]
        assert answer["errorCondition"] == "amqp:unauthorized-access"


async def test_listen_right_does_not_allow_scheduling_or_cancelling(namespace: Namespace) -> None:
    async with RawClient(namespace.connection_string) as client:
        assert await put(client, f"{HOST}/{QUEUE}", token(QUEUE, KEYS.listener, "listener")) == 202
        for operation in ("schedule-message", "cancel-scheduled-message"):
            properties = {"operation": f"com.microsoft:{operation}"}
            answer = await client.request(f"{QUEUE}/$management", properties, {"sequence-numbers": [1]})
            assert answer.properties["statusCode"] == 401


# ---- SASL PLAIN ----


async def test_sasl_plain_gives_the_rights_of_the_policy(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        assert await peer.authenticate("PLAIN", f"\0sender\0{KEYS.sender}".encode()) == 0
        await peer.start()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        peer.send(receiver_attach(QUEUE, 1))
        assert (await peer.expect(amqp.Detach)).error.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    "response",
    [b"\0sender\0wrong", f"\0unknown\0{KEYS.root}".encode(), b"", b"\0\0"],
    ids=["wrong key", "unknown policy", "empty", "empty name and key"],
)
async def test_wrong_sasl_plain_credentials_end_the_connection(namespace: Namespace, response: bytes) -> None:
    async with Peer(namespace) as peer:
        assert await peer.authenticate("PLAIN", response) == 1
        with pytest.raises(ConnectionEndedError):
            await peer.next()


async def test_sasl_anonymous_without_a_token_gives_no_access(namespace: Namespace) -> None:
    async with Peer(namespace) as peer:
        await peer.open("ANONYMOUS")
        await peer.begin()
        for handle, attach in enumerate((sender_attach(QUEUE, 0), receiver_attach(f"{QUEUE}/$management", 1))):
            peer.send(attach)
            detached = await peer.expect(amqp.Detach)
            assert (detached.handle, detached.error.condition) == (handle, "amqp:unauthorized-access")


async def test_each_refusal_is_logged_as_one_short_escaped_line(namespace: Namespace, logged: Records) -> None:
    logged.lines.clear()
    nasty = "x\nINFO twinbus.emulator all is well\x1b[2J"
    async with RawClient(namespace.connection_string) as client:
        await put(client, nasty, token(QUEUE, name=nasty))
        await put(client, f"{QUEUE}?{token(QUEUE)}", token(OTHER))
        await put(client, "y" * 1000, token(QUEUE, name="z" * 10_000))
        await put(client, QUEUE, token(QUEUE, name=KEYS.entity))  # a client that swapped name and key
        with pytest.raises(RefusedError):
            await client.sender(nasty)
        with pytest.raises(RefusedError):
            await client.sender(f"{QUEUE}?{token(QUEUE)}")
    for name in (nasty, KEYS.second):
        async with Peer(namespace) as peer:
            assert await peer.authenticate("PLAIN", f"\0{name}\0wrong".encode()) == 1
    refusals = [line for line in logged.lines if "refused" in line]
    assert len(refusals) == 8
    for line in refusals:
        assert line.startswith("INFO twinbus.emulator.auth.refusals contoso refused ")
        assert line.isprintable()
        assert len(line) < 1200
    assert sum("of a policy whose name is a key" in line for line in refusals) == 2


async def test_refusals_log_no_secrets(logged: Records) -> None:
    text = "\n".join(logged.lines)
    for secret in (*KEYS.all(), "sig=", "SharedAccessSignature sr"):
        assert secret not in text
