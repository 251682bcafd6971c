"""The configuration file of `twinbus serve`, and its error messages."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.emulator.auth.security import ROOT_POLICY, AccessPolicy
from twinbus.emulator.config import namespace_file as config_module
from twinbus.emulator.config.namespace_file import (
    MAX_FILE_BYTES,
    Config,
    ConfigError,
    Durability,
    NamespaceConfig,
    PolicyConfig,
    ProfileName,
    load_config,
    parse_config,
)
from twinbus.emulator.config.toml_table import MAX_ITEMS, InvalidValueError, duration
from twinbus.servicebus.access_rights import ALL_RIGHTS, Right
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_SECOND, format_duration
from twinbus.servicebus.entity_descriptions import QueueDescription, SubscriptionDescription, Tier, TopicDescription

FILE = Path("twinbus.toml")


def parse(content: str) -> Config:
    return parse_config(dedent(content), FILE)


def one(content: str) -> NamespaceConfig:
    """The namespace of a file with one; `content` goes into its table."""
    (namespace,) = parse("[namespaces.contoso]\n" + dedent(content)).namespaces
    return namespace


def mistake(content: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(content)
    assert str(caught.value).startswith("twinbus.toml: ")
    return caught.value


# Contents


def test_smallest_file_defines_one_namespace() -> None:
    config = parse("[namespaces.contoso]")
    assert config == Config((NamespaceConfig("contoso"),))
    assert config.namespaces[0].port == 5672
    assert config.namespaces[0].durability is Durability.FULL


def test_module_docstring_example_is_valid() -> None:
    documentation = config_module.__doc__ or ""
    example = "\n".join(line for line in documentation.splitlines() if line.startswith("    ") or not line)
    contoso, standby = parse(example).namespaces
    assert [queue.description.path for queue in contoso.queues] == ["orders", "invoices"]
    assert contoso.topics[0].subscriptions[0].requires_session
    assert contoso.bearer_tokens[0].path == "orders"
    assert (contoso.durability, standby.durability) == (Durability.NORMAL, Durability.NORMAL)
    (backlog,) = standby.queues
    assert backlog.description.path == "contoso/x-servicebus-transfer/0"
    assert backlog.policies == (PolicyConfig("syphon", frozenset({Right.LISTEN}), "…"),)


def test_top_level_options_are_defaults_for_namespaces() -> None:
    config = parse(
        """
        data = "data"
        host = "0.0.0.0"
        certificate_names = ["broker.test"]
        profile = "Azure"
        durability = "memory"
        tier = "premium"
        max_message_size = "1 MB"
        deliver_pings = true

        [namespaces.one]
        port = 0

        [namespaces.two]
        port = 0
        audience_hosts = ["two.test"]
        profile = "default"
        durability = "normal"
        tier = "Standard"
        max_message_size = 262144
        deliver_pings = false
        """
    )
    assert (config.host, config.certificate_names) == ("0.0.0.0", ("broker.test",))
    assert config.namespaces[0] == NamespaceConfig(
        "one",
        port=0,
        tier=Tier.PREMIUM,
        profile=ProfileName.AZURE,
        durability=Durability.MEMORY,
        max_message_size=1024 * 1024,
        deliver_pings=True,
    )
    assert config.namespaces[1] == NamespaceConfig(
        "two", port=0, durability=Durability.NORMAL, audience_hosts=("two.test",)
    )


def test_relative_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    def data(written: str) -> Path | None:
        return parse_config(f"data = '{written}'\n[namespaces.contoso]", tmp_path / "file.toml").data

    assert data("state") == tmp_path / "state"
    assert data(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    assert data("~/state") == Path.home() / "state"


def test_every_property_of_a_queue_can_be_set() -> None:
    (queue,) = one(
        """
        tier = "Premium"
        [namespaces.contoso.queues.orders]
        lock_duration = "30s"
        max_size_in_megabytes = 5120
        requires_duplicate_detection = true
        requires_session = true
        default_message_time_to_live = "P10675199DT2H48M5.4775807S"
        dead_lettering_on_message_expiration = true
        duplicate_detection_history_time_window = "7d"
        max_delivery_count = 2147483647
        enable_batched_operations = false
        is_anonymous_accessible = false
        status = "SendDisabled"
        support_ordering = false
        auto_delete_on_idle = 300
        enable_partitioning = false
        enable_express = false
        forward_to = "invoices"
        user_metadata = "for the shop"
        forward_dead_lettered_messages_to = "graveyard"
        max_message_size_in_kilobytes = 2048
        """
    ).queues
    assert queue.description == QueueDescription(
        "orders",
        lock_duration=30 * TICKS_PER_SECOND,
        max_size_in_megabytes=5120,
        requires_duplicate_detection=True,
        requires_session=True,
        default_message_time_to_live=MAX_TICKS,
        dead_lettering_on_message_expiration=True,
        duplicate_detection_history_time_window=7 * 86_400 * TICKS_PER_SECOND,
        max_delivery_count=2**31 - 1,
        enable_batched_operations=False,
        status="SendDisabled",
        support_ordering=False,
        auto_delete_on_idle=300 * TICKS_PER_SECOND,
        forward_to="invoices",
        user_metadata="for the shop",
        forward_dead_lettered_messages_to="graveyard",
        max_message_size_in_kilobytes=2048,
    )


def test_topic_defines_its_subscriptions() -> None:
    (topic,) = one(
        """
        [namespaces.contoso.topics.events]
        default_message_time_to_live = "1h30m"
        [namespaces.contoso.topics.events.subscriptions]
        audit = {}
        billing = { requires_session = true, max_delivery_count = 3 }
        """
    ).topics
    assert topic.description == TopicDescription("events", default_message_time_to_live=5400 * TICKS_PER_SECOND)
    assert topic.subscriptions == (
        SubscriptionDescription("events", "audit"),
        SubscriptionDescription("events", "billing", requires_session=True, max_delivery_count=3),
    )


def test_named_tables_can_be_written_in_three_ways() -> None:
    tables = one("[namespaces.contoso.queues.a]\n[namespaces.contoso.queues.b]")
    names = one('queues = ["a", "b"]')
    listed = parse(
        """
        [[namespaces]]
        name = "contoso"
        [[namespaces.queues]]
        name = "a"
        [[namespaces.queues]]
        name = "b"
        """
    ).namespaces[0]
    assert tables == names == listed
    mixed = one('queues = ["a", { name = "b", max_delivery_count = 3 }]')
    assert [queue.description.max_delivery_count for queue in mixed.queues] == [10, 3]


# Access


def test_a_policy_is_a_list_of_rights_or_a_table() -> None:
    namespace = one(
        """
        policies.sender = ["send"]
        policies.reader = "Listen"
        policies.fixed = { rights = ["Send", "Listen"], primary_key = "one", secondary_key = "two" }
        policies.owner = { rights = "Manage" }
        """
    )
    assert namespace.policies == (
        PolicyConfig("sender", frozenset({Right.SEND})),
        PolicyConfig("reader", frozenset({Right.LISTEN})),
        PolicyConfig("fixed", frozenset({Right.SEND, Right.LISTEN}), "one", "two"),
        PolicyConfig("owner", ALL_RIGHTS),
    )


def test_a_namespace_always_has_its_root_policy() -> None:
    root, sender = one('policies.sender = ["Send"]').access_policies()
    assert (root.name, root.rights, sender.name) == (ROOT_POLICY, ALL_RIGHTS, "sender")
    (fixed,) = one(f'policies.{ROOT_POLICY} = {{ rights = "Manage", primary_key = "known" }}').access_policies()
    assert fixed.primary_key == "known"


def test_generated_keys_are_kept_over_restarts() -> None:
    namespace = one('policies.sender = { rights = "Send", primary_key = "fixed" }')
    first = namespace.access_policies()
    assert namespace.access_policies() != first
    assert namespace.access_policies(first) == first
    kept = AccessPolicy("sender", "older", "kept", ALL_RIGHTS)
    assert namespace.access_policies([kept])[1] == AccessPolicy("sender", "fixed", "kept", frozenset({Right.SEND}))


def test_the_policies_of_an_entity_become_its_rules_and_keep_their_keys() -> None:
    namespace = one('queues.a.policies.worker = ["Listen"]\ntopics.b.policies.pusher = ["Send"]')
    queue, topic = namespace.queues[0], namespace.topics[0]
    assert queue.description.authorization_rules == ()
    first = queue.describe()
    assert [rule.key_name for rule in first.authorization_rules] == ["worker"]
    assert first.authorization_rules[0].rights == {Right.LISTEN}
    assert queue.describe() != first
    assert queue.describe(first) == first
    made = topic.describe()
    assert topic.describe(made) == made


def test_bearer_tokens_have_rights_and_optional_path_and_expiry() -> None:
    first, second = one(
        """
        [[namespaces.contoso.bearer_tokens]]
        token = "eyJ"
        rights = ["Manage"]
        [[namespaces.contoso.bearer_tokens]]
        token = "abc"
        rights = ["Send"]
        path = "orders"
        expires_at = 2030-01-01T00:00:00Z
        """
    ).bearer_tokens
    assert (first.token, first.rights, first.path, first.expires_at) == ("eyJ", ALL_RIGHTS, "", math.inf)
    assert (second.path, second.expires_at) == ("orders", datetime(2030, 1, 1, tzinfo=UTC).timestamp())


def test_no_repr_shows_a_secret() -> None:
    config = parse(
        """
        [namespaces.contoso]
        policies.p = { rights = "Send", primary_key = "secret-1", secondary_key = "secret-2" }
        queues.a.policies.p = { rights = "Send", primary_key = "secret-3" }
        bearer_tokens = [{ token = "secret-4", rights = "Send" }]
        """
    )
    namespace = config.namespaces[0]
    for value in (config, namespace.access_policies(), namespace.queues[0].describe()):
        assert "secret" not in repr(value) + str(value)


# Durations and sizes


@pytest.mark.parametrize(
    ("written", "iso"),
    [
        (30, "PT30S"),
        (0.5, "PT0.5S"),
        ("30s", "PT30S"),
        ("5m", "PT5M"),
        ("1m30s", "PT1M30S"),
        ("1h 30m", "PT1H30M"),
        ("1.5h", "PT1H30M"),
        ("7d", "P7D"),
        ("2w", "P14D"),
        ("250ms", "PT0.25S"),
        ("PT5M", "PT5M"),
        ("P1DT0.0000001S", "P1DT0.0000001S"),
        ("unlimited", "P10675199DT2H48M5.4775807S"),
        ("P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.4775807S"),
    ],
)
def test_duration_spellings_are_accepted(written: object, iso: str) -> None:
    assert format_duration(duration(written)) == iso


NO_DURATIONS = [
    "",
    "5",
    "m",
    "5 minutes",
    "5M",
    "-5m",
    "1m1m",
    "P",
    "5m!",
    "1e9s",
    "99999999999d",
    "9" * 50 + "s",
]
NO_DURATION_VALUES = [-1, math.nan, math.inf, 10**400, True, [], {}, datetime(2030, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("written", [*NO_DURATIONS, *NO_DURATION_VALUES])
def test_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(InvalidValueError):
        duration(written)


@given(st.integers(0, MAX_TICKS))
def test_any_iso_duration_is_read_back(ticks: int) -> None:
    assert duration(format_duration(ticks)) == ticks


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.text("0123456789.smhdw ", max_size=30)))
def test_a_duration_is_within_bounds_or_refused(written: object) -> None:
    try:
        ticks = duration(written)
    except InvalidValueError:
        return
    assert 0 <= ticks <= MAX_TICKS


@pytest.mark.parametrize(
    ("written", "size"), [("262144", 262144), ('"256 KB"', 262144), ('"1mb"', 1048576), ('"1.5 KB"', 1536)]
)
def test_a_message_size_is_bytes_or_has_a_unit(written: str, size: int) -> None:
    assert one(f"max_message_size = {written}").max_message_size == size


@pytest.mark.parametrize("written", ["0", "1023", "104857601", '"101 MB"', '"1 GB"', '"big"', "true", "256.5", "[]"])
def test_a_message_size_out_of_bounds_names_the_bounds(written: str) -> None:
    error = mistake(f"[namespaces.contoso]\nmax_message_size = {written}")
    assert (error.table, error.field) == ("namespaces.contoso", "max_message_size")
    assert "1024 to 104857600 bytes" in error.message


# Errors


@pytest.mark.parametrize(
    ("content", "where", "hint"),
    [
        ("nmespaces = {}", "nmespaces", "did you mean namespaces?"),
        ("[namespaces.contoso]\nprot = 1", "namespaces.contoso.prot", "did you mean port?"),
        ("[namespaces.contoso]\nPort = 1", "namespaces.contoso.Port", "did you mean port?"),
        (
            '[namespaces.contoso.queues."a/b"]\nlock_durration = 5',
            'namespaces.contoso.queues."a/b".lock_durration',
            "did you mean lock_duration?",
        ),
        (
            "[namespaces.contoso.topics.t.subscriptions.s]\nrequire_session = true",
            "namespaces.contoso.topics.t.subscriptions.s.require_session",
            "did you mean requires_session?",
        ),
        (
            '[namespaces.contoso.policies.p]\nrights = ["Send"]\nkey = "x"',
            "namespaces.contoso.policies.p.key",
            "known are primary_key, rights, secondary_key",
        ),
        (
            '[[namespaces]]\nname = "contoso"\nqueues = [{ name = "q", lock = 5 }]',
            "namespaces[0].queues[0].lock",
            "is not known here",
        ),
        (
            '[[namespaces.contoso.bearer_tokens]]\ntoken = "x"\nrights = "Send"\nexpire_at = 1',
            "namespaces.contoso.bearer_tokens[0].expire_at",
            "did you mean expires_at?",
        ),
        (
            "[namespaces.contoso.queues.q]\npath = 'x'",
            "namespaces.contoso.queues.q.path",
            "is not known here",
        ),
    ],
)
def test_an_unknown_key_is_named_with_a_hint(content: str, where: str, hint: str) -> None:
    error = mistake(content)
    assert str(error).startswith(f"twinbus.toml: {where}: ")
    assert hint in error.message


QUEUE = "[namespaces.contoso.queues.q]\n"


@pytest.mark.parametrize(
    ("content", "where", "bound"),
    [
        ("", "namespaces", "1 to 100"),
        ("namespaces = 5", "namespaces", "must be a table or a list, not a whole number"),
        ("namespaces.contoso = 5", "namespaces.contoso", "must be a table, not a whole number"),
        ("namespaces = [5]", "namespaces[0]", "must be a table with a name"),
        ("[[namespaces]]\nport = 1", "namespaces[0].name", "is missing"),
        ('[namespaces."con toso"]', 'namespaces."con toso"', "1 to 50 letters"),
        ("[namespaces.1st]", "namespaces.1st", "a letter first"),
        ('[namespaces."é"]', 'namespaces."é"', "letters"),
        ("[namespaces.a]\n[namespaces.A]", "namespaces", "twice"),
        ("[namespaces.a]\n[namespaces.b]", "namespaces", "same port 5672"),
        ("[namespaces.a]\nport = 65536", "namespaces.a.port", "0 to 65535"),
        ("[namespaces.a]\nport = -1", "namespaces.a.port", "0 to 65535"),
        ("[namespaces.a]\nport = true", "namespaces.a.port", "whole number"),
        ('[namespaces.a]\nport = "5672"', "namespaces.a.port", "whole number, not text"),
        ('profile = "aws"\n[namespaces.a]', "profile", "default, azure"),
        ("durability = 1\n[namespaces.a]", "durability", "full, normal, memory"),
        ('tier = "Basic"\n[namespaces.a]', "tier", "Standard, Premium"),
        ('deliver_pings = "yes"\n[namespaces.a]', "deliver_pings", "true or false, not text"),
        ("data = 5\n[namespaces.a]", "data", "must be text"),
        ('host = ""\n[namespaces.a]', "host", "1 to 253 characters"),
        ('certificate_names = ["a b"]\n[namespaces.a]', "certificate_names", "host names or addresses"),
        ('[namespaces.a]\naudience_hosts = "x"', "namespaces.a.audience_hosts", "a list of at most 100"),
        (QUEUE + "lock_duration = 301", "namespaces.contoso.queues.q.lock_duration", "'5' minutes"),
        (QUEUE + "lock_duration = '5 minutes'", "namespaces.contoso.queues.q.lock_duration", "such as 30"),
        (QUEUE + "lock_duration = -1", "namespaces.contoso.queues.q.lock_duration", "0 to"),
        (QUEUE + "max_delivery_count = 0", "namespaces.contoso.queues.q.max_delivery_count", "between 1 and"),
        (
            QUEUE + "max_delivery_count = -1",
            "namespaces.contoso.queues.q.max_delivery_count",
            "0 to 2147483647",
        ),
        (
            QUEUE + "max_size_in_megabytes = 7",
            "namespaces.contoso.queues.q.max_size_in_megabytes",
            "1024;2048",
        ),
        (QUEUE + "requires_session = 1", "namespaces.contoso.queues.q.requires_session", "true or false"),
        (QUEUE + "status = 'Off'", "namespaces.contoso.queues.q.status", "Active, Disabled"),
        (QUEUE + "forward_to = ''", "namespaces.contoso.queues.q.forward_to", "1 to 260"),
        (
            QUEUE + "max_message_size_in_kilobytes = 2048",
            "namespaces.contoso.queues.q.max_message_size_in_kilobytes",
            "'Premium' tier",
        ),
        ('[namespaces.contoso.queues."a b"]', 'namespaces.contoso.queues."a b"', "not allowed"),
        ("namespaces.contoso.queues = ['a', 'A']", "namespaces.contoso.queues", "twice"),
        ("namespaces.contoso.queues = ['']", "namespaces.contoso.queues[0].name", "1 to 260"),
        (
            "namespaces.contoso = {queues = ['a'], topics = ['A']}",
            "namespaces.contoso.topics",
            "a queue already",
        ),
        (
            "namespaces.contoso.policies.p = []",
            "namespaces.contoso.policies.p.rights",
            "Send, Listen or Manage",
        ),
        ("namespaces.contoso.policies.p = ['Own']", "namespaces.contoso.policies.p.rights", "nothing else"),
        ("namespaces.contoso.policies.p = {}", "namespaces.contoso.policies.p.rights", "is missing"),
        ("namespaces.contoso.policies.'a;b' = 'Send'", 'namespaces.contoso.policies."a;b"', "semicolons"),
        (
            QUEUE + "policies = {" + ", ".join(f"p{number} = 'Send'" for number in range(13)) + "}",
            "namespaces.contoso.queues.q.policies",
            "at most 12",
        ),
        ("namespaces.contoso.bearer_tokens = {}", "namespaces.contoso.bearer_tokens", "a list of tables"),
        (
            "namespaces.contoso.bearer_tokens = [{}]",
            "namespaces.contoso.bearer_tokens[0].token",
            "is missing",
        ),
        (
            "namespaces.contoso.bearer_tokens = [{token='x', rights='Send', expires_at=2030-01-01T00:00:00}]",
            "namespaces.contoso.bearer_tokens[0].expires_at",
            "with its offset",
        ),
        (
            "namespaces.contoso.bearer_tokens = [{token='x', rights='Send', expires_at=-1}]",
            "namespaces.contoso.bearer_tokens[0].expires_at",
            "1970 and 9999",
        ),
    ],
)
def test_error_names_the_file_the_key_and_the_bound(content: str, where: str, bound: str) -> None:
    error = mistake(content)
    assert str(error).startswith(f"twinbus.toml: {where}: ")
    assert bound in error.message


@pytest.mark.parametrize(
    "content",
    [
        'policies.p = "hidden"',
        'policies.p = ["hidden"]',
        'policies.p = { rights = "Send", primary_key = "hidden;hidden" }',
        'policies.p = { rights = "Send", primary_key = ["hidden"] }',
        'policies.p = { rights = "Send", secondary_key = "' + "hidden" * 50 + '" }',
        'bearer_tokens = ["hidden"]',
        'bearer_tokens = [{ token = "hidden", rights = "Sand" }]',
        'bearer_tokens = [{ token = { value = "hidden" }, rights = "Send" }]',
        'bearer_tokens = [{ token = "hidden", right = "Send" }]',
        'policies.p = { rights = "Send", primary_key = "hidden',
    ],
)
def test_no_error_shows_a_secret(content: str) -> None:
    assert "hidden" not in str(mistake(f"[namespaces.contoso]\n{content}"))


# Hostile files


@pytest.mark.parametrize(
    "content",
    [
        "[[[",
        "a = ",
        "a = 1\na = 2",
        "port = " + "9" * 10_000 + "\n[namespaces.a]",
        "[namespaces.a]\nport = " + "9" * 1000,
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 100_000,
        ".".join("a" * 5000) + " = 1",
        "data = inf\n[namespaces.a]",
        "[namespaces.a]\nmax_message_size = nan",
        "[namespaces.a.queues.q]\nlock_duration = inf",
        "[namespaces.a.queues.q]\nlock_duration = " + "9" * 400,
        '[namespaces.a.queues."' + "q" * 100_000 + '"]',
        '[namespaces.a.queues.q]\nforward_to = "' + "q" * 100_000 + '"',
        '[namespaces.a.queues."\\u0000"]',
        "[namespaces.a.queues.q]\nuser_metadata = '''" + "x" * 5000 + "'''",
        "namespaces = [" + "{name='a'}," * 200 + "]",
        "[namespaces.a]\nqueues = [" + "'q'," * (MAX_ITEMS + 1) + "]",
        "namespaces.a.bearer_tokens = [{token='x', rights='Send', expires_at=0001-01-01T00:00:00+23:59}]",
        "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    ],
    ids=lambda content: repr(content[:30]),
)
def test_hostile_file_gives_a_short_error(content: str) -> None:
    assert len(str(mistake(content))) < 2000


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "audience_hosts",
        "bearer_tokens",
        "deliver_pings",
        "durability",
        "max_message_size",
        "policies",
        "port",
        "profile",
        "queues",
        "tier",
        "topics",
        "x",
    ]
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_value_is_accepted_or_a_config_error(values: dict[str, object]) -> None:
    def loads(_: str) -> dict[str, object]:
        return {"namespaces": {"contoso": values}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinbus.emulator.config.namespace_file.tomllib.loads", loads)
        with contextlib.suppress(ConfigError):
            assert parse("").namespaces[0].name == "contoso"


# Files


def test_file_is_read_from_disk(tmp_path: Path) -> None:
    file = tmp_path / "twinbus.toml"
    file.write_text('data = "state"\n[namespaces.contoso]\nqueues = ["ü"]', encoding="utf-8")
    with pytest.raises(ConfigError, match="not allowed"):
        load_config(file)
    file.write_text('data = "state"\n[namespaces.contoso]', encoding="utf-8")
    assert load_config(file).data == tmp_path / "state"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_file_that_is_not_utf8_says_where(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match="must be UTF-8, which byte 5 is not"):
        load_config(file)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=f"at most {MAX_FILE_BYTES} bytes"):
        load_config(file)
