"""Where a ledger or results are kept: what is wrong with such a place is said before any work is begun."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path

from twinbus.ledger.errors import ExtraMissing


def check_ledger(url: str) -> None:
    """Refuse a ledger that cannot be kept there before any message is moved. Raises `ValueError`, `OSError`."""
    _check("--ledger", url)


def check_results(url: str, ledger: str) -> None:
    """Refuse results that cannot be kept there, or would lie in the ledger. Raises `ValueError`, `OSError`."""
    within = _plain(ledger)
    if _plain(url) == within or _plain(url).startswith(within + "/"):
        raise ValueError("--results must be a place of their own, outside the ledger")
    _check("--results", url)


def _check(option: str, url: str) -> None:
    from twinbus.ledger.store import open_store

    try:
        open_store(url)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    except ExtraMissing:
        raise
    except ImportError as error:  # fsspec's own words for a protocol: which package to install
        raise ImportError(f"{option}: {error}") from None
    if "://" in url:
        return
    try:
        Path(url).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{option} must be a folder, which {url} is not") from None
    except OSError as error:
        raise OSError(error.errno, f"{option}: the folder cannot be made: {error.strerror}", url) from None
    if not os.access(url, os.W_OK | os.X_OK):
        raise PermissionError(EACCES, f"{option}: files cannot be made here", url)


def _plain(url: str) -> str:
    """A place in one way of writing it."""
    return url.rstrip("/") if "://" in url else os.path.realpath(url)
