"""Defines the errors of a ledger.

LedgerError
├── ExtraMissingError     the libraries that read and write its files are not installed
├── NotDurableError       rows that serve as proof were not stored in time, or at all
│   ├── NotYetDurableError    not in time; they may still be stored later
│   └── RowsDroppedError      some rows were dropped for good; all others are stored
├── LedgerClosedError     the writer is closed
├── LedgerNotFoundError   the folder or URL does not exist
└── LedgerFilesChangedError    files were compacted away during a read
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base class of the ledger's errors."""


class ExtraMissingError(LedgerError, ImportError):
    """The libraries that read and write a ledger's files are not installed."""

    def __init__(self) -> None:
        super().__init__("a ledger of files needs the extra `ledger`: pip install '.[ledger]' in a checkout of twinbus")


class NotDurableError(LedgerError):
    """Rows are not known to be in the ledger: do not settle the messages they would prove."""


class NotYetDurableError(NotDurableError):
    """Rows were not stored before the deadline. If they are stored later, the flush calls back a second time."""


class RowsDroppedError(NotDurableError):
    """`count` of the rows recorded so far were dropped for good. All others are in the ledger."""

    def __init__(self, count: int, ledger: str = "the ledger") -> None:
        super().__init__(f"rows of {ledger} were dropped: {count}")
        self.count = count


class LedgerClosedError(LedgerError):
    """The writer is closed: no more rows are stored."""


class LedgerNotFoundError(LedgerError):
    """There is no ledger at this folder or URL."""


class LedgerFilesChangedError(LedgerError):
    """A file was compacted away while the ledger was read. Read the ledger again."""


def reason_of(error: BaseException) -> str:
    """Return a short reason without secrets: the system's text of an `OSError`, else the class name."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
