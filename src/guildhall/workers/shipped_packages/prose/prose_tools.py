"""Tools that analyse a text. They use no files and no network."""

from __future__ import annotations

import re

from guildhall import tool

_SENTENCE = re.compile(r"[^.!?]+[.!?]*")
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_WORDS_PER_MINUTE = 220  # of a reader


@tool(repeatable=True)
def measure_text(text: str, longest_sentence: int = 30) -> str:
    """Count words and sentences, estimate the reading time, and list the sentences that are too long.

    Args:
        text: The text.
        longest_sentence: Maximum number of words in a sentence.
    """
    words = text.split()
    sentences = [sentence.split() for sentence in _SENTENCE.findall(text) if sentence.strip()]
    long = [sentence for sentence in sentences if len(sentence) > longest_sentence]
    minutes = max(1, round(len(words) / _WORDS_PER_MINUTE)) if words else 0
    lines = [f"{len(words)} words, {len(sentences)} sentences, about {minutes} min to read."]
    lines += [f"{len(sentence)} words: {' '.join(sentence[:12])} ..." for sentence in long]
    return "\n".join(lines)


@tool(repeatable=True)
def outline_markdown(text: str) -> str:
    """List the headings of a Markdown text, indented by level, each with the number of words below it.

    Args:
        text: The Markdown text.
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
