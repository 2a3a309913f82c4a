"""The process of a member: starts it, waits for its handshake, restarts it when it exits, and stops it.

The states are starting, ready, exited, backoff, broken and stopped. After an exit, the state is backoff and then
starting again, or broken after too many failures. The member runs in its own folder, below `supervisor.py`, and
writes to a log file.
Does not check trust (`members.service`) and does not make calls (`members.client`).

Invariant: a member never receives the hall's environment. It receives the allowed variables of the caller, and the
variables that its manifest names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.ids import digest
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.members.client import MemberClient
from guildhall.members.manifest import PORT, PYTHON, fill_placeholders
from guildhall.members.model import SECRET_VARIABLE, Endpoint, Member, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_LOG_BYTES = 2_000_000  # after which a new log is begun at the next start
_LAST_WORDS = 400  # characters
_LOOK = 0.02  # seconds between two looks whether it listens


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Time limits, in seconds."""

    listen_s: float = 20.0  # until it listens at its port: a busy machine takes its time to start a program
    handshake_s: float = 5.0  # until it has answered the handshake, once it listens
    first_pause_s: float = 0.2  # before it is started again; twice as long each time
    max_pause_s: float = 30.0
    max_failures: int = 5  # that fail in a row, and it is broken
    report_after: int = 2  # failed tries before waiting callers get the error
    stable_after_s: float = 30.0  # that it has been ready for, and what was before is forgotten
    grace_s: float = 5.0  # that it gets to leave by itself


class _NotUp(Exception):
    """The member did not start."""

    def __init__(self, why: str, *, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless  # trying again would not help


class MemberProcess:
    """Keeps one member running, from the first need until the hall stops it."""

    def __init__(self, member: Member, frame: Frame, home: Home, clock: Clock, timings: Timings, stamp: str) -> None:
        """`frame`: of the first caller. `stamp`: identifies the content of the member's files."""
        self.member = member
        self.stamp = stamp
        self.created_at = clock.monotonic()
        self.state: State = "starting"
        self.note: str | None = None  # how it ended the last time, or why it did not come up
        self.pid: int | None = None
        self.port: int | None = None
        self.log = log_path(member, home)
        self._frame = frame
        self._home = home
        self._clock = clock
        self._timings = timings
        self._secret = secrets.token_urlsafe(32)
        self._ready: asyncio.Future[MemberClient] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep())

    async def client(self) -> MemberClient:
        """Return the client once the member is ready. Raise ToolUnavailable if it does not start."""
        return await asyncio.shield(self._ready)

    @property
    def is_over(self) -> bool:
        """Return True if the member is broken or was stopped."""
        return self._task.done()

    async def stop(self) -> None:
        """Terminate the member, and wait for its end."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.state = "stopped"
        if not self._ready.done():
            self._tell(ToolUnavailable(f"the member {self.member.name} was stopped"), last=True)

    async def _keep(self) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            hopeless = False
            try:
                why = await self._live()
            except _NotUp as error:
                why, hopeless = str(error), error.hopeless
            if self.state == "ready" and self._clock.monotonic() - began >= self._timings.stable_after_s:
                failures = 0
            failures += 1
            self.note = f"{why}{self._last_words()}"
            self.state, self.pid = "exited", None
            if self._ready.done():
                self._ready = asyncio.get_running_loop().create_future()
            if hopeless or failures >= self._timings.max_failures:
                self.state = "broken"
                self._tell(self._broken(), last=True)
                return
            if failures >= self._timings.report_after:
                self._tell(self._broken())
            self.state = "backoff"
            await self._clock.sleep(min(self._timings.first_pause_s * 2 ** (failures - 1), self._timings.max_pause_s))
            self.state = "starting"

    def _tell(self, error: GuildError, *, last: bool = False) -> None:
        """Raise an error for all waiting callers. Later callers wait for the next try, unless this was the last."""
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # it may be that nobody waits
        if not last:
            self._ready = asyncio.get_running_loop().create_future()

    def _broken(self) -> ToolUnavailable:
        message = f"the member {self.member.name} does not run: it {self.note}"
        return ToolUnavailable(message, where=str(self.member.path), hint=f"What it printed is in {self.log}.")

    async def _live(self) -> str:
        """Run the member from its start to its end. Return how it ended."""
        self.port = self.port if self.port is not None and _is_free(self.port) else _free_port()
        process = self._spawn(self.port)
        ended = asyncio.create_task(_ended(process))
        try:
            self.pid = process.pid
            endpoint = Endpoint(name=self.member.name, url=f"http://127.0.0.1:{self.port}/mcp", secret=self._secret)
            client = MemberClient(endpoint)
            try:
                await self._come_up(client, ended)
                self.state = "ready"
                if not self._ready.done():
                    self._ready.set_result(client)
                return _said(await asyncio.shield(ended))
            finally:
                await client.close()
        finally:
            await asyncio.shield(self._end(process, ended))

    async def _come_up(self, client: MemberClient, ended: asyncio.Task[int]) -> None:
        """Wait until the member has answered the handshake."""
        assert self.port is not None
        coming = asyncio.create_task(self._handshake(client, self.port))
        try:
            await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise _NotUp(f"{_said(ended.result())} before it was ready")
            await coming
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, _NotUp):
                await coming

    async def _handshake(self, client: MemberClient, port: int) -> None:
        until = self._clock.monotonic() + self._timings.listen_s
        while not await _listens(port):
            if self._clock.monotonic() > until:
                raise _NotUp(f"did not listen at its port within {self._timings.listen_s:g} s")
            await asyncio.sleep(_LOOK)
        try:
            await client.initialize(self._timings.handshake_s)
        except GuildError as error:
            raise _NotUp(f"did not answer the handshake: {error.message}") from None

    async def _end(self, process: subprocess.Popen[bytes], ended: asyncio.Task[int]) -> None:
        if process.poll() is None:
            process.terminate()  # the supervisor sees to the rest
            done, _ = await asyncio.wait({ended}, timeout=self._timings.grace_s + 6)
            if not done:
                process.kill()
        await ended

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        command = self._command(port)
        supervisor = [
            os.path.realpath(sys.executable),
            "-I",
            "-S",
            str(_SUPERVISOR),
            str(os.getpid()),
            str(self._timings.grace_s),
        ]
        try:
            with _opened(self.log) as log:
                return subprocess.Popen(
                    [*supervisor, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.member.folder,
                    env=self._environment(port),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise _NotUp(f"cannot be started: {error}", hopeless=True) from None

    def _command(self, port: int) -> list[str]:
        assert self.member.manifest is not None
        mcp, values = self.member.manifest.mcp, {PORT: str(port), PYTHON: sys.executable}
        word = fill_placeholders(mcp.command, values)
        # With a slash it is a program of the member's folder, else one on the caller's PATH.
        path = str(self.member.folder / word) if "/" in word else word
        program = shutil.which(path, path=self._frame.env.get("PATH"))
        if program is None:
            raise _NotUp(f"cannot be started: there is no program {word!r}", hopeless=True)
        return [program, *(fill_placeholders(argument, values) for argument in mcp.args)]

    def _environment(self, port: int) -> dict[str, str]:
        assert self.member.manifest is not None
        told = environment(self._frame, self.member.manifest.mcp.env, {PORT: str(port), PYTHON: sys.executable})
        # One that is a hall itself takes the person's settings from there.
        return {**told, SECRET_VARIABLE: self._secret, HOME_VARIABLE: str(self._home.path)}

    def _last_words(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 10 * _LAST_WORDS))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines or lines[-1].startswith(_BEGIN):
            return ""
        shown = "".join(char if char.isprintable() else " " for char in lines[-1])
        return f"; the last that it printed: {shown[:_LAST_WORDS]}"


def environment(frame: Frame, declared: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the frame's allowed variables and those of the manifest, where `${NAME}` is a variable of the caller.

    A provider's key is included only if the manifest names it. The hall's own environment is never included.
    """
    known = {**frame.own, **frame.keys, **frame.env, **values}
    named = {name: fill_placeholders(value, known) for name, value in declared.items()}
    told = {**frame.env, **{name: value for name, value in named.items() if value or not declared[name]}}
    return {name: value for name, value in told.items() if not name.startswith("GIT_")}


def log_path(member: Member, home: Home) -> Path:
    """Return the log file of a member."""
    return home.path / "logs" / f"{member.name}-{digest(str(member.folder).encode())[:8]}.log"


_BEGIN = "--- started"


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(OSError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(descriptor, f"{_BEGIN}\n".encode())
    return os.fdopen(descriptor, "ab")


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process without polling."""
    try:
        watched = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return await asyncio.to_thread(process.wait)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watched, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    return process.wait()


def _said(code: int) -> str:
    """Return how a process ended. The supervisor reports the signal of a member as 128 and its number."""
    if 0 <= code <= 128:
        return f"ended by itself (exit code {code})"
    number = -code if code < 0 else code - 128
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _is_free(port: int) -> bool:
    """Return True if a program can serve at the port again, so that the address stays valid."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
