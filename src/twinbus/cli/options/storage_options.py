"""Parses `--storage-option KEY=VALUE`: options for fsspec, whose values are never printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ..exits import fail
from ..failures import exit_on_error, first_line

StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option for the store's fsspec driver, such as account_name=contoso (repeatable).",
    ),
]
_WORDS = {"true": True, "false": False, "null": None}


def storage_options(arguments: Sequence[str] | None) -> dict[str, Any]:
    """Parse the options. true, false, null, objects and lists are JSON; anything else is text.

    Raises:
        ValueError: Names the option, never its value.
    """
    options: dict[str, Any] = {}
    for number, text in enumerate(arguments or (), 1):
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise ValueError(f"--storage-option must be KEY=VALUE; number {number} is not")
        if key in options:
            raise ValueError(f"--storage-option {key} must be given only once")
        options[key] = _value(key, value)
    return options


def _value(key: str, text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"the value of --storage-option {key} must be JSON, as it begins with {text[0]}") from None


@contextmanager
def exit_on_store_error(command: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Like `exit_on_error`, and also for errors of any class that a store's driver raises."""
    with exit_on_error(command):
        try:
            yield
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("twinbus."):
                raise
            fail(command, redacted(f"the store failed: {first_line(error)} ({type(error).__name__})", options))


def redacted(text: str, options: Any) -> str:
    """Return the text without any value of the options."""
    if isinstance(options, Mapping):
        options = list(options.values())
    if isinstance(options, list):
        for value in options:
            text = redacted(text, value)
    elif isinstance(options, str) and len(options) > 3:
        text = text.replace(options, "…")
    return text
