"""The rules of one subscription, ready to be asked for each message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from twinbus.amqp.types import DecodeError, EncodeError

from .descriptions import Correlation, FilterKind, RuleDescription, Sql
from .parser import Change, Subject, parse_action, parse_filter
from .subject import MessageSubject, changed
from .values import CannotEvaluate, compare

logger = logging.getLogger("twinbus.broker.rules")

_equal = compare("=")


class Failure(NamedTuple):
    """A rule that could not be asked about a message, and why."""

    rule: str
    why: str


class Verdict(NamedTuple):
    """What a subscription gets of a message: copies, as bare messages, and the rules that failed."""

    copies: list[bytes]
    failures: list[Failure]


class _Rule(NamedTuple):
    name: str
    passes: Callable[[Subject], bool]
    changes: list[Change]


class RuleSet:
    """The rules of a subscription. `lets_all_through` is the common case, which costs nothing."""

    def __init__(self, descriptions: Sequence[RuleDescription]) -> None:
        self._rules = [_compiled(one) for one in descriptions]
        self.lets_all_through = any(
            one.kind is FilterKind.TRUE and one.action is None for one in descriptions
        ) and not any(one.action is not None for one in descriptions)

    def judge(self, subject: MessageSubject) -> Verdict:
        """All rules that pass and change nothing make one copy together; each that changes something makes its own."""
        copies: list[bytes] = []
        failures: list[Failure] = []
        is_plain_made = False
        for rule in self._rules:
            try:
                if not rule.passes(subject):
                    continue
                if rule.changes:
                    copies.append(changed(subject, rule.changes))
                elif not is_plain_made:
                    is_plain_made = True
                    copies.append(subject.bare)
            except (CannotEvaluate, DecodeError, EncodeError) as error:
                failures.append(Failure(rule.name, str(error)))
            except Exception as error:
                # Whoever may send could otherwise stop a topic for everybody.
                logger.exception("the rule %s could not be asked", rule.name)
                failures.append(Failure(rule.name, type(error).__name__))
        return Verdict(copies, failures)


def _compiled(description: RuleDescription) -> _Rule:
    wanted, action = description.filter, description.action
    if isinstance(wanted, Sql):
        passes = parse_filter(wanted.expression, wanted.plain_parameters())
    else:
        passes = _correlated(wanted)
    changes = [] if action is None else parse_action(action.expression, action.plain_parameters())
    return _Rule(description.name, passes, changes)


def _correlated(wanted: Correlation) -> Callable[[Subject], bool]:
    system = list(wanted.system().items())
    user = [(name, value.plain()) for name, value in wanted.properties]

    def passes(subject: Subject) -> bool:
        return all(_is_text(subject.system(name), value) for name, value in system) and all(
            _equal(subject.user(name), value) for name, value in user
        )

    return passes


def _is_text(found: object, wanted: str) -> bool:
    return found is not None and str(found) == wanted
