"""Member process: starts a member, waits for its handshake, restarts it when it exits, and stops it.

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
    from guildhall.core.request_frame import Frame

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_MAX_LOG_BYTES = 2_000_000  # a larger log is rotated at the next start
_MAX_OUTPUT_CHARS = 400  # of the last line in an error
_POLL_S = 0.02  # between two attempts to connect
_LOG_START = "--- started"


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Time limits and retries."""

    listen_s: float = 20.0  # until the member listens on its port; long, because the machine can be busy
    handshake_s: float = 5.0  # from then until it has answered the handshake
    first_pause_s: float = 0.2  # before the first restart; doubled each time
    max_pause_s: float = 30.0
    max_failures: int = 5  # consecutive failures until the member is broken
    report_after: int = 2  # failures until waiting callers get the error
    stable_after_s: float = 30.0  # in state ready, after which earlier failures do not count
    grace_s: float = 5.0  # between SIGTERM and SIGKILL


class _StartFailed(Exception):
    """The member did not start. `is_permanent`: a retry would fail too."""

    def __init__(self, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.is_permanent = is_permanent


class MemberProcess:
    """Keeps one member running until the hall stops it."""

    def __init__(self, member: Member, frame: Frame, home: Home, clock: Clock, timings: Timings, stamp: str) -> None:
        """`frame`: of the first caller. `stamp`: identifies the content of the member's files."""
        self.member = member
        self.stamp = stamp
        self.created_at = clock.monotonic()
        self.state: State = "starting"
        self.note: str | None = None  # the reason of the last exit
        self.pid: int | None = None
        self.port: int | None = None
        self.log = log_path(member, home)
        self._frame = frame
        self._home = home
        self._clock = clock
        self._timings = timings
        self._secret = secrets.token_urlsafe(32)
        self._ready: asyncio.Future[MemberClient] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise())

    async def client(self) -> MemberClient:
        """Return the client once the member is ready. Raise ToolUnavailable if it does not start."""
        return await asyncio.shield(self._ready)

    @property
    def is_over(self) -> bool:
        """Return True if the member is broken or was stopped."""
        return self._task.done()

    async def stop(self) -> None:
        """Terminate the member, and wait for its exit."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.state = "stopped"
        if not self._ready.done():
            self._fail_callers(ToolUnavailable(f"the member {self.member.name} was stopped"), last=True)

    async def _supervise(self) -> None:
        failures = 0
        while True:
            started_at = self._clock.monotonic()
            is_permanent = False
            try:
                reason = await self._run()
            except _StartFailed as error:
                reason, is_permanent = str(error), error.is_permanent
            if self.state == "ready" and self._clock.monotonic() - started_at >= self._timings.stable_after_s:
                failures = 0
            failures += 1
            self.note = f"{reason}{self._last_output()}"
            self.state, self.pid = "exited", None
            if self._ready.done():
                self._ready = asyncio.get_running_loop().create_future()
            if is_permanent or failures >= self._timings.max_failures:
                self.state = "broken"
                self._fail_callers(self._error(), last=True)
                return
            if failures >= self._timings.report_after:
                self._fail_callers(self._error())
            self.state = "backoff"
            await self._clock.sleep(min(self._timings.first_pause_s * 2 ** (failures - 1), self._timings.max_pause_s))
            self.state = "starting"

    def _fail_callers(self, error: GuildError, *, last: bool = False) -> None:
        """Raise an error in all waiting callers. Later callers wait for the next attempt, unless this was the last."""
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # marks it as retrieved: there may be no caller
        if not last:
            self._ready = asyncio.get_running_loop().create_future()

    def _error(self) -> ToolUnavailable:
        message = f"the member {self.member.name} does not run: it {self.note}"
        return ToolUnavailable(message, where=str(self.member.path), hint=f"Its output is in {self.log}.")

    async def _run(self) -> str:
        """Run the member from its start to its exit. Return the reason of the exit."""
        self.port = self.port if self.port is not None and _is_free(self.port) else _free_port()
        process = self._spawn(self.port)
        exit_code = asyncio.create_task(_wait_for_exit(process))
        try:
            self.pid = process.pid
            endpoint = Endpoint(name=self.member.name, url=f"http://127.0.0.1:{self.port}/mcp", secret=self._secret)
            client = MemberClient(endpoint)
            try:
                await self._wait_until_ready(client, exit_code)
                self.state = "ready"
                if not self._ready.done():
                    self._ready.set_result(client)
                return _describe_exit(await asyncio.shield(exit_code))
            finally:
                await client.close()
        finally:
            await asyncio.shield(self._terminate(process, exit_code))

    async def _wait_until_ready(self, client: MemberClient, exit_code: asyncio.Task[int]) -> None:
        """Wait until the member has answered the handshake. Raise _StartFailed if it exits before."""
        assert self.port is not None
        handshake = asyncio.create_task(self._handshake(client, self.port))
        try:
            await asyncio.wait({handshake, exit_code}, return_when=asyncio.FIRST_COMPLETED)
            if exit_code.done():
                raise _StartFailed(f"{_describe_exit(exit_code.result())} before it was ready")
            await handshake
        finally:
            handshake.cancel()
            with contextlib.suppress(asyncio.CancelledError, _StartFailed):
                await handshake

    async def _handshake(self, client: MemberClient, port: int) -> None:
        deadline = self._clock.monotonic() + self._timings.listen_s
        while not await _is_listening(port):
            if self._clock.monotonic() > deadline:
                raise _StartFailed(f"did not listen at its port within {self._timings.listen_s:g} s")
            await asyncio.sleep(_POLL_S)
        try:
            await client.initialize(self._timings.handshake_s)
        except GuildError as error:
            raise _StartFailed(f"did not answer the handshake: {error.message}") from None

    async def _terminate(self, process: subprocess.Popen[bytes], exit_code: asyncio.Task[int]) -> None:
        if process.poll() is None:
            process.terminate()  # the supervisor terminates the member
            done, _ = await asyncio.wait({exit_code}, timeout=self._timings.grace_s + 6)
            if not done:
                process.kill()
        await exit_code

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        command = self._command(port)
        python, arguments = os.path.realpath(sys.executable), (str(os.getpid()), str(self._timings.grace_s))
        try:
            with _open_log(self.log) as log:
                return subprocess.Popen(
                    [python, "-I", "-S", str(_SUPERVISOR), *arguments, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.member.folder,
                    env=self._environment(port),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise _StartFailed(f"cannot be started: {error}", is_permanent=True) from None

    def _command(self, port: int) -> list[str]:
        assert self.member.manifest is not None
        mcp, values = self.member.manifest.mcp, {PORT: str(port), PYTHON: sys.executable}
        word = fill_placeholders(mcp.command, values)
        # With a slash, a path in the member's folder, else a name on the caller's PATH.
        path = str(self.member.folder / word) if "/" in word else word
        program = shutil.which(path, path=self._frame.env.get("PATH"))
        if program is None:
            raise _StartFailed(f"cannot be started: unknown program {word!r}", is_permanent=True)
        return [program, *(fill_placeholders(argument, values) for argument in mcp.args)]

    def _environment(self, port: int) -> dict[str, str]:
        assert self.member.manifest is not None
        variables = environment(self._frame, self.member.manifest.mcp.env, {PORT: str(port), PYTHON: sys.executable})
        # A member with its own hall reads the user's settings from this home.
        return {**variables, SECRET_VARIABLE: self._secret, HOME_VARIABLE: str(self._home.path)}

    def _last_output(self) -> str:
        """Return the last line of the log as the end of an error message, or "" if the member printed nothing."""
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 10 * _MAX_OUTPUT_CHARS))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines or lines[-1].startswith(_LOG_START):
            return ""
        line = "".join(char if char.isprintable() else " " for char in lines[-1])
        return f"; its last output: {line[:_MAX_OUTPUT_CHARS]}"


def environment(frame: Frame, declared: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the frame's allowed variables and the variables of the manifest, with placeholders replaced.

    The key of a provider is included only if the manifest names it. The hall's own environment is never included.
    """
    known = {**frame.user_env, **frame.keys, **frame.env, **values}
    filled = {name: fill_placeholders(value, known) for name, value in declared.items()}
    variables = {**frame.env, **{name: value for name, value in filled.items() if value or not declared[name]}}
    return {name: value for name, value in variables.items() if not name.startswith("GIT_")}


def log_path(member: Member, home: Home) -> Path:
    return home.path / "logs" / f"{member.name}-{digest(str(member.folder).encode())[:8]}.log"


def _open_log(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(OSError):
        if path.stat().st_size > _MAX_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(descriptor, f"{_LOG_START}\n".encode())
    return os.fdopen(descriptor, "ab")


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait for the exit of a process without polling. Return its exit code."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return await asyncio.to_thread(process.wait)
    loop, exited = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return process.wait()


def _describe_exit(code: int) -> str:
    """Return the reason of an exit. The exit code of the supervisor is 128 plus the signal that ended the member."""
    if 0 <= code <= 128:
        return f"exited with code {code}"
    number = -code if code < 0 else code - 128
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"


async def _is_listening(port: int) -> bool:
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
    """Return True if the member can use its earlier port again, so that its URL stays valid."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
