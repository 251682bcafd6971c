"""Settings of the documentation site: Sphinx, with pages in Markdown (MyST) and Furo's theme. `make docs` builds it."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import twinbus
import twinbus.emulator
import twinbus.testing

# Public names are loaded when they are first used, and autodoc shows only what is loaded.
for _module in (twinbus, twinbus.emulator, twinbus.testing):
    vars(_module).update({name: getattr(_module, name) for name in _module.__all__})

project = "twinbus"
author = "the twinbus authors"
copyright = f"2026, {author}"
release = version = twinbus.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"twinbus {release}"
html_copy_source = False

# Pages link to headings as GitHub does, so that the same links work in the repository.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# The reference is built where the extras are not installed, too.
autodoc_mock_imports = [name for name in ("fsspec", "pyarrow", "pyspark") if find_spec(name) is None]
python_use_unqualified_type_names = True
add_module_names = False

# Types in signatures are shown, not linked: the inventories of other projects are on the network, which a build is not.
nitpick_ignore_regex = [(r"py:.*", r".*")]

#: Files outside `docs/` that a page here includes.
_INCLUDED = {
    "CHANGELOG.md": "/project/changelog.md",
    "CONTRIBUTING.md": "/project/contributing.md",
    "SECURITY.md": "/project/security-policy.md",
    "examples/README.md": "/how-to/examples.md",
}
_OUTSIDE = re.compile(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, _INCLUDED))})")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")


def link_included_pages(_app: Any, _page: str, source: list[str]) -> None:
    """Links to files outside `docs/` lead to the pages that include them."""
    source[0] = _OUTSIDE.sub(lambda match: f"]({_INCLUDED[match[1]]}", source[0])


def read_as_markdown(_app: Any, what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Turns single backticks into code, as in Markdown, and keeps the first paragraph of a module's docstring."""
    if what == "module" and "" in lines:
        del lines[lines.index("") :]
    text = _CODE.sub(lambda match: f"``{match[1]}``" + (rf"\ {match[2]}" if match[2] else ""), "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Any) -> None:
    app.connect("source-read", link_included_pages)
    app.connect("autodoc-process-docstring", read_as_markdown, priority=400)
