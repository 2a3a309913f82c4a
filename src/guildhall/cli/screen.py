"""Screen: prints results on standard output and everything else on standard error, as text or JSON.

Control characters are escaped on a terminal; a pipe gets the text unchanged. `plain` is for output and progress: it
escapes control sequences and leaves the characters that languages need. `exact` is for text that a user approves: it
escapes every character that is not plainly visible. Does not format runs or other objects (see `cli.format`).

Invariant: known secrets are redacted in both streams.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from guildhall.core.redaction import Redactor

if TYPE_CHECKING:
    from io import TextIOWrapper

    from guildhall.core.errors import GuildError

Style = Literal["dim", "bold", "red", "yellow"]
Form = Literal["text", "json", "stream-json"]

_STYLES: Mapping[Style, str] = {"dim": "2", "bold": "1", "red": "31", "yellow": "33"}
RESULT_FIELDS = ("run", "status", "output", "error", "usage", "cost_usd", "asks")


class OutputFailed(Exception):
    """Standard output cannot be written, because its reader has closed the pipe or the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write the result: {error.strerror or error}")
        self.is_broken_pipe = isinstance(error, BrokenPipeError)  # the reader needs no more, as in `guild log | head`


def read_form(words: Sequence[str]) -> Form:
    """Return the form of the output. It is read from unparsed arguments, so that errors in them have this form too."""
    words = words[: words.index("--")] if "--" in words else words
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        form = value if equals else "".join(words[index + 1 : index + 2])
        if option == "--output" and form in ("json", "stream-json"):
            return form
    return "json" if "--json" in words else "text"


@dataclass(kw_only=True)
class Screen:
    """The two streams of a command."""

    out: TextIO
    err: TextIO
    environ: Mapping[str, str]
    form: Form = "text"
    is_run_result: bool = False  # the command prints the result of a run, so an error has its fields
    abort_note: str | None = None  # printed if a second signal ends the process
    _is_stderr_broken: bool = False
    _is_mid_line: bool = False

    def __post_init__(self) -> None:
        self.redact = Redactor(self.environ)
        self._colour = not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb"

    @staticmethod
    def of_process(words: Sequence[str]) -> Screen:
        """Return a screen for the streams of this process. A closed stream is replaced by /dev/null."""
        return Screen(out=_writable(sys.stdout), err=_writable(sys.stderr), environ=os.environ, form=read_form(words))

    @property
    def is_interactive(self) -> bool:
        """True if a user can be asked."""
        return bool(sys.stdin) and sys.stdin.isatty() and self.err.isatty()

    @property
    def is_one_terminal(self) -> bool:
        """True if standard output and standard error are the same terminal."""
        return self.out.isatty() and self.err.isatty()

    @property
    def width(self) -> int:
        import shutil  # most commands do not need it

        return max(shutil.get_terminal_size().columns, 40)

    # foreign text: secrets are redacted before it is cut, wrapped or escaped, so that no part of a secret is left

    def one_line(self, text: str, limit: int) -> str:
        return one_line(self.redact(text), limit)

    def exact(self, text: str) -> str:
        return exact(self.redact(text))

    def quote_block(self, text: str, *, wrapped: bool | None = None) -> str:
        """Return the text with a bar before each row. By default it is wrapped if standard output is a terminal."""
        is_wrapped = self.out.isatty() if wrapped is None else wrapped
        return quote_block(self.redact(text), self.width if is_wrapped else None)

    def redact_value(self, value: Any) -> Any:
        """Return a copy of the value with the secrets in all its texts redacted."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            inside = cast("Mapping[Any, Any]", value)
            return {self.redact_value(name): self.redact_value(part) for name, part in inside.items()}
        if isinstance(value, list | tuple):
            return [self.redact_value(part) for part in cast("list[Any]", value)]
        return value

    # results

    def result(self, text: str) -> None:
        """Print a piece of the result, with a newline at its end."""
        text = self.redact(text)
        if self.out.isatty():
            text = plain(text)
        self._write(text if text.endswith("\n") else text + "\n")

    def json(self, value: Any) -> None:
        """Print a value as one line of JSON."""
        self._write(json.dumps(self.redact_value(value), ensure_ascii=False, default=str) + "\n")

    def print_final(self, data: Mapping[str, Any]) -> None:
        """Print the final result as JSON. In stream-json mode, tag it with `"type": "result"`."""
        self.json({"type": "result", **data} if self.form == "stream-json" else data)

    def table(self, rows: Sequence[Sequence[str]], *, indent: str = "") -> None:
        """Print rows with aligned columns."""
        rows = [[self.one_line(cell, 400) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            self.result(indent + line.rstrip())

    def heading(self, text: str) -> None:
        """Print a heading above a part of the result."""
        self._write(self._paint(text, "bold", self.out) + "\n")

    def section(self, name: str, text: str | None) -> None:
        """Print a text below a heading, or nothing if there is no text."""
        if text:
            self.heading(f"\n{name}")
            self.result(text)

    def facts(self, rows: Sequence[Sequence[str]]) -> None:
        """Print names with their values. Rows without a value are left out."""
        self.table([row for row in rows if row[1]])

    # notes, on standard error

    def note(self, text: str, style: Style | None = None) -> None:
        """Print a line on standard error."""
        self.end_line()
        self._write_error(plain(self.redact(text)), style, "\n")

    def delta(self, text: str) -> None:
        """Print a piece of a model response that is still arriving. Only a terminal gets it."""
        if not self.err.isatty() or not text:
            return
        self._write_error(plain(self.redact(text)), None if self.out.isatty() else "dim", "")
        self._is_mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._is_mid_line:
            self._is_mid_line = False
            self._write_error("", None, "\n")

    def prompt(self, text: str) -> None:
        """Print a question. The user types the answer on the same line."""
        self.end_line()
        self._write_error(plain(self.redact(text)), "bold", " ")
        self._is_mid_line = True

    def end_input(self) -> None:
        """Note that the user has ended the line."""
        self._is_mid_line = False

    def error(self, error: GuildError) -> None:
        """Print an error and its hint, and for programs the error as JSON."""
        for info in (error.as_dict(), *getattr(error, "others", ())):
            where = f"{info['where']}: " if "where" in info else ""
            self.note(f"guild: {where}{info['message']}", "red")
            if "hint" in info:
                self.note(info["hint"])
        if self.form != "text":
            fields = {**dict.fromkeys(RESULT_FIELDS), "asks": ()} if self.is_run_result else {}
            self.print_final({**fields, "error": error.as_dict()})

    def _write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except OSError as error:
            raise OutputFailed(error) from None

    def _write_error(self, text: str, style: Style | None, end: str) -> None:
        """Write to standard error. If that fails, the command continues without notes."""
        if self._is_stderr_broken:
            return
        try:
            self.err.write((self._paint(text, style, self.err) if style else text) + end)
            self.err.flush()
        except OSError:
            self._is_stderr_broken = True

    def _paint(self, text: str, style: Style, stream: TextIO) -> str:
        if not (self._colour and stream.isatty() and text):
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def _writable(stream: TextIO | None) -> TextIO:
    """Return the stream, able to write any text, or /dev/null if it is closed."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    cast("TextIOWrapper", stream).reconfigure(errors="backslashreplace")
    return stream


def money(dollars: float | None) -> str:
    """Format an amount in dollars."""
    if dollars is None:
        return "no price"
    if 0 < dollars < 0.0001:
        return "<$0.0001"
    return f"${dollars:.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.4f}"


# Control characters except tab and newline, marks of the reading direction, line separators, lone surrogates.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Escape everything that a terminal would obey or that changes the reading direction."""
    return _CONTROL_CHARACTERS.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def exact(text: str) -> str:
    """Escape every character that is not plainly visible, except newlines."""
    return "".join(char if char == "\n" or char.isprintable() else _escape(char) for char in text)


def one_line(text: str, limit: int) -> str:
    """Return the text on one line with at most `limit` characters."""
    joined = " ".join(plain(text[: limit * 4]).split())
    return joined if len(joined) <= limit and len(text) <= limit * 4 else joined[: max(limit - 1, 0)] + "…"


def quote_block(text: str, width: int | None) -> str:
    """Return the exact text with a bar before each row, so that it cannot pass for output of guild.

    Without a width, lines are not wrapped.
    """
    rows: list[str] = []
    for line in exact(text).split("\n"):
        rows.extend([line] if width is None else _wrap(line, max(width - 4, 16)))
    return "\n".join(f"  │ {row}" for row in rows)


def _escape(char: str) -> str:
    point = ord(char)
    if point < 0x100:
        return {"\t": "\\t", "\r": "\\r"}.get(char, f"\\x{point:02x}")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _wrap(line: str, width: int) -> list[str]:
    rows: list[str] = []
    row, used = "", 0
    for char in line:
        cells = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used + cells > width:
            rows.append(row)
            row, used = "", 0
        row += char
        used += cells
    return [*rows, row]
