"""XML in and out. What comes in is bounded and may not declare a document type, and with it entities."""

from __future__ import annotations

from typing import NoReturn
from xml.etree import ElementTree as ET
from xml.parsers import expat

# An entry with authorization rules is seven elements deep.
_MAX_DEPTH = 32


class InvalidMarkup(ValueError):  # noqa: N818 - reads as what it says
    """A body that is not well-formed XML, or that uses more of XML than a description needs."""


def parse(body: bytes) -> ET.Element:
    """The root element of an XML document.

    Raises:
        InvalidMarkup: it is not well-formed, has a document type declaration, or is nested too deeply.
    """
    try:
        _check(body)
        return ET.fromstring(body)
    except (expat.ExpatError, ET.ParseError) as error:
        raise InvalidMarkup(f"The request body is not well-formed XML: {error}.") from error
    except (LookupError, ValueError) as error:
        if isinstance(error, InvalidMarkup):
            raise
        # Raised for an encoding that the XML declaration names and nobody knows.
        raise InvalidMarkup(f"The request body is not readable as XML: {error}.") from error


def serialize(root: ET.Element) -> bytes:
    """The document as UTF-8."""
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=False)
    # A literal carriage return would be read back as a line feed.
    return text.replace(b"\r", b"&#13;")


def _check(body: bytes) -> None:
    """Walk through the document once without building anything from it."""
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise InvalidMarkup(f"The request body must not be nested more than {_MAX_DEPTH} levels deep.")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    checker = expat.ParserCreate()
    checker.StartDoctypeDeclHandler = _refuse_doctype
    checker.StartElementHandler = start
    checker.EndElementHandler = end
    checker.Parse(body, True)


def _refuse_doctype(*_: object) -> NoReturn:
    raise InvalidMarkup("The request body must not have a document type declaration.")
