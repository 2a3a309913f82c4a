"""Mention parser: finds the `@name` mentions in a message when the message is posted.

The parser ignores code fences, inline code, block quotes, addresses (`a@b`), decorators, package scopes (`@scope/name`)
and quoted text from other sources. Quoted text is blanked out before parsing, so it can neither open nor close a fence.
Does not deliver messages (`channel.py`). Readers use the mentions that are stored with a message.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from guildhall.room.model import ALL, PERSON, MessageText

_QUOTED = "\ufffc"  # replaces quoted text; it is not a space, a letter or part of a name
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
# An @ after a letter belongs to an address, after a slash to a link, after a sign to a line of a diff.
_MENTION = re.compile(rf"(?<![\w.@/\\+$\ufffc-])@({_NAME})((?:/@{_NAME})*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_QUOTE = re.compile(r" {0,3}>")
_TICKS = re.compile(r"`+")
_DECORATOR_PREFIXES = ("", "+", "-")  # a diff line starts with a sign
_TRAILING = "._-"  # part of a name, or punctuation at the end of a sentence
_DECORATOR_LINE = re.compile(rf"[+-]?\s*@{_NAME}(?:\(.*\))?\s*")
# Code that can follow a decorator, in several languages. A sentence that begins with such a word does not match.
_DECORATABLE = re.compile(
    r"[+-]?\s*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:({]|(?:async\s+)?func(?:tion)?\s+\w*\s*\(|fun\s+\w+\("
    r"|export\s+(?:default|class|abstract|function|const)\b|(?:const|let|var|val)\s+\w+\s*[:=]"
    r"|(?:interface|enum|struct)\s+\w+\s*\{"
    r"|(?:public|private|protected|static|final|abstract|override)\s[\w<>\[\],. ]*\w(?:\(|\s*[{=]))"
)


@dataclass(frozen=True, kw_only=True)
class Mentions:
    """The mentions in a text, in order."""

    reached: tuple[str, ...] = ()  # known names
    missed: tuple[str, ...] = ()  # unknown names
    overlooked: tuple[str, ...] = ()  # agents named only inside code or quotes
    has_all: bool = False


def find(message: MessageText, names: Iterable[str]) -> Mentions:
    """Return the mentions in a text. `names` are the agents of the room; `@person` and `@all` are always known."""
    agents = list(names)
    known = {name.lower(): name for name in (*agents, PERSON, ALL)}
    own_text = "".join(
        _QUOTED if part.is_quoted else part.text.replace(_QUOTED, " ") for part in message.parts if part.text
    )
    reached: dict[str, None] = {}
    missed: dict[str, None] = {}
    has_all = False
    for written in _mentioned_names(_strip_code(own_text)):
        name = _resolve(written, known)
        if name is None:
            missed[written.rstrip(_TRAILING)] = None
        elif name == ALL:
            has_all = True
            reached.update(dict.fromkeys(agents))
        else:
            reached[name] = None
    overlooked = {
        name: None
        for written in (match[1] for match in _MENTION.finditer(own_text))
        if not has_all and (name := _resolve(written, known)) and name not in reached and name != ALL
    }
    return Mentions(reached=tuple(reached), missed=tuple(missed), overlooked=tuple(overlooked), has_all=has_all)


def _resolve(written: str, known: dict[str, str]) -> str | None:
    """Return the known name of a written mention, or None. Punctuation at its end may belong to the sentence."""
    name = written.lower()
    while name:
        if name in known:
            return known[name]
        if name[-1] not in _TRAILING:
            return None
        name = name[:-1]
    return None


def _mentioned_names(prose: str) -> Iterator[str]:
    """Yield every name that is written as a mention."""
    lines = prose.split("\n")
    for line, is_above_code in zip(lines, _find_lines_above_code(lines), strict=True):
        for match in _MENTION.finditer(line):
            rest = line[match.end() :]
            if rest.startswith(("/", _QUOTED, "@")) and not rest.startswith(("/ ", "/\t")):
                continue  # a package scope, or a name that continues in quoted text
            if line[: match.start()].strip() in _DECORATOR_PREFIXES and (
                rest.startswith("(") or (is_above_code and not rest.strip())
            ):
                continue  # a decorator
            yield match[1]
            yield from match[2].split("/@")[1:]


def _find_lines_above_code(lines: list[str]) -> list[bool]:
    """Return True for each line that is above code that can have a decorator. Skip empty lines and decorators."""
    are_above_code: list[bool] = []
    is_code = False
    for line in reversed(lines):
        are_above_code.append(is_code)
        if line.strip() and not _DECORATOR_LINE.fullmatch(line):
            is_code = _DECORATABLE.match(line) is not None
    return are_above_code[::-1]


def _strip_code(text: str) -> str:
    """Return the text with code and block quotes blanked out. The number of lines does not change."""
    kept: list[str] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            is_end = match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip()
            fence = "" if is_end else fence
            kept.append("")
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            kept.append("")
        else:
            kept.append("" if _QUOTE.match(line) else line)
    return "\n".join(_strip_inline_code(block) for block in _paragraphs(kept))


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield each paragraph and each empty line. Inline code ends with its paragraph."""
    for is_text, block in groupby(lines, key=lambda line: bool(line.strip())):
        if is_text:
            yield "\n".join(block)
        else:
            yield from ("" for _ in block)


def _strip_inline_code(block: str) -> str:
    """Return a paragraph with its inline code blanked out. A span ends with as many backticks as it starts with."""
    ticks = list(_TICKS.finditer(block))
    indexes_by_length: dict[int, deque[int]] = {}
    for index, match in enumerate(ticks):
        indexes_by_length.setdefault(len(match[0]), deque()).append(index)
    parts: list[str] = []
    position = index = 0
    while index < len(ticks):
        same_length = indexes_by_length[len(ticks[index][0])]
        while same_length and same_length[0] <= index:
            same_length.popleft()
        if not same_length:
            index += 1
            continue
        closing = same_length[0]
        parts.append(block[position : ticks[index].start()])
        parts.append("`" + "\n" * block.count("\n", ticks[index].end(), ticks[closing].start()) + "`")
        position = ticks[closing].end()
        index = closing + 1
    parts.append(block[position:])
    return "".join(parts)
