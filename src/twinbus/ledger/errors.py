"""What can go wrong with a ledger.

LedgerError
├── ExtraMissing     the libraries that read and write its files are not installed
├── NotDurable       rows that are proof could not be stored in time, or at all
│   ├── NotDurableYet    not in time: they may still be
│   └── RowsDropped      some never will be; everything else is
├── LedgerClosed     the writer was closed
├── LedgerNotFound   there is no such folder
└── LedgerChanged    files were compacted away while they were being read
"""

from __future__ import annotations


class LedgerError(Exception):
    """Something is wrong with a ledger."""


class ExtraMissing(LedgerError, ImportError):  # noqa: N818 - what it is
    """The libraries that read and write a ledger's files are not installed."""

    def __init__(self) -> None:
        super().__init__("a ledger of files needs pyarrow and fsspec: pip install 'twinbus[ledger]'")


class NotDurable(LedgerError):  # noqa: N818 - what it is
    """Rows are not, or not surely, in the ledger: what they would prove must not be done."""


class NotDurableYet(NotDurable):
    """Rows are not in the ledger in time. If they get there after all, the flush calls back once more."""


class RowsDropped(NotDurable):
    """Of the rows recorded so far `count` were dropped and never will be in the ledger. All others are in it."""

    def __init__(self, count: int) -> None:
        super().__init__("rows of the ledger were dropped")
        self.count = count


class LedgerClosed(LedgerError):  # noqa: N818 - what happened
    """The writer was closed, so nothing more becomes durable."""


class LedgerNotFound(LedgerError):  # noqa: N818 - what it is
    """There is no ledger at this place."""


class LedgerChanged(LedgerError):  # noqa: N818 - what happened
    """A file was compacted away while the ledger was read. Read it again."""


def reason_of(error: BaseException) -> str:
    """An error in a few words that cannot hold a key: the system's own words for its errors, else the class."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
