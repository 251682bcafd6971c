"""The page of fault kinds has every kind with its operations, and every parameter with its default."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from twinbus.emulator import Fault
from twinbus.emulator.faults.fault_plan import CAN_STRIKE

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "faults.md").read_text("utf-8")


def rows(title: str) -> dict[str, list[str]]:
    lines = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    return {row[0].strip("`"): row[1:] for row in cells}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_kind_is_there_with_the_operations_it_can_strike() -> None:
    everywhere = {str(operation) for operations in CAN_STRIKE.values() for operation in operations}
    shown = {kind: everywhere if row[1] == "everywhere" else names(row[1]) for kind, row in rows("Kinds").items()}
    assert shown == {str(kind): set(map(str, operations)) for kind, operations in CAN_STRIKE.items()}


def test_the_operations_struck_without_on_are_those_of_the_code() -> None:
    for kind, (_, possible, usual) in rows("Kinds").items():
        first, _, of_entity = usual.partition("; of an entity ")
        extra = {"delay": 1.0} if kind == "slow" else {}
        everywhere = {str(operation) for operation in CAN_STRIKE[Fault(kind, **extra).kind]}
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
    assert sorted(shown) == sorted(kind.name for kind in CAN_STRIKE)
