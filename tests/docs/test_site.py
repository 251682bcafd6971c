"""The documentation builds as a site: no broken link or anchor, no page that nothing leads to, every public name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("twinbus", "twinbus.aio", "twinbus.emulator", "twinbus.spark", "twinbus.testing")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    ran = subprocess.run([*command, str(ROOT / "docs"), str(folder)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_api_reference(site: Path, module: str) -> None:
    page = (site / "reference" / "api" / f"{module.replace('.', '-')}.html").read_text("utf-8")
    names = set(importlib.import_module(module).__all__) - {"__version__"}
    assert {name for name in names if f'id="{module}.{name}"' not in page} == set()


def test_modules_that_pages_name_exist() -> None:
    files = [
        f"/{path.relative_to(ROOT)}"
        for tree in ("src", "proof", "scripts", "tests")
        for path in (ROOT / tree).rglob("*.py")
    ]
    gone = []
    for page in (ROOT / "docs").rglob("*.md"):
        if page.parent.name not in ("decisions", "tutorial"):
            named = re.findall(r"`([a-z_/]+\.py)`", page.read_text("utf-8"))
            gone += [f"{page.name}: {name}" for name in named if not any(file.endswith(f"/{name}") for file in files)]
    assert gone == []


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.replace("`", "").strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md"])
def test_links_and_anchors_of_pages_outside_docs_lead_somewhere(name: str) -> None:
    page = ROOT / name
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        if not linked.exists():
            broken.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            if anchor not in map(slug, headings):
                broken.append(f"{target}#{anchor}")
    assert broken == []
