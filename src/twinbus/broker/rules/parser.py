"""Reads the SQL of filters and actions, by recursive descent, into functions of a message.

What binds most tightly comes last:

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
from .tokens import BadSql, Kind, Token, tokens

#: Parentheses and signs within one another, and more levels than anybody writes.
MAX_DEPTH = 50
MAX_LISTED = 256
_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_KEYWORDS = frozenset(
    "AND OR NOT IS NULL IN LIKE ESCAPE EXISTS TRUE FALSE SET REMOVE".split()  # noqa: SIM905 - as people list them
)

#: The properties of a message that a rule can ask for, in small letters.
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
#: Those that an action can change.
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
    """The message that a rule looks at. None stands for what is not there."""

    def system(self, name: str) -> Any:
        """One of `SYSTEM`."""

    def user(self, name: str) -> Any:
        """An application property."""


Evaluate = Callable[[Subject], Any]


class Property(NamedTuple):
    """A property in an expression; of the system in small letters."""

    is_system: bool
    name: str


class Change(NamedTuple):
    """A statement of an action. Without `value` the property is removed."""

    property: Property
    value: Evaluate | None


def parse_filter(text: str, parameters: Mapping[str, Any] | None = None) -> Callable[[Subject], bool]:
    """Whether a message passes. The function raises `CannotEvaluate`; this one `BadSql`.

    Args:
        parameters: Values for `@name`, by name without the sign.
    """
    reader = _Reader(text, parameters)
    condition = reader.condition(0)
    reader.expect_end()

    def passes(subject: Subject) -> bool:
        return values.as_truth(condition(subject)) is True

    return passes


def parse_action(text: str, parameters: Mapping[str, Any] | None = None) -> list[Change]:
    """What an action changes, in order. Raises `BadSql`."""
    reader = _Reader(text, parameters)
    changes = []
    while reader.next.kind is not Kind.END:
        changes.append(reader.statement())
        while reader.next.is_sign(";"):
            reader.take()
    if not changes:
        raise BadSql(1, "an action must have at least one SET or REMOVE")
    return changes


class _Reader:
    """Reads one text from left to right; `next` is the word that is not read yet."""

    def __init__(self, text: str, parameters: Mapping[str, Any] | None) -> None:
        self._tokens = tokens(text)
        self._parameters = {name.lstrip("@").lower(): value for name, value in (parameters or {}).items()}
        self.next: Token = next(self._tokens)

    # ---- words ----

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
            raise BadSql(self.next.position, f"{sign!r} is wanted, not {self.next}")
        self.take()

    def _expect_word(self, word: str) -> None:
        if not self._take_word(word):
            raise BadSql(self.next.position, f"{word} is wanted, not {self.next}")

    def expect_end(self) -> None:
        if self.next.kind is not Kind.END:
            raise BadSql(self.next.position, f"{self.next} is not wanted here")

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise BadSql(self.next.position, f"an expression may be at most {MAX_DEPTH} levels deep")
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
            found = self._membership(left, depth)
        elif self._take_word("LIKE"):
            found = self._likeness(left, depth)
        elif is_negated:
            raise BadSql(self.next.position, f"IN or LIKE is wanted, not {self.next}")
        else:
            return left
        return (lambda subject: values.negation(found(subject))) if is_negated else found

    def _membership(self, left: Evaluate, depth: int) -> Evaluate:
        self._expect_sign("(")
        choices = [self._sum(depth)]
        while self.next.is_sign(","):
            self.take()
            choices.append(self._sum(depth))
            if len(choices) > MAX_LISTED:
                raise BadSql(self.next.position, f"a list may have at most {MAX_LISTED} values")
        self._expect_sign(")")
        equal = values.compare("=")
        return _any_of([_combined(equal, left, choice) for choice in choices])

    def _likeness(self, left: Evaluate, depth: int) -> Evaluate:
        pattern, escape = self._sum(depth), None
        if self._take_word("ESCAPE"):
            token = self.take()
            if token.kind is not Kind.TEXT or len(token.value) != 1:
                raise BadSql(token.position, f"the escape character must be a text of one character, not {token}")
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
                raise BadSql(token.position, f"there is no parameter @{token.value}")
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
        found = self._property()
        if not self.next.is_sign("(") or token.kind is not Kind.NAME:
            return _reader_of(found)
        name = token.value.lower()
        self.take()
        if name == "newid":
            self._expect_sign(")")
            return lambda subject: str(uuid.uuid4())
        if name not in ("p", "property"):
            raise BadSql(token.position, f"{token} is not a function")
        wanted = self._sum(depth)
        self._expect_sign(")")
        return lambda subject: _user_property(subject, wanted(subject))

    # ---- properties and statements ----

    def _property(self) -> Property:
        token = self.take()
        if token.kind is Kind.NAME and token.value.lower() in ("sys", "user") and self.next.is_sign("."):
            self.take()
            name = self._name(self.take())
            if token.value.lower() == "user":
                return Property(False, name.value)
            if name.value.lower() not in SYSTEM:
                raise BadSql(name.position, f"sys.{name.value} is no property that a rule can ask for here")
            return Property(True, name.value.lower())
        return Property(False, self._name(token).value)

    def _name(self, token: Token) -> Token:
        if token.kind is Kind.QUOTED or (token.kind is Kind.NAME and token.value.upper() not in _KEYWORDS):
            return token
        raise BadSql(token.position, f"a property or a value is wanted, not {token}")

    def statement(self) -> Change:
        if self._take_word("REMOVE"):
            return Change(self._changeable(), None)
        self._expect_word("SET")
        target = self._changeable()
        self._expect_sign("=")
        return Change(target, self._sum(0))

    def _changeable(self) -> Property:
        position = self.next.position
        found = self._property()
        if found.is_system and found.name not in SETTABLE:
            raise BadSql(position, f"sys.{found.name} cannot be changed here")
        return found


def _constant(value: Any) -> Evaluate:
    return lambda subject: value


def _combined(operate: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda subject: operate(left(subject), right(subject))


def _reader_of(found: Property) -> Evaluate:
    name = found.name
    if found.is_system:
        return lambda subject: subject.system(name)
    return lambda subject: subject.user(name)


def _user_property(subject: Subject, name: Any) -> Any:
    if name is None:
        return None
    if not isinstance(name, str):
        raise values.CannotEvaluate("the name of a property must be a text")
    return subject.user(name)


def _any_of(parts: list[Evaluate]) -> Evaluate:
    """OR: true if one is; else unknown if one is; else false."""

    def found(subject: Subject) -> bool | None:
        result: bool | None = False
        for part in parts:
            truth = values.as_truth(part(subject))
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return found


def _all_of(parts: list[Evaluate]) -> Evaluate:
    """AND: false if one is; else unknown if one is; else true."""

    def found(subject: Subject) -> bool | None:
        result: bool | None = True
        for part in parts:
            truth = values.as_truth(part(subject))
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return found
