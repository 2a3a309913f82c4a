"""Glob patterns: match paths such as `src/**/*.{ts,tsx}` name by name.

Does not list files (see `sandbox.files`). Invariant: no pattern causes exponential matching time.
"""

from __future__ import annotations

import fnmatch
import functools

from guildhall.core.errors import UsageError

_MAX_LENGTH = 1_000
_MAX_ALTERNATIVES = 64


class PathPattern:
    """`*` and `?` within a name, `**` over any number of folders, `[abc]` and `{a,b}`. Upper and lower case differ."""

    def __init__(self, pattern: str, *, anywhere: bool = False) -> None:
        """`anywhere`: a pattern without a slash is about the file's name, in whatever folder."""
        if not pattern.strip() or len(pattern) > _MAX_LENGTH:
            raise UsageError(f"a pattern has 1 to {_MAX_LENGTH:,} characters", hint="For example `**/*.py`.")
        if anywhere and "/" not in pattern:
            pattern = f"**/{pattern}"
        self._alternatives = [_names(one) for one in _expanded(pattern)]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(_matches(pattern, names) for pattern in self._alternatives)


def _names(pattern: str) -> list[str]:
    return [name for name in pattern.split("/") if name not in ("", ".")]


def _expanded(pattern: str) -> list[str]:
    """The pattern with each `{a,b}` spelt out."""
    done: list[str] = []
    pending = [pattern]
    while pending:
        current = pending.pop()
        close = current.find("}")
        start = current.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(current)
        else:
            inner = current[start + 1 : close].split(",")
            pending += [current[:start] + choice + current[close + 1 :] for choice in inner]
        if len(done) + len(pending) > _MAX_ALTERNATIVES:
            raise UsageError(f"the pattern has more than {_MAX_ALTERNATIVES} alternatives", hint="Ask in parts.")
    return done


def _matches(pattern: list[str], names: list[str]) -> bool:
    """Two fingers along both; a failed step goes back to the last `**` only, which then takes one name more."""
    at = name = 0
    star, taken = -1, 0
    while name < len(names):
        if at < len(pattern) and pattern[at] == "**":
            star, taken = at, name
            at += 1
        elif at < len(pattern) and _one(pattern[at], names[name]):
            at += 1
            name += 1
        elif star >= 0:
            taken += 1
            at, name = star + 1, taken
        else:
            return False
    return all(rest == "**" for rest in pattern[at:])


@functools.lru_cache(maxsize=4_096)
def _one(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)
