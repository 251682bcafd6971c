"""Compiles the rules of one subscription and evaluates them on messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from twinbus.amqp.codec.types import DecodeError, EncodeError
from twinbus.servicebus.rule_descriptions import Correlation, FilterKind, RuleDescription, Sql
from twinbus.servicebus.sql_filter.parser import Change, Subject, parse_action, parse_filter
from twinbus.servicebus.sql_filter.values import EvaluationError, compare

from .subject import MessageSubject, apply_changes

logger = logging.getLogger("twinbus.emulator.entities.rules")

_equal = compare("=")


class Failure(NamedTuple):
    """A rule that could not be evaluated on a message, and why."""

    rule: str
    why: str


class RuleOutcome(NamedTuple):
    """What the rules make of a message: copies for the subscription, as bare messages, and the rules that failed."""

    copies: list[bytes]
    failures: list[Failure]


class _Rule(NamedTuple):
    name: str
    passes: Callable[[Subject], bool]
    changes: list[Change]


class RuleSet:
    """The compiled rules of a subscription. `passes_everything` marks the common case, which needs no evaluation."""

    def __init__(self, descriptions: Sequence[RuleDescription]) -> None:
        self._rules = [_compile(rule) for rule in descriptions]
        self.passes_everything = any(rule.kind is FilterKind.TRUE for rule in descriptions) and all(
            rule.action is None for rule in descriptions
        )

    def evaluate(self, subject: MessageSubject) -> RuleOutcome:
        """Matching rules without an action make one copy together; each one with an action makes its own."""
        copies: list[bytes] = []
        failures: list[Failure] = []
        has_plain_copy = False
        for rule in self._rules:
            try:
                if not rule.passes(subject):
                    continue
                if rule.changes:
                    copies.append(apply_changes(subject, rule.changes))
                elif not has_plain_copy:
                    has_plain_copy = True
                    copies.append(subject.bare)
            except (EvaluationError, DecodeError, EncodeError) as error:
                failures.append(Failure(rule.name, str(error)))
            except Exception as error:
                # Otherwise one client that may send could stop the topic for all others.
                logger.exception("evaluating the rule %s failed", rule.name)
                failures.append(Failure(rule.name, type(error).__name__))
        return RuleOutcome(copies, failures)


def _compile(description: RuleDescription) -> _Rule:
    rule_filter, action = description.filter, description.action
    if isinstance(rule_filter, Sql):
        passes = parse_filter(rule_filter.expression, rule_filter.plain_parameters())
    else:
        passes = _compile_correlation(rule_filter)
    changes = [] if action is None else parse_action(action.expression, action.plain_parameters())
    return _Rule(description.name, passes, changes)


def _compile_correlation(correlation: Correlation) -> Callable[[Subject], bool]:
    system = list(correlation.system().items())
    user = [(name, value.plain()) for name, value in correlation.properties]

    def passes(subject: Subject) -> bool:
        return all(_is_text(subject.system(name), value) for name, value in system) and all(
            _equal(subject.user(name), value) for name, value in user
        )

    return passes


def _is_text(value: object, expected: str) -> bool:
    return value is not None and str(value) == expected
