"""Mutated requests to the administration API, over real connections that are kept alive."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from urllib.parse import quote

from tests.emulator.fuzz.watch import Watch

from twinbus.emulator import Namespace
from twinbus.emulator.auth.security import ROOT_POLICY, sign

CLIENTS = 8
PATIENCE = 30.0
#: Requests per namespace. It is then discarded, so that growing memory means a leak.
GENERATION = 5000

SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
PATHS = (
    "orders",
    "a/b",
    "events",
    "events/Subscriptions/audit",
    "events/subscriptions/audit/rules/red",
    "events/Subscriptions",
    "events/subscriptions/audit/rules",
    "$Resources/queues",
    "$Resources/topics",
    "$namespaceinfo",
    "",
)
VALUES = (
    "",
    "true",
    "false",
    "1",
    "0",
    "-1",
    "2147483648",
    "99999999999999999999",
    "PT30S",
    "PT0S",
    "P10675199DT2H48M5.4775807S",
    "P99999999999D",
    "-PT1S",
    "PT1H1H",
    "Active",
    "SendDisabled",
    "orders",
    "sb://127.0.0.1/orders",
    "http://[",
    "x" * 300,
    "ü✓\U0001f600",
    "&#0;",
    "&lt;",
    "&undefined;",
    "]]>",
    "1 = 1",
    "color =",
    "(" * 200,
    "a LIKE '%' ESCAPE '%'",
    "NOT " * 60,
)
PROPERTIES = {
    "LockDuration": "PT1M",
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "RequiresSession": "false",
    "DefaultMessageTimeToLive": "P1D",
    "DeadLetteringOnMessageExpiration": "true",
    "MaxDeliveryCount": "10",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "EnableBatchedOperations": "true",
    "Status": "Active",
    "ForwardTo": "orders",
    "UserMetadata": "x",
    "AutoDeleteOnIdle": "P1D",
    "EnablePartitioning": "false",
    "ForwardDeadLetteredMessagesTo": "orders",
    "EnableExpress": "false",
    "MaxMessageSizeInKilobytes": "1024",
    "DeadLetteringOnFilterEvaluationExceptions": "true",
}
FILTERS = (
    "<SqlExpression>color = 'red' AND sys.Label IS NOT NULL</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>",
    "<CorrelationId>1</CorrelationId><Label>x</Label><Properties><KeyValueOfstringanyType><Key>a</Key>"
    '<Value xmlns:d="http://www.w3.org/2001/XMLSchema" i:type="d:int">1</Value></KeyValueOfstringanyType></Properties>',
)
AUTHORIZATION = (
    "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'>"
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights><KeyName>sender</KeyName>"
    "</AuthorizationRule></AuthorizationRules>"
)
QUERIES = (
    "api-version=2021-05",
    "api-version=2017-04&enrich=false",
    "$skip=0&$top=10",
    "$filter=startswith(path,'o') eq true",
    "$filter=messageCount gt 1 and createdAt lt '2026-01-01T00:00:00Z'",
    "api-version=1999-01",
    "$skip=-1",
    "",
)
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_ELEMENT = re.compile(rb"<(\w+)[^<>]*>[^<>]*</\1>")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One unencoded request."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def encoded(self) -> bytes:
        head = b"%b %b HTTP/1.1\r\n" % (self.method.encode(), self.target)
        for name, value in self.headers:
            head += name + b": " + value + b"\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(self.body) + self.body


def valid(random: Random, token: bytes) -> HttpRequest:
    """A random valid request."""
    path, method = random.choice(PATHS), random.choice(("GET", "GET", "PUT", "PUT", "PUT", "DELETE"))
    query = random.choice(QUERIES)
    target = "/" + quote(path, safe="/$") + (f"?{quote(query, safe='=&$(),')}" if query else "")
    headers = [(b"Host", b"127.0.0.1"), (b"Authorization", token), (b"Content-Type", b"application/atom+xml")]
    if random.random() < 0.3:
        headers.append((b"If-Match", random.choice((b"*", b"1", b'W/"2"'))))
    body = description(random, path).encode() if method == "PUT" else b""
    return HttpRequest(method, target.encode(), tuple(headers), body)


def description(random: Random, path: str) -> str:
    """The body of a PUT for an entity or a rule."""
    chosen = random.sample(list(PROPERTIES.items()), random.randint(0, 5))
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in chosen)
    kind = "QueueDescription"
    if "/rules" in path:
        kind, index = "RuleDescription", random.randrange(2)
        name = ("SqlFilter", "CorrelationFilter")[index]
        inner = f'<Filter i:type="{name}">{FILTERS[index]}</Filter><Name>red</Name>'
        inner += '<Action i:type="SqlRuleAction"><SqlExpression>SET seen = 1</SqlExpression></Action>'
    elif path.lower().startswith("events/"):
        kind = "SubscriptionDescription"
    elif path == "events":
        kind = "TopicDescription"
    if kind in ("QueueDescription", "TopicDescription") and random.random() < 0.2:
        inner += AUTHORIZATION
    whole = f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inner}</{kind}>'
    return f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{whole}</content></entry>'


def mutated(request: HttpRequest, random: Random) -> HttpRequest:
    """The request with one part changed: body, path, header or method."""
    choice = random.random()
    if choice < 0.55 and request.body:
        return replace(request, body=_body(request.body, random))
    if choice < 0.75:
        return replace(request, target=_target(request.target, random))
    if choice < 0.9:
        headers = list(request.headers)
        chosen = random.randrange(len(headers))
        name, value = headers[chosen]
        headers[chosen] = (name, _flipped(value, random)) if random.random() < 0.6 else (name, _text(random))
        if random.random() < 0.2:
            headers.pop(random.randrange(len(headers)))
        return replace(request, headers=tuple(headers))
    return replace(
        request, method=random.choice(("POST", "PATCH", "HEAD", "OPTIONS", "PUT", "DELETE", "get", "X" * 40))
    )


def _body(body: bytes, random: Random) -> bytes:
    choice = random.random()
    elements = list(_ELEMENT.finditer(body))
    if choice < 0.7 and elements:
        element = random.choice(elements)
        name = element[1]
        value = random.choice(VALUES).encode()
        other = random.choice((name, name, name, random.choice(list(PROPERTIES)).encode()))
        changed = b"<%b>%b</%b>" % (other, value, other) * random.choice((1, 1, 1, 2, 0))
        return body[: element.start()] + changed + body[element.end() :]
    if choice < 0.8:
        return body[: random.randrange(len(body))]
    if choice < 0.9:
        return _flipped(body, random)
    return random.choice(
        (
            b'<!DOCTYPE x [<!ENTITY a "b">]>' + body,
            b'<?xml version="1.0" encoding="utf-16"?>' + body,
            b"<a>" * random.choice((10, 40, 5000)),
            body * 2,
            random.randbytes(100),
        )
    )


def _target(target: bytes, random: Random) -> bytes:
    choice = random.random()
    if choice < 0.4:
        return target.split(b"?")[0] + b"?" + quote(_text(random)).encode()
    if choice < 0.7:
        extra = random.choice((b"/", b"//", b"/..", b"%00", b"%ff", b"%2F", b"/$DeadLetterQueue", b"/subscriptions/x"))
        return target.replace(b"?", extra + b"?", 1) if b"?" in target else target + extra
    return b"/" + quote(_text(random), safe="/").encode()


def _text(random: Random) -> bytes:
    return random.choice(VALUES + QUERIES).encode().replace(b"\r", b"").replace(b"\n", b"")


def _flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        if changed:
            byte = random.randrange(256)
            changed[random.randrange(len(changed))] = byte if byte not in b"\r\n" else 0x20
    return bytes(changed)


class Client:
    """Sends requests over one connection, and reconnects when it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter

    async def send(self, request: HttpRequest) -> tuple[int, bytes]:
        """The status and body of the answer; status 0 if a new connection was closed without an answer."""
        is_new = self._reader is None
        status, body = await self._send_once(request)
        # The server may have closed a used connection, after a body that it did not read.
        return (status, body) if status or is_new else await self._send_once(request)

    async def _send_once(self, request: HttpRequest) -> tuple[int, bytes]:
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            self._writer.write(request.encoded())
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            bodiless = request.method == "HEAD" or length is None
            body = b"" if bodiless else await self._reader.readexactly(int(length[1]))  # type: ignore[index]
            if b"connection: close" in head.lower() or bodiless:
                self.close()
            return int(head.split(b" ", 2)[1]), body
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return 0, b""

    def close(self) -> None:
        if self._reader is not None:
            self._writer.transport.abort()
            self._reader = None


async def fuzz_requests(seed: int, requests: int, watch: Watch) -> Counter[int]:
    """Send N mutated requests and count the statuses; raises `AssertionError` on a server error."""
    statuses: Counter[int] = Counter()
    done = 0
    while done < requests:
        async with Namespace("fuzz") as namespace:
            token = sign("sb://127.0.0.1", ROOT_POLICY, namespace.policy(ROOT_POLICY).primary_key, time.time() + 3600)
            generation = range(done, min(requests, done + GENERATION))
            shares = [generation[number::CLIENTS] for number in range(CLIENTS)]
            await asyncio.gather(
                *(_send_requests(namespace, seed, share, token.encode(), statuses, watch) for share in shares)
            )
            done = generation.stop
        watch.generation(done)
    return statuses


async def _send_requests(
    namespace: Namespace, seed: int, numbers: range, token: bytes, statuses: Counter[int], watch: Watch
) -> None:
    client = Client(namespace.port)
    try:
        for number in numbers:
            random = Random(f"{seed}/{number}")
            request = mutated(valid(random, token), random)
            async with asyncio.timeout(PATIENCE):
                status, _ = await client.send(request)
            statuses[status] += 1
            watch.check(f"request {number} of seed {seed}", status == 0 or status >= 500)
    finally:
        client.close()
