"""Turns HTML into text that reads well: headings, lists and links stay, scripts and styles go."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

_DROPPED = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas"})
_PARAGRAPHS = frozenset(
    {"p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "table", "blockquote",
     "pre", "form", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "title", "dl", "hr", "details"}
)  # fmt: skip
_LINES = frozenset({"br", "li", "tr", "dt", "dd", "option", "summary"})
_KEPT = "\0"  # a space that stays, while the text is put together
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


def readable(html: str, base: str) -> str:
    """The text of a page; `base` is its address, for links that are relative to it."""
    parser = _Reader(base)
    parser.feed(html)
    parser.close()
    return parser.text()


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = base
        self._parts: list[str] = []
        self._dropping: list[str] = []
        self._links: list[tuple[str, int]] = []
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            self._dropping.append(tag)
        if self._dropping:
            return
        self._break(tag)
        values = dict(attrs)
        if tag in _HEADINGS:
            self._parts.append(_HEADINGS[tag])
        elif tag == "li":
            self._parts.append("- ")
        elif tag in {"td", "th"}:
            self._parts.append(" | ")
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "img" and values.get("alt"):
            self._parts.append(f"[image: {values['alt']}]")
        elif tag == "a":
            self._links.append((values.get("href") or "", len(self._parts)))

    def handle_endtag(self, tag: str) -> None:
        if self._dropping:
            if tag in self._dropping:
                del self._dropping[self._dropping.index(tag) :]
            return
        if tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        if tag in _PARAGRAPHS:
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._dropping:
            data = data.replace(_KEPT, "")
            self._parts.append(data.replace(" ", _KEPT) if self._preformatted else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._parts.append("\n\n")
        elif tag in _LINES:
            self._parts.append("\n")

    def _end_link(self, href: str, start: int) -> None:
        said = "".join(self._parts[start:]).strip()
        try:
            target = urljoin(self._base, href)
        except ValueError:
            target = ""
        if said and href and not href.startswith("#") and target.startswith(("http://", "https://")):
            self._parts[start:] = [f"[{said}]({target})"]

    def text(self) -> str:
        lines = (line.strip().rstrip(_KEPT) for line in "".join(self._parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().replace(_KEPT, " ")
