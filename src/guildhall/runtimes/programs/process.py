"""Process of a runtime program: runs it in a jail with a temporary home, reads its JSON lines, and kills it.

Ending a process kills everything that it has started and removes its home.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import RuntimeFailed
from guildhall.sandbox.jail import ConfinedProcess, Confinement, open_door, spawn
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping

    from guildhall.runtimes.discovery import Installed

_PREFIX = "guild-home-"
_LONGEST = 64 * 1024**2  # bytes of a line
_CHUNK = 256 * 1024
_TAIL = 20  # lines that are kept of what it says beside JSON
_SHOWN = 2_000  # characters of them in an error
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOME = "Resume the run: it is given a new one. If that is of no use, look whether the disk is full."
_LAST_WORDS = 2.0  # seconds for what a program that was killed has still in its pipes


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a program is started. None of it but `argv` can be seen by others on the machine."""

    argv: tuple[str, ...]  # after the program itself
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])  # by their paths in its home
    stdin: bytes | None = None
    listens: bool = False  # it takes more on its input later


class Program:
    """A program, from its start to its end."""

    def __init__(self, confined: ConfinedProcess, door: socket.socket, close: Callable[[], None]) -> None:
        self._confined = confined
        self.door = door  # where it comes to: it is whose who serves it
        self._close = close
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._errors = asyncio.create_task(self._read_errors())
        self._ending: asyncio.Task[None] | None = None

    async def lines(self) -> AsyncIterator[Mapping[str, Any]]:
        """What it says, until it has ended."""
        reader = self._confined.process.stdout
        assert reader is not None
        async for line in _lines(reader):
            try:
                said: Any = json.loads(line)
            except (ValueError, RecursionError):
                said = None
            if isinstance(said, dict):
                yield cast("dict[str, Any]", said)
            elif line.strip():
                self._tail.append(line.decode(errors="replace"))

    def tell(self, words: bytes) -> None:
        """Writes to its input, if it still listens."""
        stdin = self._confined.process.stdin
        if stdin is not None and not stdin.is_closing():
            with contextlib.suppress(OSError):
                stdin.write(words)

    async def manner(self) -> str:
        """How it ended, after it has said its last."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                code = await self._confined.wait()
                await asyncio.wait([self._errors])
        except TimeoutError:
            return f"fell silent and went on{self.said}"
        return f"{_ended(code)}{self.said}"

    @property
    def said(self) -> str:
        """The last of what it has said that is not JSON, to be put behind a sentence."""
        text = "\n".join(self._tail).strip()[-_SHOWN:]
        return f". It said: {text}" if text else ""

    async def end(self) -> None:
        """Kills it with all that it has started, and takes its home away. Goes on to the end whatever comes."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._confined.kill()
        stdout, stdin = self._confined.process.stdout, self._confined.process.stdin
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):  # its pipes end when the last of what it started has ended
                while stdout is not None and await stdout.read(_CHUNK):
                    pass
                await asyncio.wait([self._errors])
        self._errors.cancel()
        await asyncio.to_thread(self._close)

    async def _read_errors(self) -> None:
        reader = self._confined.process.stderr
        assert reader is not None
        async for line in _lines(reader):
            if line.strip():
                self._tail.append(line.decode(errors="replace"))


@contextlib.asynccontextmanager
async def home() -> AsyncGenerator[Path]:
    """A home for the programs of one run, for as long as one of them is at work."""
    opened = contextlib.ExitStack()
    making = asyncio.ensure_future(asyncio.to_thread(lambda: opened.enter_context(_home())))
    try:
        yield await asyncio.shield(making)
    finally:
        await asyncio.wait([making])  # also where we were not to wait: what was made is taken away
        await asyncio.shield(asyncio.to_thread(opened.close))


async def start(installed: Installed, home: Path, launch: Callable[[str], Launch], *, network: bool = False) -> Program:
    """Starts a program in its home. `launch` says how, once it is known where it finds us.

    `network`: it has the network of the machine, not only its door.
    """
    with contextlib.ExitStack() as opened:
        door = await open_door(network=network)
        opened.callback(door.close)
        how = launch(door.url)
        await asyncio.to_thread(_write, home, how.files)
        confinement = Confinement(
            view=View(cwd=home / "work", folders=(Folder(path=home, is_writable=True),)),
            network=network,
            env={"PATH": installed.search, **how.env},
            read_only=installed.sees,
            home=home,
        )
        argv, stdin = [str(installed.path), *how.argv], DEVNULL if how.stdin is None else PIPE
        confined = await spawn(argv, confinement, door=door, stdin=stdin, stdout=PIPE, stderr=PIPE)
        try:
            listening = await door.receive_socket()
        except BaseException:
            await confined.kill()
            raise
        program = Program(confined, listening, opened.pop_all().close)
    program.tell(how.stdin or b"")
    if not how.listens and confined.process.stdin is not None:
        confined.process.stdin.close()
    return program


def _write(home: Path, files: Mapping[str, str | bytes]) -> None:
    """Puts files into a home. An earlier program of the run may have left links in it: none is followed."""
    try:
        with _folder(home, "work"):
            pass
        for name, content in files.items():
            *way, last = Path(name).parts
            with _folder(home, *way) as folder:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=folder)  # what an earlier one has had
                fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                with os.fdopen(fd, "wb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    except OSError as error:
        raise RuntimeFailed(f"the home of the program cannot be written: {error}", hint=_HOME) from None


@contextlib.contextmanager
def _folder(home: Path, *way: str) -> Generator[int]:
    """A folder in a home, made where it is missing."""
    folder = os.open(home, _ENTER)
    try:
        for name in way:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            inner = os.open(name, _ENTER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _home() -> Generator[Path]:
    """A folder of its own, locked for as long as it is used; what a hall that was killed has left behind goes."""
    folder = Path(os.path.realpath(tempfile.gettempdir()))
    _sweep(folder)
    while True:
        home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        held = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
        if home.exists():
            break
        os.close(held)  # somebody swept before we had the lock
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(held)


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(left, _ENTER)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while somebody uses it
                if os.fstat(held).st_uid == os.geteuid():
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines without their ends, however long; of one that is far too long only the beginning."""
    kept = bytearray()
    while chunk := await reader.read(_CHUNK):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            kept += part
            yield bytes(kept)
            kept.clear()
        if len(kept) < _LONGEST:
            kept += rest
    if kept:
        yield bytes(kept)


def _ended(code: int) -> str:
    names = {number + 128: number.name for number in signal.Signals}
    return f"was killed by {names[code]}" if code in names else f"exited with code {code}"
