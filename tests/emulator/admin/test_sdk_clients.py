"""The SDK's administration clients, sync and aio, against the API on a real port."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import AuthorizationRule, TrueRuleFilter
from tests.emulator.admin.conftest import NOW, Served
from tests.emulator.admin.memory_registry import MemoryTopic

from twinbus.servicebus.durations import MAX_TICKS
from twinbus.servicebus.entity_descriptions import Counts, QueueDescription

CREATED = datetime.fromtimestamp(NOW, UTC)
QUEUE = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=11, microseconds=1),
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_express": False,
    "enable_partitioning": False,
    "lock_duration": timedelta(seconds=13),
    "max_delivery_count": 2147483647,
    "max_size_in_megabytes": 5120,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": "a < b & c\n\N{SNOWMAN}",
}
TOPIC = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "default_message_time_to_live": timedelta(minutes=11),
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_express": True,
    "enable_partitioning": False,
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": False,
    "support_ordering": False,
    "user_metadata": "prices",
}
SUBSCRIPTION = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=11),
    "enable_batched_operations": False,
    "lock_duration": timedelta(minutes=5),
    "max_delivery_count": 14,
    "requires_session": True,
    "user_metadata": "audit",
}


def differences(properties: Any, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: properties[name] for name, value in expected.items() if properties[name] != value}


def renamed(properties: Any, name: str) -> Any:
    properties.name = name
    return properties


def test_a_queue_keeps_every_property(admin: Any) -> None:
    created = admin.create_queue("orders", **QUEUE)
    assert differences(created, QUEUE) == {}
    found = admin.get_queue("orders")
    assert found == created
    assert (found.status, found.availability_status) == ("Active", "Available")
    assert found.max_message_size_in_kilobytes == 256


def test_a_topic_keeps_every_property(admin: Any) -> None:
    created = admin.create_topic("prices", **TOPIC)
    assert differences(created, TOPIC) == {}
    assert admin.get_topic("prices") == created


def test_a_subscription_keeps_every_property(admin: Any) -> None:
    admin.create_topic("prices")
    created = admin.create_subscription("prices", "audit", **SUBSCRIPTION)
    assert differences(created, SUBSCRIPTION) == {}
    assert admin.get_subscription("prices", "audit") == created


def test_new_entity_has_the_exact_maximum_durations(admin: Any, served: Served) -> None:
    admin.create_queue("orders")
    kept = served.registry.queues()[0].description
    assert kept == QueueDescription("orders")
    assert kept.default_message_time_to_live == MAX_TICKS


def test_path_may_contain_slashes(admin: Any) -> None:
    path = "contoso/x-servicebus-transfer/0"
    assert admin.create_queue(path, max_size_in_megabytes=5120).name == path
    assert admin.get_queue(path).max_size_in_megabytes == 5120
    assert [queue.name for queue in admin.list_queues()] == [path]
    admin.delete_queue(path)
    assert list(admin.list_queues()) == []


def test_names_are_case_insensitive_and_keep_their_case(admin: Any) -> None:
    admin.create_queue("Orders")
    assert admin.get_queue("ORDERS").max_delivery_count == 10
    with pytest.raises(ResourceExistsError):
        admin.create_queue("orders")
    admin.update_queue(admin.get_queue("orders"), max_delivery_count=3)
    assert [(queue.name, queue.max_delivery_count) for queue in admin.list_queues()] == [("Orders", 3)]
    admin.create_topic("Prices")
    admin.create_subscription("prices", "Audit")
    assert admin.get_subscription("PRICES", "AUDIT").max_delivery_count == 10
    assert [each.name for each in admin.list_subscriptions("pRiCes")] == ["Audit"]
    admin.delete_subscription("prices", "audit")
    admin.delete_queue("oRDERS")


def test_a_queue_and_a_topic_cannot_have_the_same_name(admin: Any) -> None:
    admin.create_queue("same")
    with pytest.raises(ResourceExistsError, match="SubCode=40900"):
        admin.create_topic("same")
    with pytest.raises(HttpResponseError, match="'same' is a Queue, not a Topic"):
        admin.update_topic(renamed(admin.create_topic("other"), "same"))


@pytest.mark.parametrize("name", ["white space", "a" * 261, "q?", "a//b", "/q", "q/", "über"])
def test_invalid_name_is_refused(admin: Any, name: str) -> None:
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        admin.create_queue(name)


def test_update_replaces_changeable_properties(admin: Any) -> None:
    queue = admin.create_queue("orders", user_metadata="old", forward_to=None)
    queue.lock_duration = timedelta(seconds=20)
    queue.user_metadata = None
    queue.status = "ReceiveDisabled"
    admin.update_queue(queue)
    found = admin.get_queue("orders")
    assert (found.lock_duration, found.user_metadata) == (timedelta(seconds=20), None)
    assert found.status == "ReceiveDisabled"


@pytest.mark.parametrize(
    "change",
    [
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"enable_partitioning": True},
        {"lock_duration": timedelta(minutes=5, seconds=1)},
        {"max_message_size_in_kilobytes": 1024},
        {"max_delivery_count": 0},
        {"status": "Deleting"},
        {"forward_to": "nowhere"},
        {"forward_to": "sb://elsewhere.example/orders"},
    ],
)
def test_refused_update_changes_nothing(admin: Any, change: dict[str, Any]) -> None:
    queue = admin.create_queue("orders")
    with pytest.raises(HttpResponseError, match=r"SubCode=40[04]00") as caught:
        admin.update_queue(queue, **change)
    assert caught.value.status_code == 400
    assert admin.get_queue("orders") == queue


def test_missing_entity_is_not_found(admin: Any) -> None:
    queue, topic = admin.create_queue("orders"), admin.create_topic("prices")
    subscription = admin.create_subscription("prices", "audit")
    for missing in (
        lambda: admin.get_queue("nothing"),
        lambda: admin.get_topic("nothing"),
        lambda: admin.get_queue_runtime_properties("nothing"),
        lambda: admin.get_subscription("prices", "nothing"),
        lambda: admin.get_subscription("nothing", "audit"),
        lambda: admin.get_subscription("orders", "audit"),
        lambda: admin.update_queue(renamed(queue, "nothing")),
        lambda: admin.update_topic(renamed(topic, "nothing")),
        lambda: admin.update_subscription("prices", renamed(subscription, "nothing")),
        lambda: admin.create_subscription("nothing", "audit"),
        lambda: admin.delete_queue("nothing"),
        lambda: admin.delete_topic("nothing"),
        lambda: admin.delete_subscription("prices", "nothing"),
        lambda: list(admin.list_subscriptions("nothing")),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()


def test_existing_entity_cannot_be_created_again(admin: Any) -> None:
    admin.create_topic("prices")
    admin.create_subscription("prices", "audit")
    with pytest.raises(ResourceExistsError, match="The messaging entity 'prices' already exists"):
        admin.create_topic("prices")
    with pytest.raises(ResourceExistsError, match="'prices/Subscriptions/audit' already exists"):
        admin.create_subscription("prices", "audit")


def test_long_list_is_paged_and_sorted_by_name(admin: Any) -> None:
    names = [f"queue-{number:03}" for number in range(205)]
    for name in reversed(names):
        admin.create_queue(name)
    assert [queue.name for queue in admin.list_queues()] == names
    assert [queue.name for queue in admin.list_queues(max_page_size=7, start_index=200)] == names[200:]
    assert list(admin.list_queues(max_page_size=0)) == []
    with pytest.raises(HttpResponseError, match=r"\$skip must be a whole number"):
        list(admin.list_queues(start_index=-1))
    with pytest.raises(HttpResponseError, match=r"\$top must be a whole number"):
        list(admin.list_queues(max_page_size=-1))


def test_queues_topics_and_subscriptions_are_listed_separately(admin: Any) -> None:
    admin.create_queue("orders")
    admin.create_topic("prices")
    admin.create_subscription("prices", "b")
    admin.create_subscription("prices", "a")
    assert [queue.name for queue in admin.list_queues()] == ["orders"]
    assert [topic.name for topic in admin.list_topics()] == ["prices"]
    assert [each.name for each in admin.list_subscriptions("prices")] == ["a", "b"]


def test_runtime_properties_of_a_queue(admin: Any, served: Served) -> None:
    admin.create_queue("orders")
    entity = served.registry.queues()[0]
    entity.counts, entity.size_in_bytes = Counts(1, 2, 3, 4, 5), 4096
    entity.accessed_at = NOW + 1
    found = admin.get_queue_runtime_properties("orders")
    assert found.total_message_count == 15
    assert found.active_message_count == 1
    assert found.dead_letter_message_count == 2
    assert found.scheduled_message_count == 3
    assert found.transfer_dead_letter_message_count == 4
    assert found.transfer_message_count == 5
    assert found.size_in_bytes == 4096
    assert (found.created_at_utc, found.updated_at_utc) == (CREATED, CREATED)
    assert found.accessed_at_utc == CREATED + timedelta(seconds=1)


def test_runtime_properties_of_topics_and_subscriptions(admin: Any, served: Served) -> None:
    admin.create_topic("prices")
    admin.create_subscription("prices", "audit")
    topic = served.registry.find("prices")
    assert isinstance(topic, MemoryTopic)
    topic.counts, topic.size_in_bytes = Counts(scheduled=2), 10
    topic.subscriptions["audit"].counts = Counts(active=7, transfer=1)
    found = admin.get_topic_runtime_properties("prices")
    assert (found.subscription_count, found.scheduled_message_count, found.size_in_bytes) == (1, 2, 10)
    assert found.accessed_at_utc.year == 1
    (runtime,) = admin.list_subscriptions_runtime_properties("prices")
    assert (runtime.active_message_count, runtime.transfer_message_count) == (7, 1)
    assert runtime.total_message_count == 8


def test_forward_target_is_returned_as_url_with_port(admin: Any, served: Served) -> None:
    admin.create_queue("target")
    queue = admin.create_queue("source", forward_to="target", forward_dead_lettered_messages_to="target")
    assert queue.forward_to == f"sb://{served.host}/target"
    assert queue.forward_dead_lettered_messages_to == f"sb://{served.host}/target"
    # The returned description can be sent back, even after the target was deleted.
    admin.delete_queue("target")
    admin.update_queue(queue, max_delivery_count=2)
    found = admin.get_queue("source")
    assert (found.forward_to, found.max_delivery_count) == (queue.forward_to, 2)


def test_authorization_rules_keep_their_times(admin: Any) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=["Send", "Listen"],
        key_name="sender",
        primary_key="cHJpbWFyeQ==",
        secondary_key="c2Vjb25kYXJ5",
    )
    for created in (
        admin.create_queue("orders", authorization_rules=[rule]),
        admin.create_topic("prices", authorization_rules=[rule]),
    ):
        (rule,) = created.authorization_rules
        assert rule.type == "SharedAccessAuthorizationRule"
        assert (rule.claim_type, rule.claim_value) == ("SharedAccessKey", "None")
        assert (rule.key_name, rule.primary_key) == ("sender", "cHJpbWFyeQ==")
        assert rule.secondary_key == "c2Vjb25kYXJ5"
        assert rule.rights == ["Send", "Listen"]
        assert rule.created_at_utc == rule.modified_at_utc == CREATED


def test_a_partitioned_queue_has_the_size_of_all_its_partitions(admin: Any) -> None:
    queue = admin.create_queue("orders", enable_partitioning=True, max_size_in_megabytes=2048)
    assert queue.max_size_in_megabytes == 16 * 2048
    admin.update_queue(queue, max_delivery_count=3)
    assert admin.get_queue("orders").max_size_in_megabytes == 16 * 2048


def test_namespace_properties_show_name_and_tier(admin: Any) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku) == ("contoso", "Standard")
    assert properties.namespace_type == "Messaging"
    assert properties.created_at_utc == CREATED


def test_new_subscription_has_the_default_rule(admin: Any) -> None:
    admin.create_topic("prices")
    admin.create_subscription("prices", "audit")
    (rule,) = admin.list_rules("prices", "audit")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    assert rule.action is None


def test_a_wrong_key_is_refused(served: Served) -> None:
    with (
        served.sync_client(key="d3Jvbmc=") as client,
        pytest.raises(ClientAuthenticationError, match="InvalidSignature") as caught,
    ):
        list(client.list_queues())
    assert "d3Jvbmc=" not in str(caught.value)


def test_a_policy_of_a_queue_manages_that_queue_only(admin: Any, served: Served) -> None:
    rule = AuthorizationRule(
        rights=["Manage", "Send", "Listen"], key_name="owner", primary_key="b3duZXI=", secondary_key=""
    )
    admin.create_queue("own", authorization_rules=[rule])
    admin.create_queue("foreign")
    with served.sync_client(name="owner", key="b3duZXI=") as client:
        assert client.get_queue("own").name == "own"
        for forbidden in (
            lambda: client.get_queue("foreign"),
            lambda: list(client.list_queues()),
            lambda: client.create_queue("new"),
            lambda: client.update_queue(client.get_queue("own"), forward_to="foreign"),
        ):
            with pytest.raises(ClientAuthenticationError):
                forbidden()


def test_a_right_to_send_does_not_allow_administration(admin: Any, served: Served) -> None:
    rule = AuthorizationRule(rights=["Send"], key_name="sender", primary_key="c2VuZGVy", secondary_key="")
    admin.create_queue("orders", authorization_rules=[rule])
    with (
        served.sync_client(name="sender", key="c2VuZGVy") as client,
        pytest.raises(ClientAuthenticationError, match="Manage claim is required"),
    ):
        client.get_queue("orders")
