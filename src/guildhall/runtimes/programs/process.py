"""Process of a runtime program: runs it in a jail with a temporary home, reads its JSON lines, and kills it.

Ending a process kills everything that it has started.
Does not know the programs: the drivers return a `Launch`.

Invariant: keys and tokens are in the environment or in files that only the program can read, never on the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import RuntimeFailed
from guildhall.sandbox.jail import ConfinedProcess, Confinement, open_door, spawn
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    import socket

    from guildhall.runtimes.discovery import InstalledProgram

_PREFIX = "guild-home-"
_MAX_LINE_BYTES = 64 * 1024**2
_CHUNK_BYTES = 256 * 1024
_MAX_TAIL_LINES = 20  # of output that is not JSON
_MAX_TAIL_CHARS = 2_000  # in an error
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOME_HINT = "Resume the run: it gets a new home. If that fails, check the free disk space."
_DRAIN_TIMEOUT_S = 2.0  # for the output of a killed program that is still in its pipes


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a program. Only `argv` is visible to other users of the machine."""

    argv: tuple[str, ...]  # without the program itself
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])  # by path in the home
    stdin: bytes | None = None
    keeps_stdin_open: bool = False  # for further messages


class Program:
    """A running program."""

    def __init__(self, confined: ConfinedProcess, door: socket.socket, close: Callable[[], None]) -> None:
        self._confined = confined
        self.door = door  # the socket of the doors; its server closes it
        self._close = close
        self._tail: deque[str] = deque(maxlen=_MAX_TAIL_LINES)
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self._ending: asyncio.Task[None] | None = None

    async def lines(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the JSON objects that the program prints, until it exits."""
        reader = self._confined.process.stdout
        assert reader is not None
        async for line in _read_lines(reader):
            try:
                message: Any = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                yield cast("dict[str, Any]", message)
            elif line.strip():
                self._tail.append(line.decode(errors="replace"))

    def write(self, data: bytes) -> None:
        stdin = self._confined.process.stdin
        if stdin is not None and not stdin.is_closing():
            with contextlib.suppress(OSError):
                stdin.write(data)

    async def wait_exit(self) -> str:
        """Wait for the exit and return its description, with the last output."""
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                code = await self._confined.wait()
                await asyncio.wait([self._stderr_task])
        except TimeoutError:
            return f"closed its output and did not exit{self.output_tail}"
        return f"{_describe_code(code)}{self.output_tail}"

    @property
    def output_tail(self) -> str:
        """Return the last output that is not JSON, as the end of a sentence."""
        text = "\n".join(self._tail).strip()[-_MAX_TAIL_CHARS:]
        return f". Output: {text}" if text else ""

    async def end(self) -> None:
        """Kill the program and everything that it has started, even if the caller is cancelled."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._confined.kill()
        stdout, stdin = self._confined.process.stdout, self._confined.process.stdin
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):  # processes that the program started can keep its pipes open
                while stdout is not None and await stdout.read(_CHUNK_BYTES):
                    pass
                await asyncio.wait([self._stderr_task])
        self._stderr_task.cancel()
        await asyncio.to_thread(self._close)

    async def _read_stderr(self) -> None:
        reader = self._confined.process.stderr
        assert reader is not None
        async for line in _read_lines(reader):
            if line.strip():
                self._tail.append(line.decode(errors="replace"))


@contextlib.asynccontextmanager
async def temporary_home() -> AsyncGenerator[Path]:
    """Yield a home for the programs of one run and remove it afterwards."""
    stack = contextlib.ExitStack()
    creation = asyncio.ensure_future(asyncio.to_thread(lambda: stack.enter_context(_create_home())))
    try:
        yield await asyncio.shield(creation)
    finally:
        await asyncio.wait([creation])  # a cancelled caller removes the home too
        await asyncio.shield(asyncio.to_thread(stack.close))


async def start(
    installed: InstalledProgram, home: Path, launch: Callable[[str], Launch], *, network: bool = False
) -> Program:
    """Start a program in its home. `launch` gets the URL of the doors.

    `network`: the program may use the network of the machine, not only the doors.
    """
    with contextlib.ExitStack() as stack:
        door = await open_door(network=network)
        stack.callback(door.close)
        launched = launch(door.url)
        await asyncio.to_thread(_write_files, home, launched.files)
        confinement = Confinement(
            view=View(cwd=home / "work", folders=(Folder(path=home, is_writable=True),)),
            network=network,
            env={"PATH": installed.search_path, **launched.env},
            read_only=installed.needed_paths,
            home=home,
        )
        argv, stdin = [str(installed.path), *launched.argv], DEVNULL if launched.stdin is None else PIPE
        confined = await spawn(argv, confinement, door=door, stdin=stdin, stdout=PIPE, stderr=PIPE)
        try:
            listening = await door.receive_socket()
        except BaseException:
            await confined.kill()
            raise
        program = Program(confined, listening, stack.pop_all().close)
    program.write(launched.stdin or b"")
    if not launched.keeps_stdin_open and confined.process.stdin is not None:
        confined.process.stdin.close()
    return program


def _write_files(home: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a home. Links of an earlier program of the run are not followed."""
    try:
        with _open_folder(home, "work"):
            pass
        for name, content in files.items():
            *folders, file_name = Path(name).parts
            with _open_folder(home, *folders) as folder:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file_name, dir_fd=folder)
                fd = os.open(file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                with os.fdopen(fd, "wb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    except OSError as error:
        raise RuntimeFailed(f"cannot write the home of the program: {error}", hint=_HOME_HINT) from None


@contextlib.contextmanager
def _open_folder(home: Path, *names: str) -> Generator[int]:
    """Yield the descriptor of a folder in a home. Missing folders are created."""
    folder = os.open(home, _FOLDER_FLAGS)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _create_home() -> Generator[Path]:
    """Yield a new locked folder. Folders of killed halls are removed first."""
    folder = Path(os.path.realpath(tempfile.gettempdir()))
    _remove_stale_homes(folder)
    while True:
        home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if home.exists():
            break
        os.close(lock)  # another hall removed it before it was locked
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def _remove_stale_homes(folder: Path) -> None:
    for home in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(home, _FOLDER_FLAGS)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the home is in use
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(lock)


async def _read_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines without their line breaks. A line that is too long is truncated."""
    line = bytearray()
    while chunk := await reader.read(_CHUNK_BYTES):
        *line_ends, rest = chunk.split(b"\n")
        for part in line_ends:
            line += part
            yield bytes(line)
            line.clear()
        if len(line) < _MAX_LINE_BYTES:
            line += rest
    if line:
        yield bytes(line)


def _describe_code(code: int) -> str:
    names = {number + 128: number.name for number in signal.Signals}
    return f"was killed by {names[code]}" if code in names else f"exited with code {code}"
