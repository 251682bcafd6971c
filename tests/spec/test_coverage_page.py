"""The page that names a test for each rule names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "spec-coverage.md"


def functions_of(name: str) -> str:
    """The tests in a file, which the page calls `folder/test_file` or, if it is in this folder, `test_section_n`."""
    found = list(TESTS.glob(f"{name}.py")) or list(TESTS.glob(f"spec/{name}*.py"))
    assert len(found) == 1, f"{name} is {found}"
    return "\n".join(re.findall(r"def test_(\w+)\(", found[0].read_text()))


def test_every_test_that_the_page_names_exists() -> None:
    checked = 0
    for row in PAGE.read_text().splitlines():
        if not row.startswith("| "):
            continue
        cell = row.strip("| ").split(" | ")[-1]
        # `file` name, name…, `file` name: each file is followed by the names of its tests, or parts of them.
        for name, parts in re.findall(r"`((?:[\w/]+/)?test_\w+)`([^`]*)", cell):
            functions = functions_of(name)
            for part in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+){2,}\b|typed_aliases", parts):
                assert part in functions, f"{name} has no test called {part}"
                checked += 1
    assert checked > 70
