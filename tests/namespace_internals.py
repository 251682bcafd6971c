"""Internals of the embedded namespace that its own tests are not alone in needing.

This is the only module outside `tests/emulator` that imports them; the others use `twinbus.testing` and
`twinbus.emulator`. `tests/docs/test_layout.py` keeps it so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from twinbus.emulator import Namespace
from twinbus.emulator.config.namespace_file import parse_config
from twinbus.emulator.config.toml_table import Table
from twinbus.emulator.entities.message import Arrival, Message
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.protocol.links import OutgoingLink

__all__ = ["Arrival", "Message", "Queue", "ignore_credit", "keys_read", "receiving_links"]


def receiving_links(namespace: Namespace, path: str) -> int:
    """The number of clients' links that receive from an entity; call it on the loop of the namespace."""
    return sum(isinstance(link, OutgoingLink) and link.node.path == path for link in namespace.entity_links())


def ignore_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all namespaces ignore the credit that receivers give, and their probes."""
    monkeypatch.setattr(OutgoingLink, "on_flow", lambda link, flow: None)


def keys_read(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The keys that the reader of a configuration file knows in each table of the text, by the path of the table."""
    known: dict[str, set[str]] = {}
    finish = Table.finish

    def finish_and_note(table: Table) -> None:
        known[table.path] = set(table._known)
        finish(table)

    monkeypatch.setattr(Table, "finish", finish_and_note)
    parse_config(text, Path("bus.toml"))
    return known
