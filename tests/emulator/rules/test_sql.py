"""The SQL of rules: evaluation and syntax errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.servicebus.sql_filter.parser import MAX_DEPTH, SYSTEM, parse_action, parse_filter
from twinbus.servicebus.sql_filter.tokens import MAX_LENGTH, InvalidSqlError
from twinbus.servicebus.sql_filter.values import EvaluationError, like


class Message:
    """A message with these properties."""

    def __init__(self, properties: dict[str, Any] | None = None, **system: Any) -> None:
        self._properties, self._system = properties or {}, system

    def system(self, name: str) -> Any:
        assert name in SYSTEM
        return self._system.get(name)

    def user(self, name: str) -> Any:
        return self._properties.get(name)


ORDER = Message({"color": "red", "qty": 6, "price": 2.5, "rush": True, "my prop": 1, "and": 2}, label="urgent", to="x")


def passes(text: str, message: Message = ORDER, **parameters: Any) -> bool:
    return parse_filter(text, parameters)(message)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "COLOR = 'x' OR color = 'red'",
        "color <> 'blue' AND color != 'green'",
        "qty > 5 AND qty >= 6 AND qty < 7 AND qty <= 6",
        "qty = 6.0",
        "qty IN (1, 2, 6)",
        "qty NOT IN (1, 2)",
        "color LIKE 'r%'",
        "color LIKE '_e_'",
        "color NOT LIKE '%b%'",
        "'50%' LIKE '50!%' ESCAPE '!'",
        "missing IS NULL",
        "color IS NOT NULL",
        "EXISTS(color) AND NOT EXISTS(missing)",
        "exists(sys.Label)",
        "sys.Label = 'urgent' and SYS.label LIKE 'ur%'",
        "sys.To = 'x'",
        "user.color = 'red'",
        "[my prop] = 1",
        '"my prop" = 1',
        "[and] = 2",
        "rush",
        "rush = TRUE",
        "NOT rush = FALSE",
        "TRUE",
        "1 = 1",
        "2 + 3 * 4 = 14",
        "(2 + 3) * 4 = 20",
        "10 - 2 - 3 = 5",
        "7 / 2 = 3 AND -7 / 2 = -3",
        "7 % 3 = 1 AND -7 % 3 = -1 AND 7 % -3 = 1",
        "7.0 / 2 = 3.5",
        "1e2 = 100 AND .5 = 0.5 AND 5. = 5",
        "- -1 = 1 AND +1 = 1",
        "'a' + 'b' = 'ab'",
        "'it''s' = 'it''s'",
        "p('color') = 'red' AND property('co' + 'lor') = 'red'",
        "newid() LIKE '________-____-____-____-____________'",
        "NOT missing = 1 OR TRUE",
        "color = 'red' OR missing > 1",
        "1 = 1 AND NOT (1 = 0 OR 2 = 1)",
        "NOT 1 = 0 AND 1 = 1",
        "color <> 5",
    ],
)
def test_filter_matches(text: str) -> None:
    assert passes(text)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'blue'",
        "missing = 1",
        "NOT missing = 1",
        "missing <> 1",
        "missing = missing",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "missing LIKE '%'",
        "missing NOT LIKE 'x'",
        "missing + 1 > 0",
        "-missing < 0",
        "color = NULL",
        "NULL",
        "color = 'red' AND missing > 1",
        "color = 5",
        "color > 5",
        "rush > FALSE",
        "qty LIKE '6'",
        "FALSE OR NULL",
        "color = 'RED'",
    ],
)
def test_filter_does_not_match(text: str) -> None:
    assert not passes(text)


def test_precedence_is_not_and_or() -> None:
    assert passes("TRUE OR TRUE AND FALSE")
    assert not passes("NOT TRUE OR FALSE")
    assert passes("NOT FALSE AND TRUE")


def test_parameters_are_replaced_by_values() -> None:
    assert passes("color = @c AND qty > @Q", c="red", q=5)
    with pytest.raises(InvalidSqlError, match="there is no parameter @c"):
        passes("color = @c")


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("", 1, "expected a property or a value, got the end"),
        ("color =", 8, "got the end"),
        ("color = 'red", 9, "a text is not closed"),
        ("[color = 1", 1, "a name in brackets is not closed"),
        ("color = red blue", 13, "unexpected 'blue'"),
        ("(color = 1", 11, "expected ')', got the end"),
        ("color IN ()", 11, "expected a property or a value"),
        ("color IN 1", 10, "expected '('"),
        ("color NOT = 1", 11, "expected IN or LIKE"),
        ("color IS 1", 10, "expected NULL"),
        ("color LIKE 'x' ESCAPE 'ab'", 23, "a text of one character"),
        ("sys.Nothing = 1", 5, "sys.Nothing is not a property that a rule can read here"),
        ("sys. = 1", 6, "expected a property or a value"),
        ("color ? 1", 7, "unexpected '?'"),
        ("shout('x') = 1", 1, "'shout' is not a function"),
        ("AND = 1", 1, "expected a property or a value, got 'AND'"),
        ("a.b = 1", 2, "unexpected '.'"),
        ("x = 99999999999999999999", 5, "a whole number may be at most 9223372036854775807"),
        ("x = 1; DROP TABLE y", 6, "unexpected ';'"),
        ("__import__('os')", 1, "'__import__' is not a function"),
    ],
)
def test_invalid_sql_is_refused_with_position(text: str, position: int, why: str) -> None:
    with pytest.raises(InvalidSqlError) as caught:
        parse_filter(text)
    assert caught.value.position == position
    assert why in caught.value.why


def test_long_and_deep_expressions_are_refused() -> None:
    with pytest.raises(InvalidSqlError, match=f"at most {MAX_LENGTH} characters"):
        parse_filter("1 = 1 OR " * 200 + "1 = 1")
    with pytest.raises(InvalidSqlError, match=f"at most {MAX_DEPTH} levels"):
        parse_filter("(" * 100 + "1 = 1" + ")" * 100)
    for text in ("NOT " * 200 + "TRUE", "-" * 900 + "1 = 1", "(" * 500):
        with pytest.raises(InvalidSqlError):
            parse_filter(text)
    assert passes("(" * (MAX_DEPTH - 2) + "1 = 1" + ")" * (MAX_DEPTH - 2))


@pytest.mark.parametrize(
    "text",
    ["color + 1 > 0", "-color = 1", "+rush = 1", "1 / 0 = 1", "1 % 0 = 1", "color AND TRUE", "NOT qty", "qty",
     "9223372036854775807 + 1 > 0", "p(5) = 1", "'x' LIKE 'x!' ESCAPE '!'"],
)  # fmt: skip
def test_unsuitable_values_raise_evaluation_error(text: str) -> None:
    with pytest.raises(EvaluationError):
        passes(text)


def test_float_divided_by_zero_is_infinite() -> None:
    assert passes("1.0 / 0 > 1 AND -1.0 / 0 < 1")
    assert not passes("0.0 / 0 = 0.0 / 0")


@given(st.text("ab%_!", max_size=12), st.text("ab", max_size=12))
def test_like_agrees_with_a_simple_matcher(pattern: str, text: str) -> None:
    def matches(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "%":
            return matches(p[1:], t) or (bool(t) and matches(p, t[1:]))
        return bool(t) and p[0] in ("_", t[0]) and matches(p[1:], t[1:])

    assert like(text, pattern, None) is matches(pattern, text)


def test_like_is_fast_on_adversarial_patterns() -> None:
    assert like("a" * 100_000, "%a" * 50 + "%b", None) is False


@given(st.text("ab=<>()'%+-*/ .,[]@NOTINLKESULANDR123", max_size=60))
@settings(max_examples=500)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for read in (parse_filter, parse_action):
        try:
            read(text)
        except InvalidSqlError as error:
            position = error.position
        else:
            continue
        assert 1 <= position <= len(text) + 1


@given(st.integers(-1000, 1000), st.integers(-1000, 1000).filter(bool))
def test_integer_division_truncates(left: int, right: int) -> None:
    quotient, remainder = math.trunc(left / right), int(math.fmod(left, right))
    assert passes("@l / @r = @q AND @l % @r = @m", Message(), l=left, r=right, q=quotient, m=remainder)


TRUTHS = st.sampled_from(["TRUE", "FALSE", "NULL"])


@given(TRUTHS, TRUTHS)
def test_three_valued_logic(left: str, right: str) -> None:
    values = {"TRUE": True, "FALSE": False, "NULL": None}
    a, b = values[left], values[right]
    both = False if a is False or b is False else None if a is None or b is None else True
    either = True if a or b else None if a is None or b is None else False
    for sign, expected in (("AND", both), ("OR", either)):
        assert passes(f"{left} {sign} {right}") is (expected is True)
        assert passes(f"NOT ({left} {sign} {right})") is (expected is False)
        assert passes(f"({left} {sign} {right}) IS NULL") is (expected is None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least one SET or REMOVE"),
        ("SET", "expected a property or a value"),
        ("SET color", "expected '='"),
        ("REMOVE", "expected a property or a value"),
        ("DELETE color", "expected SET"),
        ("SET sys.EnqueuedTimeUtc = 1", "sys.enqueuedtimeutc cannot be changed here"),
        ("SET sys.PartitionKey = 'a'", "sys.partitionkey cannot be changed here"),
        ("REMOVE sys.EnqueuedTimeUtc", "cannot be changed"),
    ],
)
def test_invalid_actions_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSqlError, match=why):
        parse_action(text)
