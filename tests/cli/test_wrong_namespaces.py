"""What commands say of a namespace that is not there, or that refuses: which one, why, and never the key."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cli.test_backlog import give_up, invoke
from tests.cli.test_backlog import pair as pair
from tests.cli.test_syphon import ended, start
from tests.connection_strings import connection_string
from tests.syphon.pumping import BACKLOG, Pair, numbered

from twinbus.emulator import Namespace
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.connection_strings import ConnectionString
from twinbus.servicebus.entity_descriptions import AuthorizationRule

pytestmark = pytest.mark.slow

KEY = "c2VjcmV0"
NOWHERE = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
COMMANDS = [
    ("status",),
    ("backlog", "list"),
    ("backlog", "unused"),
    ("backlog", "dead-letters"),
    ("backlog", "replay", "--yes"),
    ("syphon", "--until-empty"),
]


def with_wrong_key(namespace: Namespace) -> str:
    return connection_string(namespace, KEY)


async def refused(pair: Pair, *arguments: str) -> str:
    """What a command says that ends with 1."""
    if arguments[0] == "syphon":  # it listens for signals, so it needs a process of its own
        code, output, errors = await ended(await start(pair, *arguments[1:]))
        said = output + errors
    else:
        result = await invoke(pair, *arguments)
        code, said = result.exit_code, result.output
    assert code == 1, said
    assert "Traceback" not in said
    for text in (KEY, *(ConnectionString.parse(one.connection_string).key for one in (pair.primary, pair.secondary))):
        assert text not in said
    return said


@pytest.mark.parametrize("command", COMMANDS)
async def test_primary_that_is_down_needs_primary_name(pair: Pair, command: tuple[str, ...]) -> None:
    said = await refused(pair, *command, "--primary", NOWHERE)
    assert "the primary 127.0.0.1:1 cannot be reached: Connection refused" in said
    assert "--primary-name" in said


@pytest.mark.parametrize("command", COMMANDS)
async def test_error_names_a_secondary_that_is_down(pair: Pair, command: tuple[str, ...]) -> None:
    said = await refused(pair, *command, "--secondary", NOWHERE)
    assert "127.0.0.1:1" in said
    assert said.rstrip().endswith("Connection refused")


@pytest.mark.parametrize("command", COMMANDS)
async def test_wrong_key_for_the_primary_is_not_an_outage(pair: Pair, command: tuple[str, ...]) -> None:
    said = await refused(pair, *command, "--primary", with_wrong_key(pair.primary))
    where = f"the primary 127.0.0.1:{pair.primary.port}"
    assert f"{where} refuses the key of --primary: it is wrong, or lacks the Manage right" in said


@pytest.mark.parametrize("command", COMMANDS)
async def test_error_names_a_wrong_key_for_the_secondary(pair: Pair, command: tuple[str, ...]) -> None:
    said = await refused(pair, *command, "--secondary", with_wrong_key(pair.secondary))
    assert f"127.0.0.1:{pair.secondary.port}" in said
    assert "refuses the key of --secondary: it is wrong" in said or "InvalidSignature" in said


async def test_primary_without_backlog_queues_is_named(pair: Pair) -> None:
    result = await invoke(pair, "backlog", "list", "--primary-name", "fabrikam")
    assert result.stdout == f"there are no backlog queues of fabrikam in 127.0.0.1:{pair.secondary.port}\n"


async def test_dead_letters_are_shown_with_only_the_listen_right(pair: Pair) -> None:
    await give_up(pair, numbered("orders", range(2)), "Bad")
    rule = AuthorizationRule("reader", "a2V5", "b3RoZXI=", frozenset({Right.LISTEN}))
    found = pair.secondary.find(BACKLOG)
    assert found is not None
    await pair.secondary.update(replace(found.description, authorization_rules=(rule,)))
    text = connection_string(pair.secondary, rule.primary_key, rule.key_name)
    result = await invoke(pair, "backlog", "dead-letters", "--secondary", text, "--queues", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Bad") == 2
