"""The page of fault kinds has every kind with its operations, and every parameter with its default."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path

from twinbus.emulator import Fault, FaultError, FaultKind, FaultPoint

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text("utf-8")


def rows(title: str) -> dict[str, list[str]]:
    lines = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    return {row[0].strip("`"): row[1:] for row in cells}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def needed(kind: FaultKind) -> dict[str, float]:
    """The parameters that a fault of this kind cannot do without."""
    return {"delay": 1.0} if kind is FaultKind.SLOW else {}


def points(kind: FaultKind) -> set[str]:
    """The fault points that `Fault` accepts for a kind."""
    accepted = set()
    for point in FaultPoint:
        with suppress(FaultError):
            Fault(kind, on=frozenset({point}), **needed(kind))  # type: ignore[arg-type]
            accepted.add(str(point))
    return accepted


def test_every_kind_is_there_with_the_operations_it_can_strike() -> None:
    everywhere = set(map(str, FaultPoint))
    shown = {kind: everywhere if row[1] == "everywhere" else names(row[1]) for kind, row in rows("Kinds").items()}
    assert shown == {str(kind): points(kind) for kind in FaultKind}


def test_the_operations_struck_without_on_are_those_of_the_code() -> None:
    for kind, (_, possible, usual) in rows("Kinds").items():
        first, _, of_entity = usual.partition("; of an entity ")
        extra = needed(FaultKind(kind))
        everywhere = points(FaultKind(kind))
        expected = {
            "everywhere": everywhere,
            "the same": names(possible),
            "all but `token`": everywhere - {"token"},
        }.get(first, names(first))
        assert {str(operation) for operation in Fault(kind, **extra).strikes} == expected, kind
        if of_entity:
            assert {str(operation) for operation in Fault(kind, "orders", **extra).strikes} == names(of_entity)


def test_every_parameter_is_there_with_its_default() -> None:
    shown = {name: row[0] for name, row in rows("Parameters").items()}
    assert list(shown) == [field.name for field in fields(Fault)]
    for field in fields(Fault):
        if field.name not in ("kind", "on"):
            assert field.default is not MISSING
            assert shown[field.name] == f"`{field.default!r}`"


def test_the_guide_to_testing_shows_a_fault_of_every_kind() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text("utf-8")
    shown = re.findall(r"^    Fault\(FaultKind\.(\w+)", guide, re.MULTILINE)
    assert sorted(shown) == sorted(kind.name for kind in FaultKind)
