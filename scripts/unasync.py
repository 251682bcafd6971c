"""Generates the synchronous twin of every asynchronous module: `make generate`; `--check` only compares.

Each module in a folder `_async` gets one of the same name in the folder `_sync` next to it. A module that contains
"# unasync: by hand" has a counterpart written by hand.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Generated from {} by `make generate`: change it there.\n"
BY_HAND = "# unasync: by hand"

# Imports that are no longer used after this are removed by ruff.
REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bawait ", ""),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\b(Awaitable|Coroutine\[Any, Any)(\[|, )(\w+)\]", r"\3"),
        (r"\bAsync(Iterator|Generator|ContextManager|ExitStack)\b", r"\1"),
        (r"\basync(contextmanager)\b", r"\1"),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\benter_async_context\b", "enter_context"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\baclose\b", "close"),
        (r"\b(azure\.servicebus|twinbus)\.aio\b", r"\1"),
        (r"\basync_(client|arguments)\b", r"sync_\1"),
        (r"\basync_paging\b", "paging"),
        (r"\bAsyncItemPaged\b", "ItemPaged"),
        (r"\b_async\b", "_sync"),
        (r"\basynchronous", "synchronous"),
    )
]


def translate(source: str) -> str:
    """Translate a module: remove `async` and `await`."""
    for pattern, replacement in REPLACEMENTS:
        source = pattern.sub(replacement, source)
    return source


def format_source(source: str, path: Path) -> str:
    """Sort imports and reformat, because many lines became shorter."""
    for command in (["check", "--fix", "--exit-zero"], ["format"]):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(path), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source


def twins() -> dict[Path, str]:
    """The expected content of each generated file."""
    expected = {}
    for module in sorted((ROOT / "src").rglob("_async/*.py")):
        source = module.read_text()
        if BY_HAND in source:
            continue
        twin = module.parent.parent / "_sync" / module.name
        header = HEADER.format(module.relative_to(ROOT / "src" / "twinbus").as_posix())
        expected[twin] = format_source(header + translate(source), twin)
    return expected


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = 0
    for twin, text in twins().items():
        current = twin.read_text() if twin.exists() else ""
        if current == text:
            continue
        stale += 1
        name = str(twin.relative_to(ROOT))
        if is_check:
            print(f"{name} is out of date: run `make generate`", file=sys.stderr)
            changes = difflib.unified_diff(current.splitlines(True), text.splitlines(True), name, "generated")
            sys.stderr.writelines(changes)
        else:
            twin.parent.mkdir(exist_ok=True)
            twin.write_text(text)
            print(f"wrote {name}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
