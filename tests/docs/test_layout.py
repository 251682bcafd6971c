"""Packages are small, module names differ, tests import public names, and CONTRIBUTING.md names what exists."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import twinbus.emulator
import twinbus.testing

ROOT = Path(__file__).parents[2]
MOST_MODULES = 15
#: Written once, for asyncio; the other is generated.
TWINS = {"_async", "_sync"}
#: What runs the embedded namespace as its users do, with its public names only.
USERS_OF_THE_NAMESPACE = ("tests", "bench", "examples", "scripts", "proof/matrix", "proof/soak")
#: The namespace's own tests, and the one helper of the others that knows its internals.
MAY_IMPORT_INTERNALS = ("tests/emulator/", "tests/namespace_internals.py")
PUBLIC = {module.__name__: set(module.__all__) for module in (twinbus.emulator, twinbus.testing)}


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


def test_only_one_helper_outside_the_tests_of_the_namespace_imports_its_internals() -> None:
    internals = {
        f"{path}:{line}": name
        for tree in USERS_OF_THE_NAMESPACE
        for file in sorted((ROOT / tree).rglob("*.py"))
        if not (path := str(file.relative_to(ROOT))).startswith(MAY_IMPORT_INTERNALS)
        for line, name in names_used(ast.parse(file.read_text("utf-8")))
        if is_internal(name)
    }
    assert internals == {}, "use twinbus.testing or twinbus.emulator, or add a helper to tests/namespace_internals.py"


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The dotted names that a module imports, or replaces with `monkeypatch.setattr`, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            yield from ((node.lineno, each.value) for each in node.args[:1] if is_text(each))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_internal(name: str) -> bool:
    """Whether a dotted name is in one of the packages and not one of its public names."""
    for package, public in PUBLIC.items():
        if name.startswith(f"{package}."):
            return name.removeprefix(f"{package}.") not in public
    return False


@pytest.mark.parametrize(
    "code",
    [
        "from twinbus.emulator.entities.queue import Queue",
        "from twinbus.emulator import entities",
        "import twinbus.emulator.entities.queue",
        "from twinbus.testing.embedded_namespaces import twin_namespaces",
        "monkeypatch.setattr('twinbus.emulator.protocol.links.OutgoingLink.on_flow', None)",
    ],
)
def test_an_import_of_an_internal_module_is_found(code: str) -> None:
    assert [is_internal(name) for _, name in names_used(ast.parse(code))] == [True]


def test_an_import_of_a_public_name_is_allowed() -> None:
    code = "import twinbus.emulator\nfrom twinbus.emulator import Namespace\nfrom twinbus.testing import Fault"
    assert not any(is_internal(name) for _, name in names_used(ast.parse(code)))
