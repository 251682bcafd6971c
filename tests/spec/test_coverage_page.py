"""Tests that the tests named in docs/reference/spec-coverage.md exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "spec-coverage.md"


def functions_of(name: str) -> str:
    """The names of the tests in a file, given as `folder/test_file`, or `test_section_n` for this folder."""
    files = list(TESTS.glob(f"{name}.py")) or list(TESTS.glob(f"spec/{name}*.py"))
    assert len(files) == 1, f"expected one file for {name}, got {files}"
    return "\n".join(re.findall(r"def test_(\w+)\(", files[0].read_text()))


def test_every_test_named_on_the_page_exists() -> None:
    checked = 0
    for row in PAGE.read_text().splitlines():
        if not row.startswith("| "):
            continue
        cell = row.strip("| ").split(" | ")[-1]
        # `file` name, name…, `file` name: each file is followed by names of its tests, or parts of names.
        for name, parts in re.findall(r"`((?:[\w/]+/)?test_\w+)`([^`]*)", cell):
            functions = functions_of(name)
            for part in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+){2,}\b|typed_aliases", parts):
                assert part in functions, f"{name} has no test called {part}"
                checked += 1
    assert checked > 70
