"""Tell apart what Spark reports as an error, over its versions and with Spark Connect."""

from __future__ import annotations

import re

from ..session import SECRET_TEXTS

#: In the text of an error: the content of a file is wrong, so that to read it again would not help.
_MALFORMED = re.compile(
    r"is not a Parquet file|expected magic number|ParquetDecodingException|CORRUPTED|corrupt"
    r"|PARQUET_COLUMN_DATA_TYPE_MISMATCH|cannot be converted in file|Reached the end of stream|EOFException"
    r"|could not read page|can not read class|Illegal Parquet type|too small|zstd|snappy|Decompress"
    r"|Unexpected end|Invalid|TProtocolException|Required field|IndexOutOfBounds|NegativeArraySize|OutOfMemory",
    re.IGNORECASE,
)
_MISSING = re.compile(r"FileNotFoundException|FILE_NOT_EXIST|does not exist|PATH_NOT_FOUND", re.IGNORECASE)
_UNKNOWN_FORMAT = re.compile(r"DATA_SOURCE_NOT_FOUND|Failed to find (the )?data source|ClassNotFoundException")


def is_unknown_format(error: BaseException) -> bool:
    """The session has no data source of this name."""
    return bool(_UNKNOWN_FORMAT.search(_text(error)))


def is_missing_path(error: BaseException) -> bool:
    """A path or file does not exist."""
    return bool(_MISSING.search(_text(error)))


def is_malformed(error: BaseException) -> bool:
    """The content of a file is wrong."""
    return bool(_MALFORMED.search(_text(error))) and not is_missing_path(error)


def reason_of(error: BaseException) -> str:
    """The cause of an error, in one line without secrets."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    return re.sub(SECRET_TEXTS, "(hidden)", [lines[0], *causes][-1])[:300]


def _text(error: BaseException) -> str:
    """The texts of an error, of Java's and of those that caused it."""
    cause = "" if error.__cause__ is None else _text(error.__cause__)
    return f"{error}\n{getattr(error, 'java_exception', '')}\n{cause}"
