"""questions.md: what a worker could not decide, readable as it is, and read back whatever the words are.

    ## a-7k2m9x4qpw, 2026-11-16T05:30:00.000Z

    > Which of the two prices holds?

    Answer:

    > The second one.

Every line of somebody's words begins with `>`, so that nothing in them ends them. Of what people have written into the
file by hand, quotations below a heading are read too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.activities.model import Asked

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD = re.compile(r"## (\S+), (\S+)")
_ANSWER = "Answer:"


def write(questions: Iterable[Asked]) -> str:
    """The whole file."""
    parts: list[str] = []
    for one in questions:
        parts.append(f"## {one.ask}, {one.at}\n\n{_quoted(one.question)}\n")
        if one.answer is not None:
            parts.append(f"{_ANSWER}\n\n{_quoted(one.answer)}\n")
    return "\n".join(parts)


def parse(text: str) -> list[Asked]:
    """What the file says."""
    found: list[Asked] = []
    words: list[str] | None = None
    answering = False
    for line in [*text.split("\n"), ""]:
        if line.startswith(">"):
            words = [*(words or ()), line[2:] if line.startswith("> ") else line[1:]]
            continue
        if words is not None and found:
            said = "\n".join(words)
            found[-1] = replace(found[-1], answer=said) if answering else replace(found[-1], question=said)
        words = None
        if (head := _HEAD.fullmatch(line)) is not None:
            found.append(Asked(ask=head[1], at=head[2], question=""))
            answering = False
        elif line.strip() == _ANSWER:
            answering = True
    return found


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))
