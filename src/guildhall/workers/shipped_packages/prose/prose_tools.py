"""Tools that look at a text. They need nothing beside it: neither files nor a network."""

from __future__ import annotations

import re

from guildhall import tool

_SENTENCE = re.compile(r"[^.!?]+[.!?]*")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_A_MINUTE = 220  # words that a person reads


@tool(repeatable=True)
def measure_text(text: str, longest_sentence: int = 30) -> str:
    """Counts words and sentences, estimates the reading time, and names the sentences that are too long.

    Args:
        text: The text.
        longest_sentence: Words that a sentence may have.
    """
    words = text.split()
    sentences = [one.strip() for one in _SENTENCE.findall(text) if one.strip()]
    long = [one for one in sentences if len(one.split()) > longest_sentence]
    minutes = max(1, round(len(words) / _A_MINUTE)) if words else 0
    lines = [f"{len(words)} words, {len(sentences)} sentences, about {minutes} min to read."]
    lines += [f"{len(one.split())} words: {' '.join(one.split()[:12])} ..." for one in long]
    return "\n".join(lines)


@tool(repeatable=True)
def outline_markdown(text: str) -> str:
    """The headings of a Markdown text, indented by their level, each with the words below it.

    Args:
        text: The Markdown.
    """
    found: list[tuple[int, str, int]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading:
            found.append((len(heading[1]), heading[2], 0))
        elif found:
            level, title, words = found[-1]
            found[-1] = (level, title, words + len(line.split()))
    return "\n".join(f"{'  ' * (level - 1)}{title} ({words} words)" for level, title, words in found) or "No headings."
