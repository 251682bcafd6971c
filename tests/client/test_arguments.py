"""Arguments of the paired client, in twinbus's forms and the SDK's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage

import twinbus
import twinbus.aio
from twinbus import Namespace, Route, SendAvailabilityOptions
from twinbus.client.client_arguments import Arguments, read_arguments

KEY = "c2VjcmV0"


class Token:
    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        raise AssertionError("nothing is opened")


class AsyncToken:
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        raise AssertionError("nothing is opened")


CREDENTIALS = [Token(), AsyncToken(), AzureNamedKeyCredential("name", KEY), AzureSasCredential("se=1&sig=c2Vj&sr=x")]
TOKEN = CREDENTIALS[0]


def text(host: str) -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName=name;SharedAccessKey={KEY}"


PRIMARY, SECONDARY, THIRD = text("contoso"), text("standby"), text("third")
OPTIONS = SendAvailabilityOptions(backlog_queue_count=3)


def read(*positional: Any, environment: dict[str, str] | None = None, **named: Any) -> Arguments:
    return read_arguments(positional, named, environment or {})


def hosts(given: Arguments) -> tuple[str, str]:
    return given.primary.fully_qualified_namespace, given.secondary.fully_qualified_namespace


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((PRIMARY, SECONDARY, OPTIONS), {}),
        ((PRIMARY, SECONDARY), {"options": OPTIONS}),
        ((PRIMARY,), {"secondary": SECONDARY, "options": OPTIONS}),
        ((), {"primary": PRIMARY, "secondary": SECONDARY, "options": OPTIONS}),
        ((("contoso", TOKEN), ("standby", TOKEN), OPTIONS), {}),
        ((Namespace("contoso", TOKEN), Namespace("standby", TOKEN), OPTIONS), {}),
        (("contoso", TOKEN, OPTIONS), {"secondary": "standby"}),
        (("contoso", TOKEN, OPTIONS), {"secondary": ("standby", CREDENTIALS[2])}),
        (("contoso", TOKEN, OPTIONS), {"secondary": SECONDARY}),
        (("contoso", TOKEN, OPTIONS), {"secondary": Namespace("standby", TOKEN)}),
        (("sb://contoso/",), {"credential": TOKEN, "secondary": "standby", "options": OPTIONS}),
        (("contoso", "standby", OPTIONS), {"credential": TOKEN}),
        (
            (),
            {"fully_qualified_namespace": "contoso", "credential": TOKEN, "secondary": "standby", "options": OPTIONS},
        ),
    ],
)
def test_every_form_names_two_namespaces(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    given = read(*positional, **named, environment={"TWINBUS_SECONDARY": THIRD, "TWINBUS_SECONDARY_NAMESPACE": "third"})
    assert hosts(given) == ("contoso", "standby")
    assert given.options is OPTIONS


@pytest.mark.parametrize("credential", CREDENTIALS, ids=lambda one: type(one).__name__)
def test_second_positional_argument_can_be_a_credential(credential: Any) -> None:
    given = read("contoso", credential, environment={"TWINBUS_SECONDARY_NAMESPACE": "standby"})
    assert hosts(given) == ("contoso", "standby")
    assert given.primary.credential is given.secondary.credential is credential


def test_missing_secondary_is_read_from_the_environment() -> None:
    assert hosts(read(PRIMARY, environment={"TWINBUS_SECONDARY": SECONDARY})) == ("contoso", "standby")
    environment = {"TWINBUS_SECONDARY_NAMESPACE": "standby", "TWINBUS_SECONDARY": THIRD}
    assert hosts(read("contoso", TOKEN, environment=environment)) == ("contoso", "standby")
    assert hosts(read(("contoso", TOKEN), environment=environment)) == ("contoso", "standby")


def test_primary_name_is_read_from_the_environment() -> None:
    environment = {"TWINBUS_SECONDARY": SECONDARY, "TWINBUS_PRIMARY_NAME": "shop"}
    assert read(PRIMARY, environment=environment).options.primary_name == "shop"
    named = SendAvailabilityOptions(primary_name="mine")
    assert read(PRIMARY, options=named, environment=environment).options.primary_name == "mine"
    assert read(PRIMARY, SECONDARY, environment=environment).options.primary_name is None


def test_client_options_apply_to_both_except_the_primary_address() -> None:
    given = read(PRIMARY, SECONDARY, user_agent="shop", custom_endpoint_address="sb://gateway")
    assert given.primary.client_options == {"user_agent": "shop", "custom_endpoint_address": "sb://gateway"}
    assert given.secondary.client_options == {"user_agent": "shop"}


@pytest.mark.parametrize(
    ("positional", "named", "error", "message"),
    [
        ((PRIMARY, SECONDARY), {"secondary": THIRD}, TypeError, "secondary was given twice"),
        ((PRIMARY, SECONDARY), {"secondary": SECONDARY}, TypeError, "secondary was given twice"),
        ((PRIMARY,), {"primary": PRIMARY}, TypeError, "primary was given twice"),
        (("contoso", TOKEN), {"fully_qualified_namespace": "x"}, TypeError, "fully_qualified_namespace"),
        (("contoso", TOKEN), {"credential": TOKEN}, TypeError, "credential was given twice"),
        ((PRIMARY, TOKEN), {"secondary": SECONDARY}, TypeError, "credential was given twice"),
        ((("contoso", TOKEN), TOKEN), {"secondary": SECONDARY}, TypeError, "credential was given twice"),
        ((PRIMARY, SECONDARY, OPTIONS), {"options": OPTIONS}, TypeError, "options was given twice"),
        ((PRIMARY, SECONDARY, OPTIONS, 4), {}, TypeError, "at most 3 arguments"),
        ((PRIMARY, SECONDARY, {"strict": True}), {}, TypeError, "options must be a SendAvailabilityOptions"),
        ((PRIMARY, SECONDARY), {"options": "x"}, TypeError, "options must be a SendAvailabilityOptions"),
        ((), {}, TypeError, "primary is missing"),
        ((), {"credential": TOKEN}, TypeError, "primary is missing"),
        (("contoso",), {}, TypeError, "credential must have get_token.* not a NoneType"),
        (("contoso", KEY), {}, TypeError, "credential must have get_token.* not a str"),
        (("contoso", None), {"secondary": SECONDARY}, TypeError, "credential must have get_token.* not a NoneType"),
        (("contoso",), {"secondary": "standby"}, TypeError, "credential must have get_token.* not a NoneType"),
        (("contoso", TOKEN, SECONDARY), {}, TypeError, "options must be a SendAvailabilityOptions, not a str"),
        (((PRIMARY, TOKEN), SECONDARY), {}, ValueError, "primary: fully_qualified_namespace must be the host"),
        ((), {"primary": PRIMARY, "secondary": (SECONDARY, TOKEN)}, ValueError, "secondary: fully_qualified_namespace"),
        (((17, TOKEN), SECONDARY), {}, TypeError, "primary: fully_qualified_namespace must be a str, not 17"),
        ((PRIMARY, SECONDARY), {"user_agent": 7}, TypeError, "user_agent must be a str, not 7"),
        ((PRIMARY, SECONDARY), {"auth_timeout": "7"}, TypeError, "auth_timeout must be a number, not '7'"),
        ((PRIMARY, SECONDARY), {"keep_alive": "7"}, TypeError, "keep_alive must be a number, not '7'"),
        (
            (PRIMARY, SECONDARY),
            {"http_proxy": {"proxy_hostname": f"http://agent:{KEY}@proxy", "proxy_port": 3128}},
            ValueError,
            "proxy_hostname must have no login",
        ),
        (("contoso", object()), {}, TypeError, "credential must have get_token.* not a object"),
        (("contoso", KEY), {"secondary": SECONDARY}, TypeError, "credential must have get_token.* not a str"),
        (("contoso", 7), {"secondary": ("standby", TOKEN)}, TypeError, "credential must have get_token.* not a int"),
        (("contoso", Token), {"secondary": "standby"}, TypeError, "credential must have get_token.* not a type"),
        (("contoso",), {"credential": KEY, "secondary": "standby"}, TypeError, "credential must have get_token"),
        ((PRIMARY, ("standby", KEY)), {}, TypeError, "secondary: credential must have get_token"),
        ((PRIMARY, 17), {}, TypeError, "secondary: a namespace is given as a connection string.* not as a int"),
        ((17, SECONDARY), {}, TypeError, "primary: a namespace is given as a connection string.* not as a int"),
        ((PRIMARY, "standby"), {}, ValueError, "secondary: a connection string must be name=value"),
        ((PRIMARY, ""), {}, ValueError, "secondary: Endpoint is missing"),
        (("Endpoint=sb://x", SECONDARY), {}, ValueError, "primary: SharedAccessKeyName is missing"),
        ((PRIMARY,), {}, ValueError, "secondary is missing.*argument secondary.*variable TWINBUS_SECONDARY$"),
        (("contoso", TOKEN), {}, ValueError, "secondary is missing.*variable TWINBUS_SECONDARY_NAMESPACE$"),
        (
            (Namespace("contoso", TOKEN), Namespace("standby", TOKEN)),
            {"retry_total": 3},
            ValueError,
            "client options retry_total apply to no namespace",
        ),
    ],
)
def test_invalid_arguments_are_named(
    positional: tuple[Any, ...], named: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        read(*positional, **named)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("value", ["", "  "])
def test_empty_variable_counts_as_missing(value: str) -> None:
    with pytest.raises(ValueError, match="secondary is missing"):
        read(PRIMARY, environment={"TWINBUS_SECONDARY": value})


def test_invalid_variable_is_named() -> None:
    with pytest.raises(ValueError, match="TWINBUS_SECONDARY: Endpoint is missing") as raised:
        read(PRIMARY, environment={"TWINBUS_SECONDARY": f"SharedAccessKey={KEY}"})
    assert KEY not in str(raised.value)


# ---- the classes ----


@pytest.fixture(params=["sync", "aio"])
def client_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("TWINBUS_SECONDARY", "TWINBUS_SECONDARY_NAMESPACE", "TWINBUS_PRIMARY_NAME"):
        monkeypatch.delenv(name, raising=False)
    return (twinbus if request.param == "sync" else twinbus.aio).PairedServiceBusClient


def test_from_connection_string_takes_the_secondary_as_an_argument_or_from_the_environment(
    client_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = client_class.from_connection_string(PRIMARY, secondary=SECONDARY, logging_enable=True, retry_total=1)
    assert made.status().secondary == "standby"
    with pytest.raises(ValueError, match="TWINBUS_SECONDARY"):
        client_class.from_connection_string(PRIMARY)
    monkeypatch.setenv("TWINBUS_SECONDARY", THIRD)
    assert client_class.from_connection_string(conn_str=PRIMARY).status().secondary == "third"
    assert client_class.from_connection_string(PRIMARY, secondary=SECONDARY).status().secondary == "standby"
    assert client_class(PRIMARY).fully_qualified_namespace == "contoso"


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (PRIMARY.encode(), TypeError, "conn_str must be a str.* not bytes"),
        (None, TypeError, "conn_str must be a str.* not NoneType"),
        ("contoso", ValueError, "conn_str: a connection string must be name=value"),
        ("", ValueError, "conn_str: Endpoint is missing"),
    ],
)
def test_malformed_connection_string_is_refused(
    client_class: Any, wrong: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        client_class.from_connection_string(wrong, secondary=SECONDARY)
    assert KEY not in str(raised.value)


def test_a_secondary_given_twice_to_from_connection_strings_is_refused(client_class: Any) -> None:
    with pytest.raises(TypeError, match="secondary"):
        client_class.from_connection_strings(PRIMARY, SECONDARY, **{"secondary": THIRD})
    with pytest.raises(TypeError, match="primary was given twice"):
        client_class.from_connection_string(PRIMARY, secondary=SECONDARY, primary=PRIMARY)


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ({"name": 7}, TypeError, "name must be a str"),
        ({"client": b"x"}, TypeError, "client must be a str"),
        ({"recorder": object()}, TypeError, "recorder must have a method record"),
        ({"retry_total": "5"}, TypeError, "retry_total must be a whole number, not '5'"),
        ({"retry_total": True}, TypeError, "retry_total"),
        ({"retry_total": -1}, ValueError, "retry_total must be at least 0"),
        ({"retry_backoff_factor": "1"}, TypeError, "retry_backoff_factor must be a number"),
        ({"retry_backoff_factor": -1}, ValueError, "retry_backoff_factor must be at least 0 s"),
        ({"retry_backoff_max": float("nan")}, ValueError, "retry_backoff_max must be at least 0 s"),
        ({"retry_mode": "random"}, ValueError, "retry_mode must be one of 'exponential', 'fixed', not 'random'"),
        ({"retry_mode": 3}, TypeError, "retry_mode"),
        ({"retry_totl": 3}, TypeError, "retry_totl is not an option of the client: expected retry_total"),
        ({"ssl_context": "file"}, TypeError, "ssl_context must be a SSLContext"),
        ({"use_tls": "no"}, TypeError, "use_tls must be a bool"),
        ({"custom_endpoint_address": 7}, TypeError, "custom_endpoint_address must be a str"),
        ({"socket_timeout": "5"}, TypeError, "socket_timeout must be a number"),
        ({"connection_verify": 7}, TypeError, "connection_verify must be the path of a file"),
        ({"connection_verify": "no-such-file"}, ValueError, "connection_verify must be the path of a file"),
        ({"connection_verify": __file__}, ValueError, "connection_verify must be the path of a file"),
        ({"options": {}}, TypeError, "options must be a SendAvailabilityOptions"),
    ],
)
def test_options_of_a_wrong_type_or_value_are_named(
    client_class: Any, named: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client_class(PRIMARY, SECONDARY, **named)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "error", "message"),
    [
        ("get_queue_sender", (7,), {}, TypeError, "queue_name must be a str"),
        ("get_queue_sender", (" ",), {}, ValueError, "queue_name must be the name"),
        ("get_topic_sender", (None,), {}, TypeError, "topic_name must be a str"),
        ("get_queue_sender", ("orders",), {"client_identifier": 7}, TypeError, "client_identifier must be a str"),
        ("get_topic_sender", ("news",), {"socket_timeout": "5"}, TypeError, "socket_timeout must be a number"),
        ("get_queue_sender", ("orders",), {"socket_timeout": 0}, ValueError, "socket_timeout must be greater than 0"),
        ("get_queue_receiver", (b"orders",), {}, TypeError, "queue_name must be a str"),
        ("get_subscription_receiver", (None, "all"), {}, TypeError, "topic_name must be a str"),
        ("get_subscription_receiver", ("news", 7), {}, TypeError, "subscription_name must be a str"),
        ("fail_over", (7,), {}, TypeError, "entity must be a str"),
        ("fail_back", (None,), {}, TypeError, "entity must be a str"),
    ],
)
def test_arguments_of_client_methods_are_checked(
    client_class: Any, method: str, arguments: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(client_class(PRIMARY, SECONDARY), method)(*arguments, **options)


# ---- senders ----


@pytest.fixture
def sender() -> Iterator[twinbus.PairedSender]:
    """A sender of a pairing that reaches nothing and sends nothing."""
    with twinbus.PairedServiceBusClient(PRIMARY, SECONDARY, SendAvailabilityOptions(create_backlog=False)) as client:
        yield client.get_queue_sender("orders")


SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        (
            "schedule_messages",
            (ServiceBusMessage("x"), "2030-01-01"),
            TypeError,
            "schedule_time_utc must be a datetime",
        ),
        ("schedule_messages", (ServiceBusMessage("x"), date(2030, 1, 1)), TypeError, "schedule_time_utc"),
        ("schedule_messages", ([], None), TypeError, "schedule_time_utc"),
        ("schedule_messages", ("x", SOON), TypeError, "expected a ServiceBusMessage"),
        ("send_messages", (7,), TypeError, "expected a ServiceBusMessage"),
        ("cancel_scheduled_messages", ("17",), TypeError, "sequence_numbers must be whole numbers, not '1'"),
        ("cancel_scheduled_messages", ([1, 2.5],), TypeError, "sequence_numbers must be whole numbers, not 2.5"),
        ("cancel_scheduled_messages", (None,), TypeError, "sequence_numbers must be whole numbers, not None"),
        ("create_message_batch", ("1000",), TypeError, "max_size_in_bytes must be a whole number"),
        ("create_message_batch", (-1,), ValueError, "max_size_in_bytes must be at least 0"),
    ],
)
def test_arguments_of_a_sender_are_checked(
    sender: Any, method: str, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(sender, method)(*arguments)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        ("5", TypeError),
        (True, TypeError),
        ([1], TypeError),
        (0, ValueError),
        (-1, ValueError),
        (float("nan"), ValueError),
    ],
)
def test_timeout_must_be_a_number_above_0(sender: Any, timeout: Any, error: type[Exception]) -> None:
    for method, arguments in (
        ("send_messages", (ServiceBusMessage("x"),)),
        ("send_messages", ([],)),
        ("schedule_messages", (ServiceBusMessage("x"), SOON)),
        ("cancel_scheduled_messages", (1,)),
        ("open_standby", ()),
    ):
        with pytest.raises(error, match="timeout must be"):
            getattr(sender, method)(*arguments, timeout=timeout)


async def test_empty_list_has_the_route_of_a_message() -> None:
    client = twinbus.PairedServiceBusClient(PRIMARY, SECONDARY)
    aio_client = twinbus.aio.PairedServiceBusClient(PRIMARY, SECONDARY)
    sender, aio_sender = client.get_queue_sender("orders"), aio_client.get_queue_sender("orders")
    for route in (Route.PRIMARY, Route.BACKLOG, Route.PRIMARY):
        for receipt in (sender.send_messages([]), await aio_sender.send_messages([])):
            assert receipt == (route, "orders", None, (), 0)
        for one in (client, aio_client):
            (one.fail_over if route is Route.PRIMARY else one.fail_back)("orders")
    client.close()
    await aio_client.close()
