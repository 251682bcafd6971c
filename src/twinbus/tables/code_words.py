"""Translate between the ledger's codes and the words that stand for them in the result tables."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

_Code = TypeVar("_Code", bound=IntEnum)


def word_of(code: IntEnum) -> str:
    """The word for a code: its name in lower case."""
    return code.name.lower()


def words_of(codes: Iterable[IntEnum]) -> list[str]:
    """The words for codes, in the order of the codes."""
    return [word_of(code) for code in sorted(codes)]


def code_of(codes: type[_Code], word: str) -> _Code | None:
    """The code that a word stands for; None for a code of a later release, such as `code_25`."""
    return codes.__members__.get(word.upper())
