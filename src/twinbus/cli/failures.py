"""Turns exceptions into one line on standard error and an exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from twinbus.ledger.ledger_errors import LedgerError
from twinbus.spark.pipeline_errors import PipelineError
from twinbus.tables.table_errors import TablesError

from .exits import BAD_USAGE, fail

#: Library fields whose option has another name.
_OPTIONS = {"slice_seconds": "--slice", "destinations": "--destination", "tier": "--primary-tier or --secondary-tier"}


@contextmanager
def exit_on_error(command: str, *more: type[Exception]) -> Iterator[None]:
    """Exit with one line on an error: code 2 for `ValueError`, 1 for twinbus's own errors, `OSError`, and `more`."""
    known: tuple[type[Exception], ...] = (LedgerError, PipelineError, TablesError, *more)
    try:
        yield
    except known as error:
        fail(command, first_line(error))
    except ValueError as error:
        fail(command, with_option_name(first_line(error)), BAD_USAGE)
    except OSError as error:
        fail(command, describe_os_error(error))
    except ImportError as error:
        fail(command, first_line(error))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class if it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def with_option_name(message: str) -> str:
    """Replace a library field by its option: `slots must be …` becomes `--slots must be …`."""
    field = re.match(r"([a-z_]+)(?= must )", message)
    if field is None:
        return message
    option = _OPTIONS.get(field[1]) or "--" + field[1].replace("_", "-")
    return option + message[field.end() :]


def describe_os_error(error: OSError) -> str:
    """Return the file and the system's text, without the error number."""
    file = f"{error.filename}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{file}{os_error_text(error)}"


def os_error_text(error: OSError) -> str:
    """Return the system's text for an error: asyncio's own text for a refused connection is about its calls."""
    if error.errno is not None and error.errno > 0 and error.filename is None and "call failed" in str(error):
        return os.strerror(error.errno)
    return error.strerror or first_line(error)
