"""Tables and error lines of the commands."""

from __future__ import annotations

import errno

import pytest

from twinbus.cli.failures import describe_os_error, os_error_text, with_option_name
from twinbus.cli.text import aligned


def test_long_name_in_the_last_column_is_not_broken() -> None:
    name = "sales/" * 30
    assert aligned(("kind", "count", "name"), [("queue", "5", name), ("a", "1,000", "b")], left=1).splitlines() == [
        "kind   count  name",
        f"queue      5  {name}",
        "a      1,000  b",
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("slots must be 1 to 1024, not 0", "--slots must be 1 to 1024, not 0"),
        ("slice_seconds must be 1 to 60, not 0", "--slice must be 1 to 60, not 0"),
        ("primary_units must be whole", "--primary-units must be whole"),
        ("prices.toml: currency must be a text", "prices.toml: currency must be a text"),
        ("--rate must be a number", "--rate must be a number"),
        ("the ledger's path must not be empty", "the ledger's path must not be empty"),
    ],
)
def test_field_name_in_an_error_becomes_the_option_name(said: str, shown: str) -> None:
    assert with_option_name(said) == shown


def test_os_error_text_has_the_file_and_no_errno() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    assert os_error_text(refused) == "Connection refused"
    assert describe_os_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "a.toml")) == (
        "a.toml: No such file or directory"
    )
