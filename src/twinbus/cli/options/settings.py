"""Reads `twinbus.toml`: defaults for options given neither on the command line nor in the environment.

primary = "Endpoint=sb://…"     # for every command that has the option
ledger = "./ledger"

[syphon]                        # for one command
rate = 500

[pipeline.run]                  # for one command of a group
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
#: Options that may precede the tables: they mean the same in every command.
SHARED = ("ledger", "primary", "primary_name", "proxy", "queues", "secondary", "transport")
#: Arguments that default to the setting `ledger`.
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


class SettingsError(Exception):
    """The settings file cannot be used. The message never holds a value: some are keys."""


def settings(commands: Collection[str]) -> dict[str, Any]:
    """Read the settings file; empty if there is none. Raises `SettingsError`."""
    named = os.environ.get(VARIABLE)
    path = Path(named or FILE)
    try:
        if not path.is_file():
            if not named:
                return {}
            path.stat()  # raises with the reason if it does not exist
            raise SettingsError(f"{path}: cannot be read: it is not a file")
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(f"{path}: must have at most {MAX_BYTES} bytes")
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise SettingsError(f"{path}: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: it is not UTF-8") from None
    except ValueError as error:  # also numbers with thousands of digits
        raise SettingsError(f"{path}: {_without_values(error)}") from None
    for name, value in values.items():
        if isinstance(value, Mapping):
            if name not in commands:
                raise SettingsError(f"{path}: [{name}] is not a command of twinbus")
        elif name not in SHARED:
            raise SettingsError(f"{path}: {name} must be in the table of a command, or one of {', '.join(SHARED)}")
    return values


def _without_values(error: ValueError) -> str:
    """Return the position of a TOML error only: its text may quote the line."""
    _, separator, position = str(error).rpartition("(at ")
    return f"not valid TOML at {position.rstrip(')')}" if separator else "not valid TOML"


def apply(command: Any, name: str, values: Mapping[str, Any]) -> None:
    """Make the settings the defaults of a command's options. Raises `SettingsError`."""
    shared = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    table = values.get(name, {})
    _apply(command, name, shared, table if isinstance(table, Mapping) else {})


def _apply(command: Any, where: str, shared: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    if isinstance(command, TyperGroup):
        for name in table:
            if name not in command.commands or not isinstance(table[name], Mapping):
                raise SettingsError(f"{FILE}: [{where}] {name} is not a command of twinbus {where}")
        for name, subcommand in command.commands.items():
            _apply(subcommand, f"{where}.{name}", shared, table.get(name, {}))
        return
    options = {option.name: option for option in command.params if isinstance(option, TyperOption)}
    hints = get_type_hints(unwrap(command.callback))
    for key, value in table.items():
        option = options.get(key.replace("-", "_"))
        if option is None:
            raise SettingsError(f"{FILE}: [{where}] {key} is not an option of twinbus {where.replace('.', ' ')}")
        _set(option, hints[str(option.name)], f"[{where}] {key}", value)
    for key, value in shared.items():
        if key in options and key not in table:
            _set(options[key], hints[key], key, value)
    if isinstance(shared.get("ledger"), str):
        for argument in command.params:
            if isinstance(argument, TyperArgument) and f"{where} {argument.name}" in LEDGER_ARGUMENTS:
                argument.default, argument.required = shared["ledger"], False


def _set(option: TyperOption, hint: Any, where: str, value: Any) -> None:
    if (expected := _mismatch(hint, value)) is not None:
        raise SettingsError(f"{FILE}: {where} must be {expected}")
    least, most = getattr(option, "min", None), getattr(option, "max", None)
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise SettingsError(f"{FILE}: {where} must be {bounds}")
    option.default = value
    option.show_default = False  # it may be a key


def _mismatch(hint: Any, value: Any) -> str | None:
    """Return the type that an option expects if the value does not have it, else None."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if isinstance(hint, UnionType) else [hint]
    if get_origin(kinds[0]) is list:
        return None if isinstance(value, list) and all(isinstance(item, str) for item in value) else "a list of strings"
    if kinds[0] is bool:
        return None if isinstance(value, bool) else "true or false"
    if kinds[0] is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if kinds[0] is float:
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if isinstance(value, str) else "a string"
