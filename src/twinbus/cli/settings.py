"""Settings from `twinbus.toml`: what an option is if neither the command line nor the environment says.

primary = "Endpoint=sb://…"     # for every command that has such an option
ledger = "./ledger"

[syphon]                        # for one command
rate = 500

[pipeline.run]                  # for one of a group
memory = "4g"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from inspect import unwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from typer.core import TyperArgument, TyperGroup, TyperOption

FILE = "twinbus.toml"
VARIABLE = "TWINBUS_SETTINGS"
#: What may stand above the tables: options that mean the same wherever they are.
SHARED = ("ledger", "primary", "primary_name", "proxy", "queues", "secondary", "transport")
#: Where a command takes the ledger's place as an argument.
LEDGER_ARGUMENTS = frozenset(
    {
        "ledger.show path",
        "ledger.compact path",
        "pipeline.run ledger",
        "pipeline.watch ledger",
        "report source",
    }
)
MAX_BYTES = 1 << 20


class BadSettings(Exception):  # noqa: N818 - what they are
    """The file cannot be used. Its message never holds a value: some are keys."""


def settings(commands: Collection[str]) -> dict[str, Any]:
    """What the file says; nothing if there is none. Raises `BadSettings`."""
    named = os.environ.get(VARIABLE)
    path = Path(named or FILE)
    try:
        if not path.is_file():
            if not named:
                return {}
            path.stat()  # says why, if it is not there
            raise BadSettings(f"{path}: cannot be read: it is not a file")
        if path.stat().st_size > MAX_BYTES:
            raise BadSettings(f"{path}: must have at most {MAX_BYTES} bytes")
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadSettings(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise BadSettings(f"{path}: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise BadSettings(f"{path}: it is not UTF-8") from None
    except ValueError as error:  # also numbers with thousands of digits
        raise BadSettings(f"{path}: {_without_values(error)}") from None
    for name, value in found.items():
        if isinstance(value, Mapping):
            if name not in commands:
                raise BadSettings(f"{path}: [{name}] is not a command of twinbus")
        elif name not in SHARED:
            raise BadSettings(f"{path}: {name} must be in the table of a command, or one of {', '.join(SHARED)}")
    return found


def _without_values(error: ValueError) -> str:
    """Where the mistake is. What it is may quote the line."""
    _, found, place = str(error).rpartition("(at ")
    return f"not valid TOML at {place.rstrip(')')}" if found else "not valid TOML"


def apply(command: Any, name: str, found: Mapping[str, Any]) -> None:
    """Let the settings be what the options of a command are if nobody gives them. Raises `BadSettings`."""
    shared = {key: value for key, value in found.items() if not isinstance(value, Mapping)}
    table = found.get(name, {})
    _apply(command, name, shared, table if isinstance(table, Mapping) else {})


def _apply(command: Any, where: str, shared: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    if isinstance(command, TyperGroup):
        for name in table:
            if name not in command.commands or not isinstance(table[name], Mapping):
                raise BadSettings(f"{FILE}: [{where}] {name} is not a command of twinbus {where}")
        for name, one in command.commands.items():
            _apply(one, f"{where}.{name}", shared, table.get(name, {}))
        return
    options = {option.name: option for option in command.params if isinstance(option, TyperOption)}
    hints = get_type_hints(unwrap(command.callback))
    for key, value in table.items():
        option = options.get(key.replace("-", "_"))
        if option is None:
            raise BadSettings(f"{FILE}: [{where}] {key} is not an option of twinbus {where.replace('.', ' ')}")
        _set(option, hints[str(option.name)], f"[{where}] {key}", value)
    for key, value in shared.items():
        if key in options and key not in table:
            _set(options[key], hints[key], key, value)
    if isinstance(shared.get("ledger"), str):
        for argument in command.params:
            if isinstance(argument, TyperArgument) and f"{where} {argument.name}" in LEDGER_ARGUMENTS:
                argument.default, argument.required = shared["ledger"], False


def _set(option: TyperOption, hint: Any, place: str, value: Any) -> None:
    if (wanted := _mismatch(hint, value)) is not None:
        raise BadSettings(f"{FILE}: {place} must be {wanted}")
    least, most = getattr(option, "min", None), getattr(option, "max", None)
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise BadSettings(f"{FILE}: {place} must be {bounds}")
    option.default = value
    option.show_default = False  # it may be a key


def _mismatch(hint: Any, value: Any) -> str | None:
    """What a value of an option must be, if it is not: None if it is."""
    kinds = [one for one in get_args(hint) if one is not NoneType] if isinstance(hint, UnionType) else [hint]
    if get_origin(kinds[0]) is list:
        return None if isinstance(value, list) and all(isinstance(one, str) for one in value) else "a list of texts"
    if kinds[0] is bool:
        return None if isinstance(value, bool) else "true or false"
    if kinds[0] is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if kinds[0] is float:
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if isinstance(value, str) else "a text"
