"""Execute the examples of a documentation page as its reader would.

A fenced block is executed by its language, in the order of the page:

- `yaml` and `python` blocks whose first line is `# PATH` are written to that file; `# PATH (add)` appends to it.
- `sh` blocks are commands that must succeed.
- `console` blocks are a terminal. Each line after `$ ` is a command, and the lines below it are exactly its output. An
  answer to a prompt stands behind the prompt. `...` stands for any text, or for any lines if it is the whole line. A
  command with `# terminal 1` is left running. The lines below the next command with `# terminal 2` are the rest of its
  output.

An id or a process id of the page stands for the one that the program printed at its first place. Times, durations,
tokens, amounts and steps are not compared: a kill can come before or after a step. Other blocks are not executed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.places import Screen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tests.conftest import Guild

COLUMNS = 120
LANGUAGES = ("yaml", "python", "sh", "console")
_HEADING_OR_BLOCK = re.compile(r"^(## .*|```\w*\n(?:.*\n)*?```)$", re.M)
_FILE = re.compile(r"# ([\w./-]+\.\w+)( \(add\))?\n")
_PROMPT = re.compile(r"^(\S.*\? .*: )(\S+)$", re.M)
_TERMINAL = re.compile(r"# terminal ([12])\b")
_ID = r"[acjrt]-[0-9a-z]{10}"
_PID = r"(?<=pid )\d+|(?<=process )\d+"
# Patterns of texts that differ each time.
_VARYING = (
    r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    r"\d\d:\d\d:\d\dZ",
    r"\d+\.\d s\b",
    r"just now|\d+ \w+ ago",
    r"[\d,]+ tokens in, [\d,]+ out",
    r"\$\d+\.\d{4}",
    r"\d{1,3}(?:,\d{3})+",
    r"\d+ steps\b",
)
_TOKEN = re.compile(rf"(?P<id>\b{_ID}\b|{_PID})|(?P<any>\.\.\.)|(?P<varying>{'|'.join(_VARYING)})")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    heading: str
    language: str
    text: str
    line: int


def read_blocks(page: Path, heading: str | None = None) -> Iterator[Block]:
    """Return the fenced blocks of a page, or of the section with this heading."""
    section, line = "", 1
    for part in _HEADING_OR_BLOCK.split(page.read_text(encoding="utf-8")):
        if part.startswith("## "):
            section = part.removeprefix("## ")
        elif part.startswith("```") and heading in (None, section):
            first, _, text = part.removesuffix("```").partition("\n")
            yield Block(section, first.removeprefix("```"), text, line)
        line += part.count("\n")


def reader_environment(guild: Guild) -> dict[str, str]:
    """Return the environment of a shell in which `guild` is installed."""
    return {**guild.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


class Reader:
    """A shell that executes a page in a folder."""

    def __init__(self, folder: Path, scratch: Path, env: Mapping[str, str], *, skipped: Collection[str] = ()) -> None:
        """Commands in `skipped` are not executed. `scratch` is a folder for the state of the shell."""
        self.folder = folder
        self.env = {**env, "TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat"}
        self._skipped = skipped
        self._state = scratch / "folder"
        self._names: dict[str, str] = {}
        self._code = 0
        self._left_running: tuple[Screen, str] | None = None

    def follow(self, page: Path, heading: str | None = None, *, languages: Collection[str] = LANGUAGES) -> None:
        """Execute the blocks of a page or of one section of it."""
        blocks = [block for block in read_blocks(page, heading) if block.language in languages]
        assert blocks, f"{page.name}: nothing to execute in {heading or 'it'}"
        for block in blocks:
            try:
                self._execute(block)
            except AssertionError as error:
                raise AssertionError(f"{page.name}, line {block.line}: {error}") from None
        assert self._left_running is None, "terminal 1 is left running"

    def close(self) -> None:
        if self._left_running is not None:
            self._left_running[0].close()

    def _execute(self, block: Block) -> None:
        if block.language == "sh":
            for command in block.text.replace("\\\n", " ").splitlines():
                self._run(command, "...")
                assert self._code == 0, f"{command} ended with {self._code}"
        elif block.language == "console":
            first, *parts = re.split(r"^\$ ", block.text, flags=re.M)
            assert not first, f"output without a command: {first}"
            for part in parts:
                lines = part.splitlines(keepends=True)
                length = next((n for n, line in enumerate(lines, 1) if not line.endswith("\\\n")), len(lines))
                self._run("".join(lines[:length]).rstrip("\n"), "".join(lines[length:]))
        elif named := _FILE.match(block.text):
            path = self.folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text(encoding="utf-8") if named[2] else ""
            path.write_text(before + block.text[named.end() if named[2] else 0 :], encoding="utf-8")

    def _run(self, command: str, expected: str) -> None:
        if command.partition(" #")[0].rstrip() in self._skipped:
            return
        unknown = [id for id in re.findall(rf"\b{_ID}\b", command) if id not in self._names]
        assert not unknown, f"{command}: no earlier output has {', '.join(unknown)}"
        for written, actual in self._names.items():
            command = re.sub(rf"(?<![\w-]){written}\b", actual, command)
        terminal = _TERMINAL.search(command)
        screen = self._start(command)
        if terminal and terminal[1] == "1":
            self._left_running = screen, expected
            screen.wait_until(lambda: self._compare(expected, screen.output, whole=False), expected)
            return
        if terminal:
            assert self._left_running, f"{command}: no terminal 1"
            self._finish(screen, "")
            screen, begun = self._left_running
            expected = begun + expected
            self._left_running = None
        for prompt, answer in _PROMPT.findall(expected):
            screen.wait_for(prompt)
            screen.type(answer + "\n")
        self._finish(screen, expected)

    def _start(self, command: str) -> Screen:
        script = (
            f"cd {shlex.quote(str(self.folder))}; (exit {self._code})\n"
            f"{command}\ncode=$?; pwd > {shlex.quote(str(self._state))}; exit $code"
        )
        begin = partial(
            subprocess.Popen, ["bash", "-c", script], env=self.env, text=True, encoding="utf-8", start_new_session=True
        )
        return Screen(begin, columns=COLUMNS, whole=True)

    def _finish(self, screen: Screen, expected: str) -> None:
        try:
            self._code, _ = screen.wait_exit()
        finally:
            screen.close()
        self.folder = Path(self._state.read_text().rstrip("\n"))
        assert self._compare(expected, screen.output), f"expected:\n{expected}\nprinted:\n{screen.output}"
        assert expected or self._code == 0, f"exit code {self._code}"

    def _compare(self, expected: str, printed: str, *, whole: bool = True) -> bool:
        """Return True if the output, or its beginning, is as expected. Remember the ids that it contains."""
        groups: dict[str, str] = {}
        pattern = "".join(
            r"(?:.*\n)*?" if line == "..." else self._line_pattern(line, groups)
            for line in _plain(expected).splitlines()
        )
        found = (re.fullmatch if whole else re.match)(pattern, _plain(printed))
        if found:
            self._names |= {written: found[group] for written, group in groups.items()}
        return bool(found)

    def _line_pattern(self, line: str, groups: dict[str, str]) -> str:
        if line == "...":
            return r"(?:.*\n)*?"

        def token_pattern(token: re.Match[str]) -> str:
            written = token[0]
            if token["any"]:
                return ".*"
            if token["varying"]:
                return f"(?:{next(kind for kind in _VARYING if re.fullmatch(kind, written))})"
            if written in self._names:
                return re.escape(self._names[written])
            if written in groups:
                return f"(?P={groups[written]})"
            groups[written] = f"id{len(groups)}"
            return f"(?P<{groups[written]}>{r'[0-9]+' if written.isdigit() else _ID})"

        parts: list[str] = []
        end = 0
        for token in _TOKEN.finditer(line):
            parts += [re.escape(line[end : token.start()]), token_pattern(token)]
            end = token.end()
        return "".join([*parts, re.escape(line[end:]), "\n"])


def _plain(text: str) -> str:
    """Return the lines without trailing spaces, with single spaces between the columns of tables.

    The note of a command that starts a hall is left out: whether one is running depends on the time between commands.
    """
    lines = (re.sub(r"[ \t]+", " ", line).rstrip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line != "Starting the hall ...")
