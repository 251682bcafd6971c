"""How many connections the operating system lets a process have."""

from __future__ import annotations

import contextlib
import sys


def raise_file_limit() -> None:
    """Have as many open files, which connections are, as the system allows: what a shell sets is often 1,024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems name a limit that they then do not give.
    with contextlib.suppress(OSError, ValueError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
