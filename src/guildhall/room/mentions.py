"""Mention parsing: finds the `@name` mentions in a message, once, when the message is posted.

A mention is an `@name` in the speaker's own words. The parser ignores code fences, inline code, block quotes, addresses
(`a@b`), decorators, package scopes (`@scope/name`) and quoted text from other sources. Quoted text is blanked out
before parsing, so it can neither open nor close a fence.
Does not deliver messages (`channel.py`). Readers use the mentions that are stored with a message.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from guildhall.room.model import ALL, PERSON, Said

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_ELSEWHERE = "\ufffc"  # stands for text from elsewhere: no space, no letter, part of no name
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
# Behind a letter it is an address, behind a slash a link, behind a sign a changed line of a diff.
_MENTION = re.compile(rf"(?<![\w.@/\\+$\ufffc-])@({_NAME})((?:/@{_NAME})*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_QUOTE = re.compile(r" {0,3}>")
_TICKS = re.compile(r"`+")
_BEFORE = ("", "+", "-")  # a decorator on its line; the signs are those of a diff
_ENDS = "._-"  # may stand in a name, and end a sentence
_ALONE = re.compile(rf"[+-]?\s*@{_NAME}(?:\(.*\))?\s*")
# What a decorator stands above, in the languages that have them: code, and no sentence that begins with such a word.
_DECORATED = re.compile(
    r"[+-]?\s*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:({]|(?:async\s+)?func(?:tion)?\s+\w*\s*\(|fun\s+\w+\("
    r"|export\s+(?:default|class|abstract|function|const)\b|(?:const|let|var|val)\s+\w+\s*[:=]"
    r"|(?:interface|enum|struct)\s+\w+\s*\{"
    r"|(?:public|private|protected|static|final|abstract|override)\s[\w<>\[\],. ]*\w(?:\(|\s*[{=]))"
)


@dataclass(frozen=True, kw_only=True)
class Mentions:
    """Whom a text reaches, in the order in which they are named; what it names that is nobody."""

    reached: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    overlooked: tuple[str, ...] = ()  # names of those here that stand where nobody is mentioned
    everyone: bool = False  # one of the mentions was @all


def find(said: Said, names: Iterable[str]) -> Mentions:
    """The mentions in what is said, among those who are here. `@person` is always here, `@all` is everybody."""
    here = list(names)
    known = {name.lower(): name for name in (*here, PERSON, ALL)}
    bare = "".join(
        _ELSEWHERE if piece.quoted else piece.text.replace(_ELSEWHERE, " ") for piece in said.pieces if piece.text
    )
    prose = _prose(bare)
    reached: dict[str, None] = {}
    missed: dict[str, None] = {}
    everyone = False
    for written in _written(prose):
        name = _resolve(written, known)
        if name is None:
            missed[written.rstrip(_ENDS)] = None
        elif name == ALL:
            everyone = True
            reached.update(dict.fromkeys(here))
        else:
            reached[name] = None
    overlooked = {
        name: None
        for written in (match[1] for match in _MENTION.finditer(bare))
        if (name := _resolve(written, known)) and name not in reached and name != ALL
    }
    return Mentions(
        reached=tuple(reached),
        missed=tuple(missed),
        overlooked=tuple(overlooked) if not everyone else (),
        everyone=everyone,
    )


def _resolve(written: str, known: dict[str, str]) -> str | None:
    """Who is meant. A full stop or a dash at the end may belong to the sentence."""
    name = written.lower()
    while name:
        if name in known:
            return known[name]
        if name[-1] not in _ENDS:
            return None
        name = name[:-1]
    return None


def _written(prose: str) -> Iterator[str]:
    """Every name that is written as a mention."""
    lines = prose.split("\n")
    for line, above_code in zip(lines, _above_code(lines), strict=True):
        for match in _MENTION.finditer(line):
            rest = line[match.end() :]
            if rest.startswith(("/", _ELSEWHERE, "@")) and not rest.startswith(("/ ", "/\t")):
                continue  # a scope of packages, or a name that goes on in text from elsewhere
            if line[: match.start()].strip() in _BEFORE and (rest.startswith("(") or (above_code and not rest.strip())):
                continue  # a decorator
            yield match[1]
            yield from match[2].split("/@")[1:]


def _above_code(lines: list[str]) -> list[bool]:
    """Whether what comes after each line, but for decorators and empty lines, is code that can be decorated."""
    found: list[bool] = []
    code = False
    for line in reversed(lines):
        found.append(code)
        if line.strip() and not _ALONE.fullmatch(line):
            code = _DECORATED.match(line) is not None
    return found[::-1]


def _prose(text: str) -> str:
    """The text without code and block quotes; lines stay lines."""
    kept: list[str] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            closes = match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip()
            fence = "" if closes else fence
            kept.append("")
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            kept.append("")
        else:
            kept.append("" if _QUOTE.match(line) else line)
    return "\n".join(_without_ticks(block) for block in _paragraphs(kept))


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield each paragraph and each empty line. Inline code ends with its paragraph."""
    for is_text, block in groupby(lines, key=lambda line: bool(line.strip())):
        if is_text:
            yield "\n".join(block)
        else:
            yield from ("" for _ in block)


def _without_ticks(block: str) -> str:
    """A paragraph with its inline code blanked out: from some backticks to the next as many."""
    runs = list(_TICKS.finditer(block))
    lengths: dict[int, deque[int]] = {}
    for index, run in enumerate(runs):
        lengths.setdefault(len(run[0]), deque()).append(index)
    pieces: list[str] = []
    at = index = 0
    while index < len(runs):
        same = lengths[len(runs[index][0])]
        while same and same[0] <= index:
            same.popleft()
        if not same:
            index += 1
            continue
        closing = same[0]
        pieces.append(block[at : runs[index].start()])
        pieces.append("`" + "\n" * block.count("\n", runs[index].end(), runs[closing].start()) + "`")
        at = runs[closing].end()
        index = closing + 1
    pieces.append(block[at:])
    return "".join(pieces)
