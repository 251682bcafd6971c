"""Splits the SQL of a rule into tokens with positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

MAX_LENGTH = 1024
_MAX_LONG = (1 << 63) - 1


class InvalidSqlError(ValueError):
    """The text is not a valid filter or action: the position (from 1), and why."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"At position {position}: {why}")
        self.position = position
        self.why = why


class Kind(StrEnum):
    """The kind of a token."""

    NUMBER = "number"
    TEXT = "text"
    NAME = "name"  # a property or a keyword
    QUOTED = "quoted name"  # a property, never a keyword
    PARAMETER = "parameter"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """A token. `value` is its number, its text without quotes, its name as written, or its sign."""

    kind: Kind
    value: Any
    position: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these keywords."""
        return self.kind is Kind.NAME and self.value.upper() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind is Kind.SIGN and self.value in signs

    def __str__(self) -> str:
        return "the end" if self.kind is Kind.END else f"{self.value!r}"


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | '(?P<text>(?:[^']|'')*)'
  | \[(?P<bracketed>(?:[^\]]|\]\])+)\]
  | "(?P<quoted>(?:[^"]|"")+)"
  | @(?P<parameter>[^\W\d]\w*)
  | (?P<name>[^\W\d]\w*)
  | (?P<sign><>|!=|<=|>=|[=<>+\-*/%().,;])
  )""",
    re.VERBOSE,
)


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, then one for its end. Raises `InvalidSqlError`."""
    if len(text) > MAX_LENGTH:
        raise InvalidSqlError(
            MAX_LENGTH + 1, f"an expression may have at most {MAX_LENGTH} characters, not {len(text)}"
        )
    pos, end = 0, len(text.rstrip())
    while pos < end:
        match = _TOKEN.match(text, pos)
        if match is None:
            start = pos + len(text[pos:]) - len(text[pos:].lstrip())
            raise InvalidSqlError(start + 1, _complaint(text[start]))
        yield _token(match)
        pos = match.end()
    yield Token(Kind.END, "", end + 1)


def _complaint(character: str) -> str:
    opened = {"'": "a text", '"': "a name in quotes", "[": "a name in brackets"}
    what = opened.get(character)
    return f"{what} is not closed, or is empty" if what else f"unexpected {character!r}"


def _token(match: re.Match[str]) -> Token:
    group = match.lastgroup or ""
    raw = match[group]
    at = match.start(group) + 1
    if group == "number":
        return Token(Kind.NUMBER, _number(raw, at), at)
    if group == "text":
        return Token(Kind.TEXT, raw.replace("''", "'"), at - 1)
    if group == "bracketed":
        return Token(Kind.QUOTED, raw.replace("]]", "]"), at - 1)
    if group == "quoted":
        return Token(Kind.QUOTED, raw.replace('""', '"'), at - 1)
    if group == "parameter":
        return Token(Kind.PARAMETER, raw, at - 1)
    return Token(Kind.NAME if group == "name" else Kind.SIGN, raw, at)


def _number(raw: str, at: int) -> int | float:
    if not raw.isdigit():
        return float(raw)
    if int(raw) > _MAX_LONG:
        raise InvalidSqlError(at, f"a whole number may be at most {_MAX_LONG}")
    return int(raw)
