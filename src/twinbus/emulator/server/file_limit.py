"""Raises the limit of open files, which bounds the number of connections."""

from __future__ import annotations

import contextlib
import sys


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: a shell often sets only 1,024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems report a hard limit that they then refuse to set.
    with contextlib.suppress(OSError, ValueError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
