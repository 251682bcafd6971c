"""Parses the `$filter` option of a list.

    startswith(path, 'orders') eq true and messageCount gt 10

Supports comparisons of `messageCount`, `createdAt`, `modifiedAt` and `accessedAt`, and `startswith` of `path`, joined
with `and`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime

from twinbus.emulator.admin.errors import RequestError
from twinbus.emulator.admin.registry import QueueView, SubscriptionView, TopicView

AnyView = QueueView | TopicView | SubscriptionView
Test = Callable[[AnyView], bool]

MAX_LENGTH = 2048
_AND = re.compile(r"\s+and\s+(?=(?:[^']*'[^']*')*[^']*$)", re.IGNORECASE)
_STARTS = re.compile(r"startswith\(\s*path\s*,\s*'([^']*)'\s*\)(?:\s+eq\s+(true|false))?", re.IGNORECASE)
_COMPARES = re.compile(r"(\w+)\s+(eq|ne|gt|ge|lt|le)\s+'?([^']+?)'?", re.IGNORECASE)
_NUMBER = re.compile("[0-9]{1,18}")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
_MEASURES: dict[str, Callable[[AnyView], float]] = {
    "messagecount": lambda view: view.counts.total,
    "createdat": lambda view: view.created_at,
    "modifiedat": lambda view: view.updated_at,
    "accessedat": lambda view: view.accessed_at,
}


def parse_filter(text: str) -> Test:
    """A function that tells whether an entity matches a filter; raises `RequestError` if the filter is not valid."""
    if not 1 <= len(text) <= MAX_LENGTH:
        raise RequestError(400, f"SubCode=40000. The query option $filter must have 1 to {MAX_LENGTH} characters.")
    tests = [_condition(part.strip()) for part in _AND.split(text.strip())]
    return lambda view: all(test(view) for test in tests)


def _condition(text: str) -> Test:
    if match := _STARTS.fullmatch(text):
        prefix, expected = match[1].lower(), (match[2] or "true").lower() == "true"
        return lambda view: _path(view).lower().startswith(prefix) is expected
    match = _COMPARES.fullmatch(text)
    measure = _MEASURES.get(match[1].lower()) if match else None
    if match is None or measure is None:
        raise _invalid_filter(text)
    compares, bound = _OPERATORS[match[2].lower()], _bound(match[1], match[3])
    return lambda view: compares(measure(view), bound)


def _bound(name: str, text: str) -> float:
    if name.lower() == "messagecount":
        if not _NUMBER.fullmatch(text):
            raise _invalid_filter(f"{name} … {text}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid_filter(f"{name} … {text}") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _path(view: AnyView) -> str:
    return view.description.path


def _invalid_filter(text: str) -> RequestError:
    return RequestError(
        400,
        f"SubCode=40000. The query option $filter has '{text[:64]}', which is neither startswith(path, '…') nor a"
        " comparison of messageCount, createdAt, modifiedAt or accessedAt.",
    )
