"""Glob patterns: match paths such as `src/**/*.{ts,tsx}` name by name.

Does not list files (see `sandbox.files`).

Invariant: no pattern causes exponential matching time.
"""

from __future__ import annotations

import fnmatch
import functools

from guildhall.core.errors import UsageError

_MAX_PATTERN_CHARS = 1_000
_MAX_ALTERNATIVES = 64


class PathPattern:
    """A case-sensitive pattern: `*` and `?` within a name, `**` for any number of folders, `[abc]` and `{a,b}`."""

    def __init__(self, pattern: str, *, anywhere: bool = False) -> None:
        """With `anywhere`, a pattern without a slash matches file names in every folder."""
        if not pattern.strip() or len(pattern) > _MAX_PATTERN_CHARS:
            raise UsageError(
                f"invalid pattern: expected 1 to {_MAX_PATTERN_CHARS:,} characters",
                hint="Use a pattern such as `**/*.py`.",
            )
        if anywhere and "/" not in pattern:
            pattern = f"**/{pattern}"
        self._alternatives = [
            [name for name in alternative.split("/") if name not in ("", ".")]
            for alternative in _expand_braces(pattern)
        ]

    def matches(self, path: str) -> bool:
        names = path.split("/")
        return any(_matches(pattern, names) for pattern in self._alternatives)


def _expand_braces(pattern: str) -> list[str]:
    """Return a pattern for each choice of `{a,b}`."""
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
            raise UsageError(
                f"invalid pattern: more than {_MAX_ALTERNATIVES} alternatives", hint="Use several patterns."
            )
    return done


def _matches(pattern: list[str], names: list[str]) -> bool:
    """Return True if the pattern matches the names.

    A failed step backtracks to the last `**` only, which then matches one more name.
    """
    at = name = 0
    star, star_end = -1, 0
    while name < len(names):
        if at < len(pattern) and pattern[at] == "**":
            star, star_end = at, name
            at += 1
        elif at < len(pattern) and _matches_name(pattern[at], names[name]):
            at += 1
            name += 1
        elif star >= 0:
            star_end += 1
            at, name = star + 1, star_end
        else:
            return False
    return all(rest == "**" for rest in pattern[at:])


@functools.lru_cache(maxsize=4_096)
def _matches_name(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)
