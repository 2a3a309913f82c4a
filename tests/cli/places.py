"""A project with a scripted worker, and a pseudo-terminal that types and reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.conftest import Guild

GUILD = Path(sys.executable).with_name("guild")
TIMEOUT_S = 30.0  # for a whole command; machines are slow when many tests run at once
_COLOUR_CODE = re.compile(r"\x1b\[\d+m")

WORKER = """name: scribe
description: Writes one line
instructions: Write the requested line.
sandboxes:
  notes: {path: ./notes, mode: rw}
"""
ASKING = "tool_rules:\n  fs.write: {approval_required: true}\n"
SCRIPT = """price: {input: 3.0, output: 15.0}
repeat: true
workers:
  scribe:
    - - call: sandbox_write_text
        with: {sandbox: notes, path: line.md, content: "one line"}
        usage: {input: 1000, output: 100}
      - {say: written, usage: {input: 2000, output: 200}}
"""


def make_project(folder: Path, *, worker: str = WORKER, script: str = SCRIPT) -> None:
    (folder / "workers").mkdir()
    (folder / "workers" / "scribe.yaml").write_text(worker)
    (folder / "answers.yaml").write_text(script)
    (folder / "guildhall.yaml").write_text("model: script:answers.yaml\n")


class Screen:
    """A pseudo-terminal with a process. Types text, reads the screen and waits for the exit."""

    def __init__(self, begin: Callable[..., subprocess.Popen[str]], *, columns: int = 100, whole: bool = False) -> None:
        """`begin` starts the process with the given streams. Unless `whole` is true, standard output is a pipe."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = begin(stdin=slave, stderr=slave, stdout=slave if whole else subprocess.PIPE)
        os.close(slave)
        self.raw = ""
        self._at = 0

    @property
    def output(self) -> str:
        return _COLOUR_CODE.sub("", self.raw).replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Wait until the text is on the screen, after the text of the previous call."""
        self.wait_until(lambda: self.output.find(text, self._at) >= 0, text)
        self._at = self.output.find(text, self._at) + len(text)

    def wait_until(self, is_true: Callable[[], object], expected: str) -> None:
        """Wait until a condition on `output` is true. `expected` describes it in the error."""
        end = time.monotonic() + TIMEOUT_S
        while not is_true():
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"{expected!r} did not appear; seen:\n{self.output}")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_exit(self) -> tuple[int, str | None]:
        """Wait for the exit, and return the exit code and the standard output."""
        end = time.monotonic() + TIMEOUT_S
        while self._read(end - time.monotonic()):
            pass
        out, _ = self._process.communicate(timeout=5)
        return self._process.returncode, out

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(seconds, 0))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


class Terminal(Screen):
    """A pseudo-terminal with a `guild` command."""

    def __init__(self, guild: Guild, *words: str, env: Mapping[str, str] | None = None, whole: bool = False) -> None:
        environment = {**guild.environment(), "TERM": "xterm", **(env or {})}
        super().__init__(partial(guild.begin, words, env=environment, terminal=True), whole=whole)
