"""Client of the fork server: starts the server, requests a process for each run, and restarts a dead server.

The server needs a second or two to start, and requests wait for it. The module imports nothing slow, so that it can
start the server before anything else.
Does not serve the doors to a process: `runtime` does.

Invariant: every process that the server starts ends with the server, and the server ends with the hall.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from itertools import count
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.errors import RuntimeFailed
from guildhall.sandbox.mounts import import_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BOOT = (
    "import json, sys; paths, fd = sys.argv[1:]; sys.path[:0] = json.loads(paths); "
    "from guildhall.runtimes.forked.server import main; main(int(fd))"
)
_TRIES = 3
_SIDE_BY_SIDE = 16  # orders under way; more would not fit into the control socket
_PATIENCE = 60.0  # seconds; a machine may be so busy that the warm parent needs many to come up
_END_SECONDS = 5.0
_LOG_BYTES = 4096
_REPLY_BYTES = 4096


def available() -> bool:
    """Whether this system has what children need; elsewhere runs are executed in the hall."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class Child:
    """A process that lives, or has lived, for one run."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket, give_up: Callable[[], None]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.connection = connection  # the hall's end
        self.give_up = give_up  # on the warm parent that it came from
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def ended(self) -> int | None:
        """Waits for its end; the status as `wait` gives it, None where nobody was left to ask."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Ends it at once; what it has started, the warm parent ends."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def has_ended(self, status: int | None) -> None:
        if not self._ended.done():
            os.close(self.pidfd)
            self._ended.set_result(status)


class Nursery:
    """Has children for runs. Starting it costs nothing that anyone waits for."""

    def __init__(self, command: Sequence[str] | None = None, *, patience: float = _PATIENCE) -> None:
        """`command` starts another warm parent than ours; the number of the control socket is added to it.

        `patience`: seconds after which a warm parent that does not do what it should is replaced.
        """
        self._command = tuple(command or _own_command())
        self._patience = patience
        self._parent: _Parent | None = None
        self._orders = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._closed = False

    def start(self) -> None:
        """Starts the warm parent. Called by the thread that lives as long as the hall: with it the parent ends."""
        if not self._closed and (self._parent is None or self._parent.gone):
            self._parent = _Parent(self._command, self._lost)

    def _lost(self, parent: _Parent) -> None:
        """One that has served is replaced at once; another that cannot come up, only when it is needed."""
        if parent.has_served:
            self.start()

    @property
    def pids(self) -> list[int]:
        """The warm parent, then its children."""
        return [] if self._parent is None else self._parent.pids

    async def birth(self, memory_bytes: int) -> Child:
        """A new child, which may use so much memory beside what it is born with."""
        said = ""
        for _ in range(_TRIES):
            self.start()
            if self._closed or self._parent is None:
                raise RuntimeFailed("no process is started for the run: the hall is closing")
            parent = self._parent
            try:
                async with self._orders:
                    return await parent.birth(memory_bytes, self._patience)
            except _Gone:
                said = parent.said
        raise RuntimeFailed(
            f"no process can be started for the run: the warm parent ended {_TRIES} times", hint=said or None
        )

    async def end(self, child: Child, grace: float = 0) -> int | None:
        """Ends a child and waits until it is gone; how it ended, as `wait` gives it, where that can be known.

        `grace`: seconds in which it may end by itself. Goes on to the end even if the caller is cancelled, or was: in a
        task that was, Python 3.11.2 takes a time-out for that.
        """
        return await asyncio.shield(self._to_its_end(child, grace))

    async def _to_its_end(self, child: Child, grace: float) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                return await child.ended()
        child.kill()
        try:
            async with asyncio.timeout(self._patience):
                return await child.ended()
        except TimeoutError:  # whoever should bury it does not: it is gone with that one
            child.give_up()
            return await child.ended()

    async def close(self) -> None:
        """Ends the warm parent and every child."""
        self._closed = True
        if self._parent is not None:
            parent, self._parent = self._parent, None
            await parent.leave()


class _Gone(Exception):
    """The warm parent has ended, or does not answer."""


class _Parent:
    """One warm parent: its process, what was ordered, the children that live."""

    def __init__(self, command: Sequence[str], lost: Callable[[_Parent], None]) -> None:
        self._lost = lost
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = count(1)
        self._ordered: dict[int, tuple[asyncio.Future[Child], socket.socket]] = {}
        self._children: dict[int, Child] = {}
        self.gone = False
        self.has_served = False
        self.said = ""  # the last of what it said, once it is gone

    @property
    def pids(self) -> list[int]:
        return [self._process.pid, *(child.pid for child in self._children.values())]

    async def birth(self, memory_bytes: int, seconds: float) -> Child:
        if self.gone:
            raise _Gone
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._hear)
        number = next(self._numbers)
        born: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        self._ordered[number] = (born, ours)
        order = json.dumps({"id": number, "memory_bytes": memory_bytes}).encode()
        try:
            with theirs:
                socket.send_fds(self._control, [order], [theirs.fileno()])
            async with asyncio.timeout(seconds):
                return await born
        except (TimeoutError, ConnectionError):
            ours.close()
            self.give_up()
            raise _Gone from None
        except BaseException:
            ours.close()  # one that is born all the same finds nobody there, and ends
            if born.done() and not born.cancelled() and born.exception() is None:
                born.result().kill()
            raise

    def _hear(self) -> None:
        while not self.gone:
            try:
                data, fds, _, _ = socket.recv_fds(self._control, _REPLY_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if data:
                self._heard(json.loads(data), fds)
            else:
                self.give_up()

    def _heard(self, message: dict[str, Any], fds: list[int]) -> None:
        number: int = message["id"]
        if "status" in message:
            if (child := self._children.pop(number, None)) is not None:
                child.has_ended(message["status"])
            return
        born, ours = self._ordered.pop(number)
        if not fds:  # it could not be forked, or we have no descriptor left for it
            problem = message.get("failed", "too many open files")
            if not born.done():
                born.set_exception(RuntimeFailed(f"no process can be started for the run: {problem}"))
            return
        self.has_served = True
        child = self._children[number] = Child(message["pid"], fds[0], ours, self.give_up)
        if born.done():
            child.kill()
        else:
            born.set_result(child)

    def give_up(self) -> None:
        """It has ended, or has to. Its children end with it; what these have started is ended here."""
        for child in self._end():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            if self._loop is not None:
                self._loop.add_reader(child.pidfd, self._orphan_ended, child)

    def _orphan_ended(self, child: Child) -> None:
        if self._loop is not None:
            self._loop.remove_reader(child.pidfd)
        child.has_ended(None)

    async def leave(self) -> None:
        """Lets it end by itself, and everything that it has started before it."""
        if self.gone:
            return
        self._control.shutdown(socket.SHUT_WR)
        try:
            await asyncio.to_thread(self._process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            self.give_up()
        for child in self._end():
            child.has_ended(None)

    def _end(self) -> list[Child]:
        """Reaps it, and tells those who wait for births; the children of whose ends it has not told."""
        if self.gone:
            return []
        self.gone = True
        if self._loop is not None:
            self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        with self._output as output:
            output.seek(0, os.SEEK_END)
            output.seek(max(0, output.tell() - _LOG_BYTES))
            self.said = output.read().decode("utf-8", "replace").strip()
        for born, _ in self._ordered.values():
            if not born.done():
                born.set_exception(_Gone())
        left, self._children = list(self._children.values()), {}
        self._lost(self)
        return left


def _own_command() -> list[str]:
    """The real interpreter without its site module: quicker, and what lies in the caller's folder is not imported."""
    return [os.path.realpath(sys.executable), "-I", "-S", "-X", "utf8", "-c", _BOOT, json.dumps(import_paths())]
