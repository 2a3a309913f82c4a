"""One command of a setup as a process: in its own group, without input, ended with whoever started it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

TOO_LONG = None  # instead of an exit code

# A watcher in the same group waits for the end of the hall, which holds the other end of its input, and ends the group.
_WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 -$$; } >/dev/null 2>&1 & exec "$@" 3<&-'
_CHUNK = 65_536
_DRAIN_SECONDS = 1.0
_END_SECONDS = 10.0
_LONGEST_LINE = 10_000  # characters that are held back until there is a whole line
_LAST_WORDS = 100_000  # bytes that are held of what is only shown
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


class Program:
    """A command that is run once."""

    def __init__(
        self,
        command: str,
        *,
        cwd: Path,
        env: Mapping[str, str],
        seconds: float,
        most: int | None,
        told: Callable[[str], None],
    ) -> None:
        """`most` is how much of its output is kept; None: nothing. `told` hears all that it writes, piece by piece."""
        self._command = command
        self._cwd = cwd
        self._env = {"PATH": _USUAL_PATH, **env}
        self._seconds = seconds
        self._most = most
        self._told = told
        self._last = bytearray()
        self.kept = bytearray()
        self.too_much = False

    async def run(self) -> int | None:
        """The exit code; from 128 on a signal ended it. TOO_LONG: it took too long. Nothing of it runs afterwards."""
        process = await self._started()
        reading = [
            asyncio.create_task(self._read(process.stdout, keep=self._most is not None)),
            asyncio.create_task(self._read(process.stderr, keep=False)),
        ]
        try:
            async with asyncio.timeout(self._seconds):
                await _exited(process)
        except TimeoutError:
            return TOO_LONG
        finally:
            _end_group(process.pid)
            await asyncio.wait(reading, timeout=_DRAIN_SECONDS)
            for task in reading:
                task.cancel()
            await asyncio.wait([asyncio.create_task(process.wait())], timeout=_END_SECONDS)
        code = process.returncode
        return 1 if code is None else code if code >= 0 else 128 - code

    def last_words(self, most: int) -> str:
        """The end of what it wrote, for a person."""
        text = self._last.decode("utf-8", "replace").strip("\n")
        return text if len(text) <= most else f"[...]\n{text[-most:]}"

    async def _started(self) -> asyncio.subprocess.Process:
        shell = shutil.which("bash", path=self._env["PATH"]) or "/bin/sh"
        try:
            return await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WATCHED, "sh", shell, "-e", "-c", self._command),
                cwd=self._cwd,
                env=self._env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolUnavailable(f"the command cannot be started: {error}", where=str(self._cwd)) from None

    async def _read(self, stream: asyncio.StreamReader | None, *, keep: bool) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        line = ""
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            if keep:
                room = (self._most or 0) - len(self.kept)
                self.kept += chunk[:room]
                self.too_much = self.too_much or len(chunk) > room
            self._last += chunk
            del self._last[:-_LAST_WORDS]
            line = self._tell(line + decoder.decode(chunk))
        if line:
            self._told(line)

    def _tell(self, text: str) -> str:
        """Tells whole lines, so that nobody sees half a secret; gives what is still to be told."""
        whole, newline, rest = text.rpartition("\n")
        if len(rest) > _LONGEST_LINE:
            whole, newline, rest = text, "", ""
        if whole or newline:
            self._told(whole + newline)
        return rest


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Returns when the command itself has ended. asyncio's own wait is also for all that hold its output."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _end_group(leader: int) -> None:
    """Ends all that the command has started; the watcher is still there, so that the group is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
