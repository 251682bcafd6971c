"""Translate between the codes of the ledger and the words of the result tables."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

_Code = TypeVar("_Code", bound=IntEnum)


def word_of(code: IntEnum) -> str:
    """Return the word for a code: its name in lower case."""
    return code.name.lower()


def words_of(codes: Iterable[IntEnum]) -> list[str]:
    """Return the words for codes, in the order of the codes."""
    return [word_of(code) for code in sorted(codes)]


def code_of(codes: type[_Code], word: str) -> _Code | None:
    """Return the code of a word; None for a code of a later release, such as `code_25`."""
    return codes.__members__.get(word.upper())
