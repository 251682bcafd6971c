"""The words of a rule's SQL, each with its position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

MAX_LENGTH = 1024
_MAX_LONG = (1 << 63) - 1


class BadSql(ValueError):  # noqa: N818 - what it is
    """The text is no filter or action: where, counted from 1, and why."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"At position {position}: {why}")
        self.position = position
        self.why = why


class Kind(StrEnum):
    """What a word is."""

    NUMBER = "number"
    TEXT = "text"
    NAME = "name"  # a property or a keyword
    QUOTED = "quoted name"  # a property, never a keyword
    PARAMETER = "parameter"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """A word. `value` is what it stands for: a number, a text, a name as written, a sign."""

    kind: Kind
    value: Any
    position: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords."""
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
    """The words of a text, and one for its end. Raises `BadSql`."""
    if len(text) > MAX_LENGTH:
        raise BadSql(MAX_LENGTH + 1, f"an expression may have at most {MAX_LENGTH} characters, not {len(text)}")
    pos, end = 0, len(text.rstrip())
    while pos < end:
        found = _TOKEN.match(text, pos)
        if found is None:
            start = pos + len(text[pos:]) - len(text[pos:].lstrip())
            raise BadSql(start + 1, _complaint(text[start]))
        yield _token(found)
        pos = found.end()
    yield Token(Kind.END, "", end + 1)


def _complaint(character: str) -> str:
    opened = {"'": "a text", '"': "a name in quotes", "[": "a name in brackets"}
    what = opened.get(character)
    return f"{what} does not end, or is empty" if what else f"{character!r} has no meaning here"


def _token(found: re.Match[str]) -> Token:
    group = found.lastgroup or ""
    raw = found[group]
    at = found.start(group) + 1
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
        raise BadSql(at, f"a whole number may be at most {_MAX_LONG}")
    return int(raw)
