"""Rules of subscriptions as XML and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from xml.etree import ElementTree as ET

from twinbus.broker.admin.properties import SCHEMA_INSTANCE, SERVICE_BUS, element, format_time
from twinbus.broker.bounds import InvalidDescription
from twinbus.broker.rules.descriptions import (
    DEFAULT_RULE,
    MAX_PROPERTIES,
    Correlation,
    FilterKind,
    RuleDescription,
    Sql,
    Value,
    Values,
)

_SB = f"{{{SERVICE_BUS}}}"
_TYPE = f"{{{SCHEMA_INSTANCE}}}type"
_NIL = f"{{{SCHEMA_INSTANCE}}}nil"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
#: The elements of a correlation filter, in the order of the service.
_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
_FIXED = {FilterKind.TRUE: "1=1", FilterKind.FALSE: "1=0"}


def read_rule(found: ET.Element, name: str | None, now: float) -> RuleDescription:
    """The rule that a `RuleDescription` or `DefaultRuleDescription` describes; `name` is that of its address.

    Raises:
        InvalidDescription: it describes none.
    """
    own = found.findtext(f"{_SB}Name") or name or DEFAULT_RULE
    if name is not None and own.lower() != name.lower():
        raise InvalidDescription("name", f"The rule is called '{own}' in the body and '{name}' in the address.")
    kind, wanted = _read_filter(found.find(f"{_SB}Filter"))
    rule = RuleDescription(own, wanted, kind, _read_action(found.find(f"{_SB}Action")), now)
    rule.validate()
    return rule


def _read_filter(found: ET.Element | None) -> tuple[FilterKind, Sql | Correlation]:
    if found is None:
        return FilterKind.TRUE, Sql(_FIXED[FilterKind.TRUE])
    name = _type(found)
    try:
        kind = FilterKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in FilterKind)
        raise InvalidDescription("filter", f"A filter must be one of {known}, not '{name[:64]}'.") from None
    if kind is FilterKind.CORRELATION:
        texts: dict[str, Any] = {own: _text(found, tag) for tag, own in _CORRELATION.items()}
        return kind, Correlation(**texts, properties=_read_values(found.find(f"{_SB}Properties")))
    expression = _FIXED.get(kind) or _text(found, "SqlExpression")
    if not expression:
        raise InvalidDescription("filter", "An SQL filter must have an SqlExpression.")
    return kind, Sql(expression, _read_values(found.find(f"{_SB}Parameters")))


def _read_action(found: ET.Element | None) -> Sql | None:
    if found is None or _type(found) == "EmptyRuleAction":
        return None
    expression = _text(found, "SqlExpression")
    if _type(found) != "SqlRuleAction" or not expression:
        raise InvalidDescription("action", "An action must be an EmptyRuleAction, or an SqlRuleAction with its SQL.")
    return Sql(expression, _read_values(found.find(f"{_SB}Parameters")))


def _read_values(found: ET.Element | None) -> Values:
    pairs = [] if found is None else found.findall(f"{_SB}KeyValueOfstringanyType")
    if len(pairs) > MAX_PROPERTIES:
        raise InvalidDescription("filter", f"A rule may have at most {MAX_PROPERTIES} parameters or properties.")
    made = []
    for pair in pairs:
        value = pair.find(f"{_SB}Value")
        if value is None:
            raise InvalidDescription("filter", "Every key of a rule must have a value.")
        kind = (value.get(_TYPE) or "string").rpartition(":")[2]
        made.append((pair.findtext(f"{_SB}Key") or "", Value(kind, value.text or "")))
    return tuple(made)


def _type(found: ET.Element) -> str:
    return (found.get(_TYPE) or "").rpartition(":")[2]


def _text(parent: ET.Element, name: str) -> str | None:
    found = parent.find(_SB + name)
    return None if found is None or found.get(_NIL) == "true" else found.text or None


def write_rule(rule: RuleDescription) -> ET.Element:
    """The element that describes a rule."""
    described = element("RuleDescription", xmlns=SERVICE_BUS)
    described.set("xmlns:i", SCHEMA_INSTANCE)
    described.append(_write_filter(rule))
    described.append(_write_action(rule.action))
    described.append(element("CreatedAt", format_time(rule.created_at)))
    described.append(element("Name", rule.name))
    return described


def _write_filter(rule: RuleDescription) -> ET.Element:
    made = element("Filter", **{"i:type": rule.kind.value})
    if isinstance(rule.filter, Sql):
        _write_sql(made, rule.filter)
        return made
    for tag, name in _CORRELATION.items():
        text = getattr(rule.filter, name)
        if text is not None:
            made.append(element(tag, text))
    made.append(_write_values("Properties", rule.filter.properties))
    return made


def _write_action(action: Sql | None) -> ET.Element:
    if action is None:
        return element("Action", **{"i:type": "EmptyRuleAction"})
    made = element("Action", **{"i:type": "SqlRuleAction"})
    _write_sql(made, action)
    return made


def _write_sql(parent: ET.Element, sql: Sql) -> None:
    parent.append(element("SqlExpression", sql.expression))
    parent.append(element("CompatibilityLevel", "20"))
    parent.append(_write_values("Parameters", sql.parameters))


def _write_values(name: str, values: Values) -> ET.Element:
    made = element(name)
    for key, value in values:
        pair = element("KeyValueOfstringanyType")
        pair.append(element("Key", key))
        pair.append(element("Value", value.text, **{"xmlns:d6p1": _SCHEMA, "i:type": f"d6p1:{value.kind}"}))
        made.append(pair)
    return made


assert {one.name for one in fields(Correlation)} == {*_CORRELATION.values(), "properties"}
