"""How a story of `guild demo` is told: every command in it is run as a person would run it, and shown."""

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
# Whatever the person's own git is told to do at a commit has no part in this.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@shop.example",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@shop.example",
}


class Story(ABC):
    """A story, in a folder of its own and with a home of its own."""

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
        """Tells it to its end."""

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
        """A line of a command that is at work, no longer than the screen is wide."""
        text = line.rstrip("\n")
        self.show(text if len(text) <= self._width else text[: self._width - 1] + "…")

    def show_file(self, path: str) -> None:
        self.show(f"$ cat {path}")
        self.show((self.folder / path).read_text(encoding="utf-8"))

    def _out(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 - this is the command's result

    # doing

    def guild(self, *words: str, expect: int = 0, since: str = "") -> None:
        """Runs a command as the reader would, and shows what it prints; or only from the line on that begins so."""
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
        """A command that is shown, and at work; it ends with the block."""
        self.show(f"$ guild {shlex.join(words)}")
        with self._process([*_GUILD, *words], stderr=subprocess.STDOUT) as process:
            yield process

    def quietly(self, *words: str) -> str:
        """What a command prints that is not shown."""
        with self._process([*_GUILD, *words], stderr=None) as process:
            out, _ = process.communicate()
        self._check(f"guild {shlex.join(words)}", process.returncode, 0)
        return out

    def other(self, *words: str, env: Mapping[str, str]) -> None:
        """Runs a command that is not ours, and shows what it prints."""
        self.show(f"$ {shlex.join(words)}")
        out = self.heard(*words, env=env)
        if out.strip():
            self.show(out)

    def heard(self, *words: str, env: Mapping[str, str]) -> str:
        """What a command prints that is not ours and not shown."""
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
    """No hall is left when the story is told, or cannot be told to its end."""

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
        """What happens, from the beginning to the end."""

    def kill(self) -> bool:
        """Ends the hall as a power cut would, and shows it; whether there was one."""
        if (hall := find(self._hall)) is None:
            return False
        self.show(f"$ kill -9 {hall.pid}")
        os.kill(hall.pid, signal.SIGKILL)
        return True
