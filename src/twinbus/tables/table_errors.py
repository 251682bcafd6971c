"""Errors of reading the result tables.

TablesError
├── NoResultsError       there are no results at this place
├── ResultsBusyError     a run is writing the tables, or was interrupted
├── ResultsVersionError  the tables have a version that this release does not read
├── ResultsFormatError   the tables are not Parquet, so Spark is needed to read them
├── DamagedTableError    a file of a table is missing, cannot be read or lacks a column
└── StorageError         the folder or object store could not be read
"""

from __future__ import annotations


class TablesError(Exception):
    """The result tables cannot be read. The message is one line that names the place and the reason."""


class NoResultsError(TablesError):
    """There are no results at this place."""


class ResultsBusyError(TablesError):
    """A run is writing the tables, or was interrupted while writing them."""


class ResultsVersionError(TablesError):
    """The tables have a version that this release does not read."""


class ResultsFormatError(TablesError):
    """The tables are not Parquet, so Spark is needed to read them."""


class DamagedTableError(TablesError):
    """A file of a table is missing, cannot be read or lacks a column."""


class StorageError(TablesError):
    """The folder or object store could not be read."""
