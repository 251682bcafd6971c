"""How commands fail: one line on standard error that says what is wrong and where, and an exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from twinbus.ledger.errors import LedgerError
from twinbus.pipeline.errors import PipelineError

from .exits import BAD_USAGE, fail

#: Fields of the library whose options are not called like them.
_OPTIONS = {"slice_seconds": "--slice", "destinations": "--destination", "tier": "--primary-tier or --secondary-tier"}


@contextmanager
def failing(command: str, *more: type[Exception]) -> Iterator[None]:
    """Errors end the command with a line and exit code 1, `ValueError` with 2; `more` are further ones for 1."""
    of_ours: tuple[type[Exception], ...] = (LedgerError, PipelineError, *more)
    try:
        yield
    except of_ours as error:
        fail(command, first_line(error))
    except ValueError as error:
        fail(command, as_option(first_line(error)), BAD_USAGE)
    except OSError as error:
        fail(command, reason_with_place(error))
    except ImportError as error:
        fail(command, first_line(error))


def first_line(error: BaseException) -> str:
    """What an error says, at most a line of it; its class if it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def as_option(message: str) -> str:
    """What the library says of a field, said of the option: `slots must be …` becomes `--slots must be …`."""
    found = re.match(r"([a-z_]+)(?= must )", message)
    if found is None:
        return message
    option = _OPTIONS.get(found[1]) or "--" + found[1].replace("_", "-")
    return option + message[found.end() :]


def reason_with_place(error: OSError) -> str:
    """The system's words, without its number, and the file that they are about."""
    place = f"{error.filename}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{place}{system_words(error)}"


def system_words(error: OSError) -> str:
    """The system's own words for an error: those of asyncio for a refused connection are about its calls."""
    if error.errno is not None and error.errno > 0 and error.filename is None and "call failed" in str(error):
        return os.strerror(error.errno)
    return error.strerror or first_line(error)
