"""Exit codes, the same for every command: 0 done, 1 failed or something is left to do, 2 bad usage."""

from __future__ import annotations

BAD_USAGE = 2
