"""Parses and serializes XML safely: limited depth, no document type and so no entities."""

from __future__ import annotations

from typing import NoReturn
from xml.etree import ElementTree as ET
from xml.parsers import expat

# An entry with authorization rules is seven elements deep.
_MAX_DEPTH = 32


class InvalidMarkupError(ValueError):
    """The body is not well-formed XML, has a document type, or is nested too deeply."""


def parse(body: bytes) -> ET.Element:
    """The root element of an XML document.

    Raises:
        InvalidMarkupError: it is not well-formed, has a document type declaration, or is nested too deeply.
    """
    try:
        _check(body)
        return ET.fromstring(body)
    except (expat.ExpatError, ET.ParseError) as error:
        raise InvalidMarkupError(f"The request body is not well-formed XML: {error}.") from error
    except (LookupError, ValueError) as error:
        if isinstance(error, InvalidMarkupError):
            raise
        # An unknown encoding in the XML declaration.
        raise InvalidMarkupError(f"The request body is not readable as XML: {error}.") from error


def serialize(root: ET.Element) -> bytes:
    """The document in UTF-8."""
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=False)
    # A parser would read a literal carriage return as a line feed.
    return text.replace(b"\r", b"&#13;")


def _check(body: bytes) -> None:
    """Scan the document once without building a tree."""
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise InvalidMarkupError(f"The request body must not be nested more than {_MAX_DEPTH} levels deep.")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    checker = expat.ParserCreate()
    checker.StartDoctypeDeclHandler = _refuse_doctype
    checker.StartElementHandler = start
    checker.EndElementHandler = end
    checker.Parse(body, True)


def _refuse_doctype(*_: object) -> NoReturn:
    raise InvalidMarkupError("The request body must not have a document type declaration.")
