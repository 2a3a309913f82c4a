"""Story: runs real `guild` commands in a folder and a home of their own, and prints them with their output.

`HallStory` adds a hall that can be killed and is stopped at the end. Does not contain a plot (see `cli.demo.review`,
`cli.demo.guild` and `cli.demo.office`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.hall.client.discovery import find, process_of, stop

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

_GUILD = (sys.executable, "-m", "guildhall")
_INDENT = "    "
_OWN = ("GUILDHALL_", "GIT_")  # what the person has set for other work is not part of the story
# The git settings of the user have no effect on the story.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@shop.example",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@shop.example",
}


class Story(ABC):
    """A story in its own folder, with its own home."""

    def __init__(self, top: Path, name: str, more: Mapping[str, str]) -> None:
        """`top`: an empty folder; the story plays in `name` below it. `more`: variables of its commands."""
        self.home = top / "home"
        self.folder = top / name
        self.folder.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
        self._env = {**kept, HOME_VARIABLE: str(self.home), **more}
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._width = max(120, shutil.get_terminal_size((120, 24)).columns) - len(_INDENT)
        self._chapter = 0

    @abstractmethod
    def tell(self) -> None:
        """Play the story to its end."""

    # telling

    def title(self, text: str) -> None:
        self._chapter += 1
        line = f"{self._chapter}. {text}"
        self._out(f"\n\033[1m{line}\033[0m" if self._colour else f"\n{line}")

    def say(self, text: str) -> None:
        self._out(textwrap.fill(text, 100))

    def show(self, text: str) -> None:
        self._out(textwrap.indent(text.rstrip("\n"), _INDENT))

    def show_line(self, line: str) -> None:
        """Print a line of a running command, cut to the width of the screen."""
        text = line.rstrip("\n")
        self.show(text if len(text) <= self._width else text[: self._width - 1] + "…")

    def show_file(self, path: str) -> None:
        self.show(f"$ cat {path}")
        self.show((self.folder / path).read_text(encoding="utf-8"))

    def _out(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 - this is the command's result

    # doing

    def guild(self, *words: str, expect: int = 0, since: str = "") -> None:
        """Run a command and print its output, or only the part that begins with a given line."""
        with self.started(*words) as process:
            skipped: list[str] = []
            for line in process.stdout or ():
                if since and not line.startswith(since):
                    skipped.append(line)
                    continue
                if skipped:
                    self.show("...")
                    skipped.clear()
                since = ""
                self.show_line(line)
        for line in skipped:  # it said something else than what was to be shown
            self.show(line)
        self._check(f"guild {shlex.join(words)}", process.returncode, expect)

    @contextmanager
    def started(self, *words: str) -> Generator[subprocess.Popen[str]]:
        """Start a command and print it. It is stopped at the end of the block."""
        self.show(f"$ guild {shlex.join(words)}")
        with self._process([*_GUILD, *words], stderr=subprocess.STDOUT) as process:
            yield process

    def quietly(self, *words: str) -> str:
        """Run a command without printing it, and return its output."""
        with self._process([*_GUILD, *words], stderr=None) as process:
            out, _ = process.communicate()
        self._check(f"guild {shlex.join(words)}", process.returncode, 0)
        return out

    def other(self, *words: str, env: Mapping[str, str]) -> None:
        """Run a command other than guild and print its output."""
        self.show(f"$ {shlex.join(words)}")
        out = self.heard(*words, env=env)
        if out.strip():
            self.show(out)

    def heard(self, *words: str, env: Mapping[str, str]) -> str:
        """Run a command other than guild without printing it, and return its output."""
        with self._process(words, stderr=subprocess.STDOUT, env=env) as process:
            out, _ = process.communicate()
        self._check(shlex.join(words), process.returncode, 0)
        return out

    @contextmanager
    def _process(
        self, words: Sequence[str], *, stderr: int | None, env: Mapping[str, str] | None = None
    ) -> Generator[subprocess.Popen[str]]:
        with subprocess.Popen(
            words,
            cwd=self.folder,
            env={**self._env, **(env or {})},
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process:
            try:
                yield process
            except BaseException:  # the story breaks off: nothing of it is waited for
                process.kill()
                raise

    def _check(self, command: str, code: int, expect: int) -> None:
        if code != expect:
            raise GuildError(
                f"`{command}` ended with {code} instead of {expect}", hint="`guild doctor` says what is missing here."
            )


class HallStory(Story):
    """A story with a hall in a process of its own, which is stopped at the end of the story."""

    repository = True  # it plays in one

    def __init__(self, top: Path, name: str, more: Mapping[str, str] | None = None) -> None:
        super().__init__(top, name, more or {})
        self._hall = Home(self.home)

    def tell(self) -> None:
        if self.repository and shutil.which("git") is None:
            raise GuildError("this plays in a git repository, and there is no git here", hint="guild demo --office")
        try:
            self.play()
        finally:
            if (pid := process_of(self._hall)) is not None:
                stop(pid)

    @abstractmethod
    def play(self) -> None:
        """Play the scenes of the story."""

    def kill(self) -> bool:
        """Kill the hall and print it. Return True if there was one."""
        if (hall := find(self._hall)) is None:
            return False
        self.show(f"$ kill -9 {hall.pid}")
        os.kill(hall.pid, signal.SIGKILL)
        return True
