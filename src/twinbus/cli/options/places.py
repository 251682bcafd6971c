"""Checks the locations of a ledger and of results before any work begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from errno import EACCES
from pathlib import Path
from typing import Any

from twinbus.ledger.ledger_errors import ExtraMissingError
from twinbus.ledger.locations import locate


def check_ledger(url: str) -> None:
    """Refuse a location where no ledger can be written. Raises `ValueError`, `OSError`."""
    _check("--ledger", url)


def check_results(url: str, ledger: str, options: Mapping[str, Any] | None = None) -> None:
    """Refuse a location where no results can be written, or inside the ledger. Raises `ValueError`.

    Spark writes the results: locations that only its file systems reach are not checked. Nothing is left behind.
    """
    ledger_path = _normalized(ledger)
    if _normalized(url) == ledger_path or _normalized(url).startswith(ledger_path + "/"):
        raise ValueError("--results must be outside the ledger")
    try:
        location = locate(url, options)
        _ = location.spark
    except ValueError as error:
        raise ValueError(f"--results: {error}") from None
    if location.is_local:
        folder = Path(location.fsspec)
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            _check_folder("--results", url, location.fsspec)
        except OSError as error:
            raise ValueError(f"{error.strerror}: {url}") from None
        finally:
            for one in missing:
                with suppress(OSError):
                    one.rmdir()


def _check(option: str, url: str) -> None:
    from twinbus.ledger.store import open_store

    try:
        open_store(url)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    except ExtraMissingError:
        raise
    except ImportError as error:  # fsspec's text names the package to install
        raise ImportError(f"{option}: {error}") from None
    location = locate(url)
    if location.is_local:
        _check_folder(option, url, location.fsspec)


def _check_folder(option: str, url: str, folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{option} must be a folder, and {url} is a file") from None
    except OSError as error:
        raise OSError(error.errno, f"{option}: the folder cannot be created: {error.strerror}", url) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(EACCES, f"{option}: no permission to create files here", url)


def _normalized(url: str) -> str:
    """Return a location in a form that can be compared."""
    location = locate(url)
    return os.path.realpath(location.fsspec) if location.is_local else location.fsspec.rstrip("/")
