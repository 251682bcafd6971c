"""Requests that no SDK sends, written byte by byte."""

from __future__ import annotations

import http.client
import time
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as ET

import pytest
from tests.emulator.admin.conftest import POLICY, Served

from twinbus.emulator.admin import incoming
from twinbus.emulator.admin.api import MAX_SUBSCRIPTIONS_PER_TOPIC
from twinbus.emulator.admin.incoming import MAX_BODY_BYTES
from twinbus.emulator.auth.security import sign
from twinbus.servicebus.entity_descriptions import Counts, SubscriptionDescription, TopicDescription

SERVICE_BUS = b"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = b"http://www.w3.org/2001/XMLSchema-instance"


def entry(kind: bytes = b"QueueDescription", properties: bytes = b"") -> bytes:
    description = b'<%b xmlns="%b" xmlns:i="%b">%b</%b>' % (kind, SERVICE_BUS, INSTANCE, properties, kind)
    return b'<entry xmlns="http://www.w3.org/2005/Atom"><content>%b</content></entry>' % description


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        root = ET.fromstring(self.body)
        assert root.findtext("Code") == str(self.status)
        return root.findtext("Detail") or ""


def send(
    served: Served, method: str, path: str, body: bytes | None = None, *, signed: bool = True, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection(served.host, timeout=10)
    token = sign(f"https://{served.host}", POLICY.name, POLICY.primary_key, time.time() + 60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if signed:
        sent["Authorization"] = token
    try:
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def test_create_answers_201_and_update_200(served: Served) -> None:
    created = send(served, "PUT", "/q?api-version=2021-05", entry())
    assert created.status == 201
    assert created.headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert send(served, "PUT", "/q?api-version=2021-05", entry(), If_Match="*").status == 200
    assert send(served, "DELETE", "/q").status == 200


def test_get_missing_queue_returns_an_empty_feed(served: Served) -> None:
    answer = send(served, "GET", "/nothing?enrich=false&api-version=2024-05")
    assert answer.status == 200
    feed = ET.fromstring(answer.body)
    assert feed.tag == "{http://www.w3.org/2005/Atom}feed"
    assert feed.find("{http://www.w3.org/2005/Atom}entry") is None


def test_slashes_in_a_path_may_be_encoded_or_not(served: Served) -> None:
    assert send(served, "PUT", "/a%2Fb", entry()).status == 201
    assert b'<title type="text">a/b</title>' in send(served, "GET", "/a/b").body
    assert send(served, "PUT", "/A/B", entry()).status == 409


def test_a_missing_token_is_refused_before_anything_else(served: Served) -> None:
    for method, path in (
        ("GET", "/$Resources/queues"),
        ("PUT", "/q"),
        ("POST", "/nothing"),
        ("GET", "/$namespaceinfo"),
    ):
        answer = send(served, method, path, signed=False)
        assert answer.status == 401
        assert answer.detail.startswith("MissingToken")


def test_wrong_method_is_refused_with_allow_header(served: Served) -> None:
    answer = send(served, "POST", "/q")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, PUT, DELETE")
    answer = send(served, "DELETE", "/$Resources/queues")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_update_and_delete_require_the_current_etag(served: Served) -> None:
    seen = send(served, "PUT", "/q", entry()).headers["ETag"]
    assert send(served, "GET", "/q").headers["ETag"] == seen
    queue = served.registry.find("q")
    assert queue is not None
    queue.updated_at += 1
    for method, body in (("PUT", entry()), ("DELETE", None)):
        answer = send(served, method, "/q", body, If_Match=f'"{seen}"')
        assert (answer.status, "has changed" in answer.detail) == (412, True)
    now = send(served, "GET", "/q").headers["ETag"]
    assert int(now) - int(seen) == 10_000_000
    changed = send(served, "PUT", "/q", entry(), If_Match=now)
    assert changed.status == 200
    assert send(served, "DELETE", "/q", If_Match=changed.headers["ETag"]).status == 200


def test_rules_use_the_etag_of_their_subscription(served: Served) -> None:
    rule = b'<Filter i:type="TrueFilter"/><Name>r</Name>'
    assert send(served, "PUT", "/t", entry(b"TopicDescription")).status == 201
    seen = send(served, "PUT", "/t/subscriptions/s", entry(b"SubscriptionDescription")).headers["ETag"]
    assert send(served, "PUT", "/t/subscriptions/s/rules/r", entry(b"RuleDescription", rule)).status == 201
    for path in ("/t/subscriptions/s", "/t/subscriptions/s/rules/r"):
        assert send(served, "DELETE", path, If_Match="1").status == 412
    assert seen
    assert send(served, "DELETE", "/t/subscriptions/s/rules/r", If_Match="*").status == 200
    assert send(served, "DELETE", "/t/subscriptions/s", If_Match="*").status == 200


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("startswith(path, 'a')", ["a1", "a2"]),
        ("StartsWith(Path,'A') Eq False", ["b1"]),
        ("messageCount gt 4", ["a2", "b1"]),
        ("startswith(path, 'a') eq true and messageCount ge 5 AND messageCount lt 6", ["a2"]),
        ("modifiedAt lt '2000-01-01T00:00:00Z'", []),
        ("createdAt gt '2000-01-01'", ["a1", "a2", "b1"]),
        ("accessedAt eq '1970-01-01T00:00:00'", ["a1", "a2", "b1"]),
        ("startswith(path, ' and ')", []),
    ],
)
def test_list_applies_its_filter(served: Served, condition: str, shown: list[str]) -> None:
    for number, name in enumerate(("a1", "a2", "b1")):
        assert send(served, "PUT", f"/{name}", entry()).status == 201
        queue = served.registry.find(name)
        assert queue is not None
        queue.counts = Counts(active=5 * number)
    answer = send(served, "GET", f"/$Resources/queues?$filter={quote(condition)}")
    titles = ET.fromstring(answer.body).iterfind("{*}entry/{*}title")
    assert [title.text for title in titles] == shown


def test_next_page_link_keeps_the_filter(served: Served) -> None:
    for name in ("a1", "b1", "a2", "b2", "a3"):
        assert send(served, "PUT", f"/{name}", entry()).status == 201
    condition = quote("startswith(path, 'a') eq true")
    target: str | None = f"/$Resources/queues?$filter={condition}&$top=1"
    shown = []
    while target is not None:
        page = ET.fromstring(send(served, "GET", target).body)
        shown += [title.text for title in page.iterfind("{*}entry/{*}title")]
        links = [link.attrib["href"] for link in page.iterfind("{*}link") if link.attrib["rel"] == "next"]
        target = urlsplit(links[0])._replace(scheme="", netloc="").geturl() if links else None
    assert shown == ["a1", "a2", "a3"]


def test_filter_is_refused_for_rules(served: Served) -> None:
    assert send(served, "PUT", "/t", entry(b"TopicDescription")).status == 201
    assert send(served, "PUT", "/t/subscriptions/s", entry(b"SubscriptionDescription")).status == 201
    answer = send(served, "GET", "/t/subscriptions/s/rules?$filter=messageCount%20gt%201")
    assert (answer.status, "$filter" in answer.detail) == (400, True)


@pytest.mark.parametrize(
    "condition", ["", "x" * 3000, "path eq 'a'", "messageCount gt many", "createdAt gt noon", "1=1; drop", "a or b"]
)
def test_invalid_filter_is_refused(served: Served, condition: str) -> None:
    answer = send(served, "GET", f"/$Resources/queues?$filter={quote(condition)}")
    assert (answer.status, "$filter" in answer.detail) == (400, True)


def test_authorization_rule_without_a_key_gets_a_new_one_on_update(served: Served) -> None:
    rule = (
        b'<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey'
        b"</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights>"
        b"<KeyName>sender</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    assert send(served, "PUT", "/q", entry(properties=rule)).status == 201
    keys = {key.text for key in ET.fromstring(send(served, "GET", "/q").body).iterfind(".//{*}PrimaryKey")}
    assert send(served, "PUT", "/q", entry(properties=rule), If_Match="*").status == 200
    keys |= {key.text for key in ET.fromstring(send(served, "GET", "/q").body).iterfind(".//{*}PrimaryKey")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "not well-formed XML: no element found"),
        (b"<entry", "not well-formed XML"),
        (b"<!DOCTYPE entry><entry/>", "must not have a document type declaration"),
        (b"<entry/>", "must be an entry of http://www.w3.org/2005/Atom"),
        (
            entry(b"RuleDescription"),
            "Expected one of QueueDescription, TopicDescription, not RuleDescription",
        ),
        (
            entry(properties=b"<LockDuration>PT6M</LockDuration>"),
            "exceeds the allowed maximum of '5' minutes",
        ),
        (
            entry(properties=b"<LockDuration>6</LockDuration>"),
            "'LockDuration' is invalid: '6' is not an ISO 8601",
        ),
    ],
)
def test_invalid_body_is_refused_with_the_reason(served: Served, body: bytes, detail: str) -> None:
    answer = send(served, "PUT", "/q", body)
    assert answer.status == 400
    assert answer.detail.startswith("SubCode=40000. ")
    assert detail in answer.detail
    assert "TrackingId:" in answer.detail
    assert served.registry.find("q") is None


def test_large_body_is_refused(served: Served) -> None:
    # A long comment is valid XML.
    answer = send(served, "PUT", "/q", entry(properties=b"<!--%b-->" % (b"x" * MAX_BODY_BYTES)))
    assert answer.status == 413
    assert str(MAX_BODY_BYTES) in answer.detail


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/%ff%fe", "The path must be UTF-8"),
        ("/q?api-version=latest", "api-version must be one of 2017-04 to 2024-05"),
        ("/q?api-version=2016-07", "api-version must be one of 2017-04 to 2024-05"),
        ("/q?api-version=2099-01", "api-version must be one of 2017-04 to 2024-05"),
        ("/$Resources/queues?$skip=-1", "$skip must be a whole number"),
        ("/$Resources/queues?$top=ten", "$top must be a whole number"),
    ],
)
def test_invalid_url_is_refused(served: Served, path: str, detail: str) -> None:
    answer = send(served, "GET", path)
    assert answer.status == 400
    assert detail in answer.detail


def test_invalid_host_header_is_refused(served: Served) -> None:
    assert send(served, "GET", "/q", Host="<b>").status == 400


def test_error_replaces_characters_that_xml_does_not_allow(served: Served) -> None:
    answer = send(served, "PUT", "/a%00%0Ab", entry())
    assert answer.status == 400
    assert "a\ufffd\nb" in answer.detail


def test_page_has_at_most_100_entries(served: Served) -> None:
    for number in range(101):
        assert send(served, "PUT", f"/q{number:03}", entry()).status == 201
    body = send(served, "GET", "/$resources/QUEUES?$top=1000&api-version=2021-05").body
    feed = ET.fromstring(body)
    assert len(feed.findall("{http://www.w3.org/2005/Atom}entry")) == 100
    following = feed.findall("{http://www.w3.org/2005/Atom}link")[1]
    assert following.attrib == {
        "rel": "next",
        "href": f"http://{served.host}/$Resources/queues?api-version=2021-05&%24skip=100&%24top=100",
    }
    last = send(served, "GET", "/$Resources/queues?%24skip=100&%24top=100").body
    assert last.count(b'<link rel="next"') == 0
    assert last.count(b"<entry>") == 1


def test_subscription_with_invalid_default_rule_is_refused(served: Served) -> None:
    assert send(served, "PUT", "/t", entry(b"TopicDescription")).status == 201
    rule = b'<DefaultRuleDescription><Filter i:type="%b"/><Name>$Default</Name></DefaultRuleDescription>'
    path, kind = "/t/Subscriptions/s", b"SubscriptionDescription"
    assert send(served, "PUT", path, entry(kind, rule % b"SqlFilter")).status == 400
    assert send(served, "PUT", path, entry(b"QueueDescription")).status == 400
    assert send(served, "PUT", path, entry(kind, rule % b"TrueFilter")).status == 201


async def test_topic_has_a_maximum_of_subscriptions(served: Served) -> None:
    await served.registry.create(TopicDescription("t"))
    for number in range(MAX_SUBSCRIPTIONS_PER_TOPIC):
        await served.registry.create_subscription(SubscriptionDescription("t", f"s{number}"))
    answer = send(served, "PUT", "/t/subscriptions/one-more", entry(b"SubscriptionDescription"))
    assert answer.status == 403
    assert "at most 2000 subscriptions" in answer.detail


def test_update_keeps_omitted_fixed_properties(served: Served) -> None:
    assert send(served, "PUT", "/q", entry(properties=b"<RequiresSession>true</RequiresSession>")).status == 201
    assert send(served, "PUT", "/q", entry(), If_Match="*").status == 200
    queue = served.registry.queues()[0].description
    assert queue.requires_session


def test_incomplete_body_times_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "_BODY_SECONDS", 0.05)
    # Declares a byte that is never sent.
    answer = send(served, "PUT", "/q", b"", Content_Length="1")
    assert answer.status == 408


@pytest.mark.parametrize("coding", ["deflate", "gzip", "br", "nonsense"])
def test_body_with_wrong_content_encoding_is_refused(served: Served, coding: str) -> None:
    answer = send(served, "PUT", "/q", b"\x00\xff" * 50, Content_Encoding=coding)
    assert answer.status == 400
