"""The reference says what the code says: options with default and bounds, events, errors, public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest

import twinbus
import twinbus.aio
from twinbus.pairing import events, options
from twinbus.pairing import pairing_errors as errors

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES = {name: (REFERENCE / f"{name}.md").read_text("utf-8") for name in ("options", "events", "errors", "python")}
PAGE = "\n".join(PAGES.values())
CHOICES = {
    "probe": get_args(options.Probe),
    "while_suspect": get_args(options.WhileSuspect),
    "ttl": get_args(options.TimeToLive),
    "order": (None, *get_args(options.Order)),
}


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(title: str) -> dict[str, list[str]]:
    """The first table of a section: its cells by the name in the first one."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize("kind", [options.SendAvailabilityOptions, options.SyphonOptions])
def test_every_option_is_there_with_its_default_and_bounds(kind: Any) -> None:
    found = rows(f"`{kind.__name__}`")
    assert list(found) == [field.name for field in fields(kind)]
    for field in fields(kind):
        default, bounds = found[field.name][:2]
        made = vars(kind).get(field.name)
        if isinstance(made, options.Duration):
            assert (default, bounds) == (f"{field.default:g} s", made._bounds()), field.name
        elif field.name in CHOICES:
            assert ast.literal_eval(default.strip("`")) == field.default
            assert ast.literal_eval(bounds.replace("`", "")) == CHOICES[field.name]
        elif field.default is not MISSING:
            assert default == f"`{field.default!r}`"
        else:
            made = eval(default.strip("`"), {name: getattr(twinbus, name) for name in twinbus.__all__})
            assert field.default_factory is not MISSING
            assert made == field.default_factory()


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (options.SendAvailabilityOptions, "backlog_queue_count", 0),
        (options.SyphonOptions, "poison_tries", 0),
        (options.SyphonOptions, "rate", 0),
    ],
)
def test_a_value_out_of_the_bounds_of_the_page_is_refused_in_its_words(kind: Any, name: str, wrong: int) -> None:
    bounds = rows(f"`{kind.__name__}`")[name][1]
    with pytest.raises(ValueError, match=f"{name} must be {bounds}"):
        kind(**{name: wrong})


def test_every_event_is_there_with_its_fields() -> None:
    expected = {
        name: [field.name for field in fields(kind) if field.name != "at"]
        for name, kind in vars(events).items()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    }
    assert {name: names_in(cells[0]) for name, cells in rows("Events").items()} == expected


def test_every_error_is_there_with_what_it_has() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TwinbusError) and kind is not errors.TwinbusError
    }
    found = rows("Errors")
    assert set(found) == set(kinds)
    for name, kind in kinds.items():
        assert names_in(found[name][0]) == re.findall(r"self\.([a-z]\w*) = ", inspect.getsource(kind)), name


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    tree = re.search(r"```\n(.*?)```", section("Errors"), re.DOTALL)
    assert tree is not None
    parents: dict[int, str] = {}
    for line in tree[1].splitlines()[1:]:
        name, *also = re.findall(r"\w+Error", line)
        depth = line.index(name)
        parents[depth] = name
        if name != "TwinbusError":
            assert [base.__name__ for base in getattr(errors, name).__bases__] == [parents[depth - 4], *also]
    assert issubclass(errors.TwinbusError, errors.ServiceBusError)
    assert len(tree[1].splitlines()) - 2 == len(rows("Errors"))


def test_every_public_name_is_on_the_page() -> None:
    assert set(twinbus.__all__) - set(re.findall(r"\w+", PAGE)) == set()
    assert set(twinbus.aio.__all__) - set(re.findall(r"`(\w+)`", section("Clients"))) == set()


def test_every_name_of_another_module_is_where_the_page_says() -> None:
    for cell in rows("Other modules"):
        first, *others = re.findall(r"[\w.]+", cell)
        home, _, name = first.rpartition(".")
        module = importlib.import_module(home)
        for one in (name, *others):
            place = importlib.import_module(one.rpartition(".")[0]) if "." in one else module
            assert hasattr(place, one.rpartition(".")[2]), one


def test_every_metric_is_on_its_page() -> None:
    source = inspect.getsource(importlib.import_module("twinbus.pairing.metrics"))
    page = (REFERENCE / "metrics.md").read_text("utf-8")
    shown = set(re.findall(r"^\| `(twinbus\.[\w.]+)`", page, re.MULTILINE))
    attributes = {"twinbus.pairing", "twinbus.entity", "twinbus.role"}
    assert shown == set(re.findall(r'"(twinbus\.[\w.]+)"', source)) - attributes
