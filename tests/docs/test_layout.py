"""Packages are small, neighbouring modules have different names, and CONTRIBUTING.md names what exists."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_MODULES = 15
#: Written once, for asyncio; the other is generated.
TWINS = {"_async", "_sync"}


def packages() -> list[Path]:
    trees = (ROOT / "src" / "twinbus", ROOT / "proof")
    return sorted(init.parent for tree in trees for init in tree.rglob("__init__.py"))


def modules(package: Path) -> set[str]:
    return {module.stem for module in package.glob("*.py")} - {"__init__", "__main__"}


@pytest.mark.parametrize("package", packages(), ids=lambda package: str(package.relative_to(ROOT)))
def test_a_package_has_few_modules(package: Path) -> None:
    assert len(modules(package)) <= MOST_MODULES, sorted(modules(package))


def test_modules_of_neighbouring_packages_have_different_names() -> None:
    owners: defaultdict[tuple[Path, str], list[str]] = defaultdict(list)
    for package in packages():
        for module in set() if package.name in TWINS else modules(package):
            owners[package.parent, module].append(package.name)
    assert {f"{parent.name}/*/{name}": found for (parent, name), found in owners.items() if len(found) > 1} == {}


def test_contributing_names_paths_and_functions_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Where do I change")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:src|proof|tests|docs|scripts)/[\w./-]+)`", table)
    assert len(paths) >= 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    named = re.findall(r"`(\w+)\(\)` in `([\w./-]+)`", table)
    assert len(named) >= 2
    assert [name for name, path in named if f"def {name}(" not in (ROOT / path).read_text("utf-8")] == []
