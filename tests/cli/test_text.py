"""Tables and error lines of the commands."""

from __future__ import annotations

import errno

import pytest

from twinbus.cli.failures import describe_os_error, os_error_text, with_option_name
from twinbus.cli.text import aligned


def test_a_long_name_stays_in_one_piece_at_the_end_of_its_line() -> None:
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
def test_what_the_library_says_of_a_field_is_said_of_the_option(said: str, shown: str) -> None:
    assert with_option_name(said) == shown


def test_an_error_of_the_system_is_told_in_its_words_with_the_file_and_without_a_number() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    assert os_error_text(refused) == "Connection refused"
    assert describe_os_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "a.toml")) == (
        "a.toml: No such file or directory"
    )
