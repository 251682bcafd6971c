"""Compiles the SQL of filters and actions into functions of a message, by recursive descent.

The grammar, lowest precedence first:

    condition   := conjunction { OR conjunction }
    conjunction := negated { AND negated }
    negated     := NOT negated | comparison
    comparison  := sum [ sign sum | IS [NOT] NULL | [NOT] IN (sum, …) | [NOT] LIKE sum [ESCAPE text] ]
    sum         := product { (+ | -) product }
    product     := signed { (* | / | %) signed }
    signed      := (+ | -) signed | primary
    primary     := number | text | TRUE | FALSE | NULL | @parameter | EXISTS (property) | function (…)
                 | property | (condition)
    property    := [ sys. | user. ] name
    action      := statement { [;] statement }
    statement   := SET property = sum | REMOVE property
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from . import values
from .tokens import InvalidSqlError, Kind, Token, tokens

#: The deepest nesting of parentheses and signs.
MAX_DEPTH = 50
MAX_LISTED = 256
_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_KEYWORDS = frozenset(
    "AND OR NOT IS NULL IN LIKE ESCAPE EXISTS TRUE FALSE SET REMOVE".split()  # noqa: SIM905 - shorter than a list
)

#: The message properties that a rule can read, in lower case.
SYSTEM = frozenset(
    {
        "contenttype",
        "correlationid",
        "deliverycount",
        "enqueuedtimeutc",
        "expiresatutc",
        "label",
        "messageid",
        "partitionkey",
        "replyto",
        "replytosessionid",
        "scheduledenqueuetimeutc",
        "sessionid",
        "size",
        "subject",
        "timetolive",
        "to",
    }
)
#: The message properties that an action can change.
SETTABLE = frozenset(
    {
        "contenttype",
        "correlationid",
        "label",
        "messageid",
        "replyto",
        "replytosessionid",
        "sessionid",
        "subject",
        "to",
    }
)


class Subject(Protocol):
    """The message that a rule is evaluated on."""

    def system(self, name: str) -> Any:
        """The value of a property in `SYSTEM`; None if the message does not have it."""

    def user(self, name: str) -> Any:
        """The value of an application property; None if the message does not have it."""


Evaluate = Callable[[Subject], Any]


class Property(NamedTuple):
    """A property in an expression. The name of a system property is in lower case."""

    is_system: bool
    name: str


class Change(NamedTuple):
    """A statement of an action. If `value` is None, the property is removed."""

    property: Property
    value: Evaluate | None


def parse_filter(text: str, parameters: Mapping[str, Any] | None = None) -> Callable[[Subject], bool]:
    """Compile a filter to a function that tells whether a message passes.

    Raises `InvalidSqlError`; the returned function raises `EvaluationError`.

    Args:
        parameters: Values of `@name`, by name without the `@`.
    """
    reader = _Reader(text, parameters)
    condition = reader.condition(0)
    reader.expect_end()

    def passes(subject: Subject) -> bool:
        return values.as_truth(condition(subject)) is True

    return passes


def parse_action(text: str, parameters: Mapping[str, Any] | None = None) -> list[Change]:
    """Compile an action to its statements, in order. Raises `InvalidSqlError`."""
    reader = _Reader(text, parameters)
    changes = []
    while reader.next.kind is not Kind.END:
        changes.append(reader.statement())
        while reader.next.is_sign(";"):
            reader.take()
    if not changes:
        raise InvalidSqlError(1, "an action must have at least one SET or REMOVE")
    return changes


class _Reader:
    """Parses one text from left to right; `next` is the next unread token."""

    def __init__(self, text: str, parameters: Mapping[str, Any] | None) -> None:
        self._tokens = tokens(text)
        self._parameters = {name.lstrip("@").lower(): value for name, value in (parameters or {}).items()}
        self.next: Token = next(self._tokens)

    # ---- tokens ----

    def take(self) -> Token:
        taken = self.next
        if taken.kind is not Kind.END:
            self.next = next(self._tokens)
        return taken

    def _take_word(self, *words: str) -> bool:
        if self.next.is_word(*words):
            self.take()
            return True
        return False

    def _expect_sign(self, sign: str) -> None:
        if not self.next.is_sign(sign):
            raise InvalidSqlError(self.next.position, f"expected {sign!r}, got {self.next}")
        self.take()

    def _expect_word(self, word: str) -> None:
        if not self._take_word(word):
            raise InvalidSqlError(self.next.position, f"expected {word}, got {self.next}")

    def expect_end(self) -> None:
        if self.next.kind is not Kind.END:
            raise InvalidSqlError(self.next.position, f"unexpected {self.next}")

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise InvalidSqlError(self.next.position, f"an expression may be at most {MAX_DEPTH} levels deep")
        return depth + 1

    # ---- conditions ----

    def condition(self, depth: int) -> Evaluate:
        depth = self._deeper(depth)
        parts = [self._conjunction(depth)]
        while self._take_word("OR"):
            parts.append(self._conjunction(depth))
        return _any_of(parts) if len(parts) > 1 else parts[0]

    def _conjunction(self, depth: int) -> Evaluate:
        parts = [self._negated(depth)]
        while self._take_word("AND"):
            parts.append(self._negated(depth))
        return _all_of(parts) if len(parts) > 1 else parts[0]

    def _negated(self, depth: int) -> Evaluate:
        if self._take_word("NOT"):
            negated = self._negated(self._deeper(depth))
            return lambda subject: values.negation(negated(subject))
        return self._comparison(depth)

    def _comparison(self, depth: int) -> Evaluate:
        left = self._sum(depth)
        if self.next.is_sign(*_COMPARISONS):
            compare, right = values.compare(self.take().value.replace("!=", "<>")), self._sum(depth)
            return lambda subject: compare(left(subject), right(subject))
        if self._take_word("IS"):
            is_negated = self._take_word("NOT")
            self._expect_word("NULL")
            return lambda subject: (left(subject) is None) is not is_negated
        is_negated = self._take_word("NOT")
        if self._take_word("IN"):
            condition = self._membership(left, depth)
        elif self._take_word("LIKE"):
            condition = self._likeness(left, depth)
        elif is_negated:
            raise InvalidSqlError(self.next.position, f"expected IN or LIKE, got {self.next}")
        else:
            return left
        return (lambda subject: values.negation(condition(subject))) if is_negated else condition

    def _membership(self, left: Evaluate, depth: int) -> Evaluate:
        self._expect_sign("(")
        choices = [self._sum(depth)]
        while self.next.is_sign(","):
            self.take()
            choices.append(self._sum(depth))
            if len(choices) > MAX_LISTED:
                raise InvalidSqlError(self.next.position, f"a list may have at most {MAX_LISTED} values")
        self._expect_sign(")")
        equal = values.compare("=")
        return _any_of([_combined(equal, left, choice) for choice in choices])

    def _likeness(self, left: Evaluate, depth: int) -> Evaluate:
        pattern, escape = self._sum(depth), None
        if self._take_word("ESCAPE"):
            token = self.take()
            if token.kind is not Kind.TEXT or len(token.value) != 1:
                raise InvalidSqlError(
                    token.position, f"the escape character must be a text of one character, not {token}"
                )
            escape = token.value
        return lambda subject: values.like(left(subject), pattern(subject), escape)

    # ---- numbers and texts ----

    def _sum(self, depth: int) -> Evaluate:
        left = self._product(depth)
        while self.next.is_sign("+", "-"):
            left = _combined(values.arithmetic(self.take().value), left, self._product(depth))
        return left

    def _product(self, depth: int) -> Evaluate:
        left = self._signed(depth)
        while self.next.is_sign("*", "/", "%"):
            left = _combined(values.arithmetic(self.take().value), left, self._signed(depth))
        return left

    def _signed(self, depth: int) -> Evaluate:
        if self.next.is_sign("+", "-"):
            apply = values.negative if self.take().value == "-" else values.positive
            inner = self._signed(self._deeper(depth))
            return lambda subject: apply(inner(subject))
        return self._primary(depth)

    def _primary(self, depth: int) -> Evaluate:
        token = self.next
        if token.kind in (Kind.NUMBER, Kind.TEXT):
            self.take()
            return _constant(token.value)
        if token.kind is Kind.PARAMETER:
            self.take()
            if token.value.lower() not in self._parameters:
                raise InvalidSqlError(token.position, f"there is no parameter @{token.value}")
            return _constant(self._parameters[token.value.lower()])
        if token.is_sign("("):
            self.take()
            inner = self.condition(depth)
            self._expect_sign(")")
            return inner
        if token.is_word("TRUE", "FALSE", "NULL"):
            self.take()
            return _constant({"TRUE": True, "FALSE": False, "NULL": None}[token.value.upper()])
        if token.is_word("EXISTS"):
            return self._existence()
        return self._named(depth)

    def _existence(self) -> Evaluate:
        self.take()
        self._expect_sign("(")
        read = _reader_of(self._property())
        self._expect_sign(")")
        return lambda subject: read(subject) is not None

    def _named(self, depth: int) -> Evaluate:
        """A property, or a function: `newid()`, `property('name')` and short `p('name')`."""
        token = self.next
        target = self._property()
        if not self.next.is_sign("(") or token.kind is not Kind.NAME:
            return _reader_of(target)
        name = token.value.lower()
        self.take()
        if name == "newid":
            self._expect_sign(")")
            return lambda subject: str(uuid.uuid4())
        if name not in ("p", "property"):
            raise InvalidSqlError(token.position, f"{token} is not a function")
        property_name = self._sum(depth)
        self._expect_sign(")")
        return lambda subject: _user_property(subject, property_name(subject))

    # ---- properties and statements ----

    def _property(self) -> Property:
        token = self.take()
        if token.kind is Kind.NAME and token.value.lower() in ("sys", "user") and self.next.is_sign("."):
            self.take()
            name = self._name(self.take())
            if token.value.lower() == "user":
                return Property(False, name.value)
            if name.value.lower() not in SYSTEM:
                raise InvalidSqlError(name.position, f"sys.{name.value} is not a property that a rule can read here")
            return Property(True, name.value.lower())
        return Property(False, self._name(token).value)

    def _name(self, token: Token) -> Token:
        if token.kind is Kind.QUOTED or (token.kind is Kind.NAME and token.value.upper() not in _KEYWORDS):
            return token
        raise InvalidSqlError(token.position, f"expected a property or a value, got {token}")

    def statement(self) -> Change:
        if self._take_word("REMOVE"):
            return Change(self._changeable(), None)
        self._expect_word("SET")
        target = self._changeable()
        self._expect_sign("=")
        return Change(target, self._sum(0))

    def _changeable(self) -> Property:
        position = self.next.position
        target = self._property()
        if target.is_system and target.name not in SETTABLE:
            raise InvalidSqlError(position, f"sys.{target.name} cannot be changed here")
        return target


def _constant(value: Any) -> Evaluate:
    return lambda subject: value


def _combined(operate: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda subject: operate(left(subject), right(subject))


def _reader_of(target: Property) -> Evaluate:
    name = target.name
    if target.is_system:
        return lambda subject: subject.system(name)
    return lambda subject: subject.user(name)


def _user_property(subject: Subject, name: Any) -> Any:
    if name is None:
        return None
    if not isinstance(name, str):
        raise values.EvaluationError("the name of a property must be a text")
    return subject.user(name)


def _any_of(parts: list[Evaluate]) -> Evaluate:
    """OR: true if any part is true; else unknown if any is unknown; else false."""

    def any_of(subject: Subject) -> bool | None:
        result: bool | None = False
        for part in parts:
            truth = values.as_truth(part(subject))
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return any_of


def _all_of(parts: list[Evaluate]) -> Evaluate:
    """AND: false if any part is false; else unknown if any is unknown; else true."""

    def all_of(subject: Subject) -> bool | None:
        result: bool | None = True
        for part in parts:
            truth = values.as_truth(part(subject))
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return all_of
