"""Search tools: implement Grep on the content of files and Glob on their paths.

Does not read whole files (see `tools.builtin.files`). A search stops at its limits of time and output.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import GuildError, TimedOut, UsageError
from guildhall.sandbox.files import SandboxFiles, SandboxPath
from guildhall.sandbox.glob import PathPattern
from guildhall.tools.builtin.files import is_binary
from guildhall.tools.definition import tool

if TYPE_CHECKING:
    from guildhall.sandbox.view import View
    from guildhall.tools.model import Handler, Tool

_SKIPPED = frozenset({".git"})
_MAX_PATTERN_CHARS = 1_000
_MAX_LINE_CHARS = 2_000  # the searched part of a line, because a hostile pattern is slow on long lines
_MAX_SHOWN_LINE_CHARS = 500
_MAX_OUTPUT_CHARS = 50_000
_MAX_RESULTS = 1_000
_MAX_CONTEXT = 20
_TIMEOUT_S = 20.0
_LINES_PER_CLOCK_CHECK = 64

Mode = Literal["content", "files", "count"]


def search_tools(view: View, clock: Clock | None = None) -> tuple[Tool, ...]:
    """Return Grep and Glob for the folders of a view."""
    handlers = search_handlers(view, clock)
    return tuple(tool(name=name, capabilities={"fs.read"}, repeatable=True)(handlers[name]) for name in handlers)


def search_handlers(view: View, clock: Clock | None = None) -> dict[str, Handler]:
    search = _Search(view, clock or SystemClock())
    return {"Grep": search.grep, "Glob": search.glob}


class _Search:
    def __init__(self, view: View, clock: Clock) -> None:
        self._files_in_view = SandboxFiles(view)
        self._clock = clock

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        output_mode: Mode = "content",
        ignore_case: bool = False,
        context: int = 0,
        max_results: int = 100,
    ) -> str:
        """Search the lines of files for a regular expression.

        Args:
            pattern: A Python regular expression.
            path: The file or folder to search. Default: the working folder.
            glob: Search only matching files, such as `*.py` or `src/**/*.ts`.
            output_mode: `content` returns lines, `files` paths, `count` the number of lines per file.
            ignore_case: Ignore letter case.
            context: Lines to return before and after each match, at most 20.
            max_results: The maximum number of lines or files, at most 1000.
        """
        if context < 0 or max_results < 1:
            raise UsageError("context must be at least 0, and max_results at least 1")
        search = _GrepSearch(
            expression=_compile(pattern, ignore_case),
            mode=output_mode,
            context=min(context, _MAX_CONTEXT),
            max_results=min(max_results, _MAX_RESULTS),
            clock=self._clock,
            deadline=self._clock.monotonic() + _TIMEOUT_S,
        )
        wanted = PathPattern(glob, anywhere=True) if glob else None
        for name, spot in self._files(path, search):
            if wanted is None or wanted.matches(name):
                self._search(spot, search)
            if search.is_full:
                break
        return search.report(pattern)

    def glob(self, pattern: str, path: str | None = None) -> str:
        """List files by path, one per line, sorted.

        Args:
            pattern: A glob pattern, such as `*.md` (in the folder itself) or `src/**/*.{ts,tsx}`.
            path: The folder to search. Default: the working folder.
        """
        if pattern.startswith("/"):
            path, pattern = _split(pattern)
        wanted = PathPattern(pattern)
        deadline = self._clock.monotonic() + _TIMEOUT_S
        search = _GrepSearch(mode="files", max_results=_MAX_RESULTS, clock=self._clock, deadline=deadline)
        for name, spot in self._files(path, search):
            if wanted.matches(name):
                search.add(self._files_in_view.display_path(spot))
            if search.is_full:
                break
        return search.report(pattern)

    def _files(self, path: str | None, search: _GrepSearch) -> Iterator[tuple[str, SandboxPath]]:
        for start in self._files_in_view.search_roots(path):
            survey = self._files_in_view.list_files(start, skip=_SKIPPED)
            for found in survey:
                search.check_deadline()
                yield found
            if survey.is_truncated:
                search.notes.append("too many files; not all were searched: use a subfolder as `path`")

    def _search(self, spot: SandboxPath, search: _GrepSearch) -> None:
        try:
            data = self._files_in_view.read(spot, is_text=True).data
        except GuildError:
            search.unreadable_files += 1
            return
        if not is_binary(data):
            search.search(self._files_in_view.display_path(spot), data.decode("utf-8", "replace"))


@dataclass
class _GrepSearch:
    """A search in progress: the pattern, the results and the limits."""

    mode: Mode
    max_results: int
    clock: Clock
    deadline: float
    expression: re.Pattern[str] = field(default_factory=lambda: re.compile(""))
    context: int = 0
    found: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    results: int = 0
    size: int = 0
    unreadable_files: int = 0
    is_full: bool = False

    def check_deadline(self) -> None:
        if self.clock.monotonic() > self.deadline:
            hint = "Search fewer files, or with a simpler pattern."
            raise TimedOut(f"the search took longer than {_TIMEOUT_S:g} s", hint=hint)

    def add(self, line: str, *, counts: bool = True) -> None:
        """Add a line to the result, or mark the result as full."""
        if (counts and self.results >= self.max_results) or self.size > _MAX_OUTPUT_CHARS:
            self.is_full = True
            return
        self.results += counts
        self.size += len(line)
        self.found.append(line)

    def search(self, path: str, text: str) -> None:
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        hits = self._hits(lines)
        if self.mode == "content":
            self._add_matches(path, lines, hits)
        elif self.mode == "files":
            if next(hits, None) is not None:
                self.add(path)
        elif count := sum(1 for _ in hits):
            self.add(f"{path}:{count}")

    def _hits(self, lines: list[str]) -> Iterator[int]:
        for number, line in enumerate(lines):
            if number % _LINES_PER_CLOCK_CHECK == 0 or len(line) > _MAX_SHOWN_LINE_CHARS:
                self.check_deadline()
            if self.expression.search(line[:_MAX_LINE_CHARS].removesuffix("\r")):
                yield number

    def _add_matches(self, path: str, lines: list[str], hits: Iterator[int]) -> None:
        """Add the matching lines with their context, separated by `--`."""
        matched = dict.fromkeys(hits)
        last = -1
        for hit in matched:
            for number in range(max(last + 1, hit - self.context), min(len(lines), hit + self.context + 1)):
                if number in matched and number > hit:
                    break  # the next hit adds it
                if self.context and last >= 0 and number > last + 1:
                    self.add("--", counts=False)
                mark = ":" if number == hit else "-"
                self.add(f"{path}{mark}{number + 1}{mark}{_truncate(lines[number])}", counts=number == hit)
                last = number
            if self.is_full:
                return

    def report(self, pattern: str) -> str:
        if self.is_full:
            self.notes.append(f"only the first {self.results:,} are shown; narrow the search")
        if self.unreadable_files:
            self.notes.append(f"{self.unreadable_files:,} files could not be searched (too large, or not permitted)")
        if not self.found:
            self.notes.insert(0, f"no matches for {pattern}")
        return "\n".join([*self.found, *(f"[{note}]" for note in self.notes)])


def _compile(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise UsageError(f"invalid pattern: longer than {_MAX_PATTERN_CHARS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        hint = "Put a backslash before literal characters such as ( [ . *"
        raise UsageError(f"invalid regular expression {pattern!r}: {error}", hint=hint) from None


def _truncate(line: str) -> str:
    line = line.removesuffix("\r")
    return line if len(line) <= _MAX_SHOWN_LINE_CHARS else f"{line[:_MAX_SHOWN_LINE_CHARS]} [line cut]"


def _split(pattern: str) -> tuple[str, str]:
    """Split an absolute pattern into its folder and the rest."""
    names = pattern.split("/")
    plain = next((index for index, name in enumerate(names) if set(name) & set("*?[{")), len(names) - 1)
    return "/".join(names[:plain]) or "/", "/".join(names[plain:])
