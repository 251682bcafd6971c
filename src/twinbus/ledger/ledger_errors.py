"""What can go wrong with a ledger.

LedgerError
├── ExtraMissingError     the libraries that read and write its files are not installed
├── NotDurableError       rows that are proof could not be stored in time, or at all
│   ├── NotYetDurableError    not in time: they may still be
│   └── RowsDroppedError      some never will be; everything else is
├── LedgerClosedError     the writer was closed
├── LedgerNotFoundError   there is no such folder
└── LedgerFilesChangedError    files were compacted away while they were being read
"""

from __future__ import annotations


class LedgerError(Exception):
    """Something is wrong with a ledger."""


class ExtraMissingError(LedgerError, ImportError):
    """The libraries that read and write a ledger's files are not installed."""

    def __init__(self) -> None:
        super().__init__("a ledger of files needs the extra `ledger`: pip install '.[ledger]' in a checkout of twinbus")


class NotDurableError(LedgerError):
    """Rows are not, or not surely, in the ledger: what they would prove must not be done."""


class NotYetDurableError(NotDurableError):
    """Rows are not in the ledger in time. If they get there after all, the flush calls back once more."""


class RowsDroppedError(NotDurableError):
    """Of the rows recorded so far `count` were dropped and never will be in the ledger. All others are in it."""

    def __init__(self, count: int) -> None:
        super().__init__("rows of the ledger were dropped")
        self.count = count


class LedgerClosedError(LedgerError):
    """The writer was closed, so nothing more becomes durable."""


class LedgerNotFoundError(LedgerError):
    """There is no ledger at this place."""


class LedgerFilesChangedError(LedgerError):
    """A file was compacted away while the ledger was read. Read it again."""


def reason_of(error: BaseException) -> str:
    """An error in a few words that cannot hold a key: the system's own words for its errors, else the class."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
