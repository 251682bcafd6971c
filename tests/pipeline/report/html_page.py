"""Parses an HTML file strictly: errors that browsers forgive are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input", "base", "embed", "source", "track", "wbr", "area", "col"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def every(self, name: str | None = None) -> list[Element]:
        """Return this element and all below it, in order."""
        mine = [self] if name in (None, self.name) else []
        return mine + [found for child in self.children for found in child.every(name)]

    @property
    def text(self) -> str:
        return " ".join(" ".join((*self.texts, *(child.text for child in self.children))).split())

    def within(self, name: str) -> Element | None:
        above = self.parent
        while above is not None and above.name != name:
            above = above.parent
        return above


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice: {names}"
        found = Element(tag, {name: value or "" for name, value in attrs}, self._open[-1])
        self._open[-1].children.append(found)
        if tag not in VOID:
            self._open.append(found)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> ends <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].texts.append(data)


def parse(html: str) -> Element:
    """Return the page; AssertionError if its elements are not properly nested."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser._open == [parser.root], f"not closed: {[element.name for element in parser._open]}"
    return parser.root
