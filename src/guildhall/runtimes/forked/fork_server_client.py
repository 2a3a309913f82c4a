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
from collections.abc import Callable, Sequence
from itertools import count
from typing import IO, Any

from guildhall.core.errors import RuntimeFailed
from guildhall.sandbox.mounts import import_paths

_BOOT = (
    "import json, sys; paths, fd = sys.argv[1:]; sys.path[:0] = json.loads(paths); "
    "from guildhall.runtimes.forked.fork_server import main; main(int(fd))"
)
_MAX_STARTS = 3
_MAX_PENDING = 16  # requests that fit into the control socket
_TIMEOUT_S = 60.0  # on a busy machine the server starts slowly
_EXIT_TIMEOUT_S = 5.0
_MAX_LOG_BYTES = 4096
_MAX_REPLY_BYTES = 4096


def is_available() -> bool:
    """Return True if the system supports forked runs. Otherwise runs are executed in the hall."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class ChildProcess:
    """A process that executes one run."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket, abandon: Callable[[], None]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.connection = connection  # the end of the hall
        self.abandon = abandon  # kills its server
        self._exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int | None:
        """Wait for the exit. Return the status of `os.wait`, or None if it is unknown."""
        return await asyncio.shield(self._exited)

    def kill(self) -> None:
        """Kill the process. The server kills the processes that it has started."""
        if not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def set_exited(self, status: int | None) -> None:
        if not self._exited.done():
            os.close(self.pidfd)
            self._exited.set_result(status)


class ForkServer:
    """Spawns a process for each run. Starting it does not block."""

    def __init__(self, command: Sequence[str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """`command` replaces the command of the server; the descriptor of the control socket is appended.

        `timeout_s`: a server that does not respond within this time is replaced.
        """
        self._command = tuple(command or _server_command())
        self._timeout_s = timeout_s
        self._server: _ServerProcess | None = None
        self._slots = asyncio.Semaphore(_MAX_PENDING)
        self._is_closed = False

    def start(self) -> None:
        """Start the server. Call it in the main thread, because the server exits with the thread that started it."""
        if not self._is_closed and (self._server is None or self._server.has_exited):
            self._server = _ServerProcess(self._command, self._on_exit)

    def _on_exit(self, server: _ServerProcess) -> None:
        """Restart a server that has spawned a process. A server that never did is restarted on the next spawn."""
        if server.has_spawned:
            self.start()

    @property
    def pids(self) -> list[int]:
        return [] if self._server is None else self._server.pids

    async def spawn(self, memory_bytes: int) -> ChildProcess:
        """Return a new process that may use `memory_bytes` in addition to the memory of the server."""
        last_output = ""
        for _ in range(_MAX_STARTS):
            self.start()
            if self._is_closed or self._server is None:
                raise RuntimeFailed("cannot start a process for the run: the hall is stopping")
            server = self._server
            try:
                async with self._slots:
                    return await server.spawn(memory_bytes, self._timeout_s)
            except _ServerDied:
                last_output = server.last_output
        text = f"cannot start a process for the run: the fork server exited {_MAX_STARTS} times"
        raise RuntimeFailed(text, hint=last_output or None)

    async def end(self, child: ChildProcess, grace_s: float = 0) -> int | None:
        """Kill a process and return its exit status, or None if it is unknown.

        The process may exit by itself within `grace_s`. The shield completes the kill even if the caller is cancelled:
        in a cancelled task, Python 3.11.2 confuses a timeout with the cancellation.
        """
        return await asyncio.shield(self._end(child, grace_s))

    async def _end(self, child: ChildProcess, grace_s: float) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await child.wait()
        child.kill()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await child.wait()
        except TimeoutError:  # the server did not reap it
            child.abandon()
            return await child.wait()

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            server, self._server = self._server, None
            await server.shut_down()


class _ServerDied(Exception):
    """The server has exited or does not respond."""


class _ServerProcess:
    """A server process with its pending spawns and its children."""

    def __init__(self, command: Sequence[str], on_exit: Callable[[_ServerProcess], None]) -> None:
        self._on_exit = on_exit
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
        self._pending: dict[int, tuple[asyncio.Future[ChildProcess], socket.socket]] = {}
        self._children: dict[int, ChildProcess] = {}
        self.has_exited = False
        self.has_spawned = False
        self.last_output = ""  # set when it has exited

    @property
    def pids(self) -> list[int]:
        return [self._process.pid, *(child.pid for child in self._children.values())]

    async def spawn(self, memory_bytes: int, timeout_s: float) -> ChildProcess:
        if self.has_exited:
            raise _ServerDied
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._receive)
        number = next(self._numbers)
        spawned: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        self._pending[number] = (spawned, ours)
        request = json.dumps({"id": number, "memory_bytes": memory_bytes}).encode()
        try:
            with theirs:
                socket.send_fds(self._control, [request], [theirs.fileno()])
            async with asyncio.timeout(timeout_s):
                return await spawned
        except (TimeoutError, ConnectionError):
            ours.close()
            self.abandon()
            raise _ServerDied from None
        except BaseException:
            ours.close()  # a process that is spawned later exits without its connection
            if spawned.done() and not spawned.cancelled() and spawned.exception() is None:
                spawned.result().kill()
            raise

    def _receive(self) -> None:
        while not self.has_exited:
            try:
                data, fds, _, _ = socket.recv_fds(self._control, _MAX_REPLY_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if data:
                self._handle(json.loads(data), fds)
            else:
                self.abandon()

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        number: int = message["id"]
        if "status" in message:
            if (child := self._children.pop(number, None)) is not None:
                child.set_exited(message["status"])
            return
        spawned, ours = self._pending.pop(number)
        if not fds:  # the fork failed, or this process has no free descriptor
            problem = message.get("failed", "too many open files")
            if not spawned.done():
                spawned.set_exception(RuntimeFailed(f"cannot start a process for the run: {problem}"))
            return
        self.has_spawned = True
        child = self._children[number] = ChildProcess(message["pid"], fds[0], ours, self.abandon)
        if spawned.done():
            child.kill()
        else:
            spawned.set_result(child)

    def abandon(self) -> None:
        """Kill the server, its children and the process groups of the children."""
        for child in self._reap():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            if self._loop is not None:
                self._loop.add_reader(child.pidfd, self._reap_orphan, child)

    def _reap_orphan(self, child: ChildProcess) -> None:
        if self._loop is not None:
            self._loop.remove_reader(child.pidfd)
        child.set_exited(None)

    async def shut_down(self) -> None:
        """Let the server exit by itself, after all its processes."""
        if self.has_exited:
            return
        self._control.shutdown(socket.SHUT_WR)
        try:
            await asyncio.to_thread(self._process.wait, _EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.abandon()
        for child in self._reap():
            child.set_exited(None)

    def _reap(self) -> list[ChildProcess]:
        """Reap the server, fail pending spawns and return the children whose exit was not reported."""
        if self.has_exited:
            return []
        self.has_exited = True
        if self._loop is not None:
            self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        with self._output as output:
            output.seek(0, os.SEEK_END)
            output.seek(max(0, output.tell() - _MAX_LOG_BYTES))
            self.last_output = output.read().decode("utf-8", "replace").strip()
        for spawned, _ in self._pending.values():
            if not spawned.done():
                spawned.set_exception(_ServerDied())
        left, self._children = list(self._children.values()), {}
        self._on_exit(self)
        return left


def _server_command() -> list[str]:
    """Return the command: the real interpreter without `site` is faster and imports nothing from the current folder."""
    return [os.path.realpath(sys.executable), "-I", "-S", "-X", "utf8", "-c", _BOOT, json.dumps(import_paths())]
