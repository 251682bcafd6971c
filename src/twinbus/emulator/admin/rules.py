"""Converts subscription rules to and from XML."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from xml.etree import ElementTree as ET

from twinbus.emulator.admin.properties import SCHEMA_INSTANCE, SERVICE_BUS, element, format_time
from twinbus.servicebus.property_bounds import InvalidDescriptionError
from twinbus.servicebus.rule_descriptions import (
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


def read_rule(node: ET.Element, name: str | None, now: float) -> RuleDescription:
    """The rule in a `RuleDescription` or `DefaultRuleDescription` element; `name` is the rule's name in the URL.

    Raises:
        InvalidDescriptionError: the element does not describe a valid rule.
    """
    body_name = node.findtext(f"{_SB}Name") or name or DEFAULT_RULE
    if name is not None and body_name.lower() != name.lower():
        message = f"The rule is called '{body_name}' in the body and '{name}' in the address."
        raise InvalidDescriptionError("name", message)
    kind, rule_filter = _read_filter(node.find(f"{_SB}Filter"))
    rule = RuleDescription(body_name, rule_filter, kind, _read_action(node.find(f"{_SB}Action")), now)
    rule.validate()
    return rule


def _read_filter(node: ET.Element | None) -> tuple[FilterKind, Sql | Correlation]:
    if node is None:
        return FilterKind.TRUE, Sql(_FIXED[FilterKind.TRUE])
    name = _type(node)
    try:
        kind = FilterKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in FilterKind)
        raise InvalidDescriptionError("filter", f"A filter must be one of {known}, not '{name[:64]}'.") from None
    if kind is FilterKind.CORRELATION:
        texts: dict[str, Any] = {field: _text(node, tag) for tag, field in _CORRELATION.items()}
        return kind, Correlation(**texts, properties=_read_values(node.find(f"{_SB}Properties")))
    expression = _FIXED.get(kind) or _text(node, "SqlExpression")
    if not expression:
        raise InvalidDescriptionError("filter", "An SQL filter must have an SqlExpression.")
    return kind, Sql(expression, _read_values(node.find(f"{_SB}Parameters")))


def _read_action(node: ET.Element | None) -> Sql | None:
    if node is None or _type(node) == "EmptyRuleAction":
        return None
    expression = _text(node, "SqlExpression")
    if _type(node) != "SqlRuleAction" or not expression:
        raise InvalidDescriptionError(
            "action", "An action must be an EmptyRuleAction, or an SqlRuleAction with its SQL."
        )
    return Sql(expression, _read_values(node.find(f"{_SB}Parameters")))


def _read_values(node: ET.Element | None) -> Values:
    pairs = [] if node is None else node.findall(f"{_SB}KeyValueOfstringanyType")
    if len(pairs) > MAX_PROPERTIES:
        raise InvalidDescriptionError("filter", f"A rule may have at most {MAX_PROPERTIES} parameters or properties.")
    parsed = []
    for pair in pairs:
        value = pair.find(f"{_SB}Value")
        if value is None:
            raise InvalidDescriptionError("filter", "Every key of a rule must have a value.")
        kind = (value.get(_TYPE) or "string").rpartition(":")[2]
        parsed.append((pair.findtext(f"{_SB}Key") or "", Value(kind, value.text or "")))
    return tuple(parsed)


def _type(node: ET.Element) -> str:
    return (node.get(_TYPE) or "").rpartition(":")[2]


def _text(parent: ET.Element, name: str) -> str | None:
    child = parent.find(_SB + name)
    return None if child is None or child.get(_NIL) == "true" else child.text or None


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
    node = element("Filter", **{"i:type": rule.kind.value})
    if isinstance(rule.filter, Sql):
        _write_sql(node, rule.filter)
        return node
    for tag, name in _CORRELATION.items():
        text = getattr(rule.filter, name)
        if text is not None:
            node.append(element(tag, text))
    node.append(_write_values("Properties", rule.filter.properties))
    return node


def _write_action(action: Sql | None) -> ET.Element:
    if action is None:
        return element("Action", **{"i:type": "EmptyRuleAction"})
    node = element("Action", **{"i:type": "SqlRuleAction"})
    _write_sql(node, action)
    return node


def _write_sql(parent: ET.Element, sql: Sql) -> None:
    parent.append(element("SqlExpression", sql.expression))
    parent.append(element("CompatibilityLevel", "20"))
    parent.append(_write_values("Parameters", sql.parameters))


def _write_values(name: str, values: Values) -> ET.Element:
    node = element(name)
    for key, value in values:
        pair = element("KeyValueOfstringanyType")
        pair.append(element("Key", key))
        pair.append(element("Value", value.text, **{"xmlns:d6p1": _SCHEMA, "i:type": f"d6p1:{value.kind}"}))
        node.append(pair)
    return node


assert {each.name for each in fields(Correlation)} == {*_CORRELATION.values(), "properties"}
