"""Member process: starts a member, waits for its handshake, restarts it after an exit, and stops it.

After an exit, the state is backoff and then starting again, or broken after too many failures. The member runs in its
own folder as a child of `process_guard.py`, and writes to a log file.
Does not check trust (`members.service`) and does not make calls (`members.client`).

Invariant: a member never receives the environment of the hall. It receives the allowed variables of the caller and the
variables that its manifest names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.ids import digest
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.members.client import MemberClient
from guildhall.members.manifest import PORT, PYTHON, fill_placeholders
from guildhall.members.model import SECRET_VARIABLE, Endpoint, Member, State
from guildhall.sandbox.jail import describe_exit

if TYPE_CHECKING:
    from guildhall.core.clock import Clock
    from guildhall.core.request_frame import Frame

_SUPERVISOR = Path(__file__).with_name("process_guard.py")
_MAX_LOG_BYTES = 2_000_000  # a larger log is rotated at the next start
_MAX_OUTPUT_CHARS = 400  # of the last output line in an error
_POLL_S = 0.02  # between two attempts to connect
_LOG_START = "--- started"
_KILL_TIMEOUT_S = 6.0  # after the grace period; process_guard.py needs up to 5 s to kill all child processes


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Time limits and retries."""

    listen_s: float = 20.0  # until the member listens; long, because the machine can be busy
    handshake_s: float = 5.0  # for the handshake after that
    first_pause_s: float = 0.2  # before the first restart; doubled each time
    max_pause_s: float = 30.0
    max_failures: int = 5  # consecutive failures until the member is broken
    report_after: int = 2  # failures until waiting callers receive the error
    stable_after_s: float = 30.0  # earlier failures do not count after this time in the state ready
    grace_s: float = 5.0  # between SIGTERM and SIGKILL


class _StartFailed(Exception):
    """A failed start of a member. `is_permanent`: a retry would fail too."""

    def __init__(self, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.is_permanent = is_permanent


class MemberProcess:
    """Keeps one member running until the hall stops it."""

    def __init__(
        self,
        member: Member,
        frame: Frame,
        home: Home,
        clock: Clock,
        timings: Timings,
        code_fingerprint: str,
        previous: MemberProcess | None = None,
    ) -> None:
        """`frame`: the frame of the first caller. `code_fingerprint`: a hash of the manifest and the files.

        `previous`: the stopped process of the member, whose port and secret stay valid for connected runs.
        """
        self.member = member
        self.code_fingerprint = code_fingerprint
        self.created_at = clock.monotonic()
        self.state: State = "starting"
        self.note: str | None = None  # the reason of the last exit
        self.pid: int | None = None
        self.port = previous.port if previous is not None else None
        self.log = log_path(member, home)
        self._frame = frame
        self._home = home
        self._clock = clock
        self._timings = timings
        self.secret = previous.secret if previous is not None else secrets.token_urlsafe(32)
        self._ready: asyncio.Future[MemberClient] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._supervise())

    async def client(self) -> MemberClient:
        """Return the client once the member is ready. Raise ToolUnavailable if it does not start."""
        return await asyncio.shield(self._ready)

    @property
    def is_over(self) -> bool:
        """Return True if the member is broken or stopped."""
        return self._task.done()

    def has_other_variables(self, frame: Frame) -> bool:
        """Return True if the frame has another value for a variable that the manifest names."""
        assert self.member.manifest is not None
        declared = self.member.manifest.mcp.env
        old, new = environment(self._frame, declared, {}), environment(frame, declared, {})
        return any(new.get(name) not in (None, old.get(name)) for name in declared)

    async def stop(self) -> None:
        """Terminate the member, and wait for its exit."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.state = "stopped"
        if not self._ready.done():
            error = ToolUnavailable(
                f"cannot start the member {self.member.name}: it was stopped",
                hint="Repeat the call: it starts the member.",
            )
            self._fail_callers(error, is_final=True)

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
                self._fail_callers(self._error(), is_final=True)
                return
            if failures >= self._timings.report_after:
                self._fail_callers(self._error())
            self.state = "backoff"
            await self._clock.sleep(min(self._timings.first_pause_s * 2 ** (failures - 1), self._timings.max_pause_s))
            self.state = "starting"

    def _fail_callers(self, error: GuildError, *, is_final: bool = False) -> None:
        """Raise an error in all waiting callers. Later callers wait for the next attempt, unless `is_final`."""
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # marks the exception as retrieved, because there may be no caller
        if not is_final:
            self._ready = asyncio.get_running_loop().create_future()

    def _error(self) -> ToolUnavailable:
        message = f"cannot run the member {self.member.name}: it {self.note}"
        return ToolUnavailable(message, where=str(self.member.path), hint=f"Read the log of the member: {self.log}")

    async def _run(self) -> str:
        """Run the member from its start to its exit. Return the reason of the exit."""
        self.port = _free_port(self.port)
        process = self._spawn(self.port)
        exit_code = asyncio.create_task(_wait_for_exit(process))
        try:
            self.pid = process.pid
            endpoint = Endpoint(name=self.member.name, url=f"http://127.0.0.1:{self.port}/mcp", secret=self.secret)
            client = MemberClient(endpoint)
            try:
                await self._wait_until_ready(client, exit_code)
                self.state = "ready"
                if not self._ready.done():
                    self._ready.set_result(client)
                return describe_exit(await asyncio.shield(exit_code))
            finally:
                await client.close()
        finally:
            await asyncio.shield(self._terminate(process, exit_code))

    async def _wait_until_ready(self, client: MemberClient, exit_code: asyncio.Task[int]) -> None:
        """Wait until the handshake is complete. Raise _StartFailed if the member exits before."""
        assert self.port is not None
        handshake = asyncio.create_task(self._handshake(client, self.port))
        try:
            await asyncio.wait({handshake, exit_code}, return_when=asyncio.FIRST_COMPLETED)
            if exit_code.done():
                raise _StartFailed(f"{describe_exit(exit_code.result())} before it was ready")
            await handshake
        finally:
            handshake.cancel()
            with contextlib.suppress(asyncio.CancelledError, _StartFailed):
                await handshake

    async def _handshake(self, client: MemberClient, port: int) -> None:
        deadline = self._clock.monotonic() + self._timings.listen_s
        while not await _is_listening(port):
            if self._clock.monotonic() > deadline:
                raise _StartFailed(f"did not listen on its port within {self._timings.listen_s:g} s")
            await asyncio.sleep(_POLL_S)
        try:
            await client.initialize(self._timings.handshake_s)
        except GuildError as error:
            raise _StartFailed(f"did not complete the handshake: {error.message}") from None

    async def _terminate(self, process: subprocess.Popen[bytes], exit_code: asyncio.Task[int]) -> None:
        if process.poll() is None:
            process.terminate()  # the supervisor terminates the member
            done, _ = await asyncio.wait({exit_code}, timeout=self._timings.grace_s + _KILL_TIMEOUT_S)
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
        # A word with a slash is a path in the member's folder. Another word is a program on the caller's PATH.
        path = str(self.member.folder / word) if "/" in word else word
        program = shutil.which(path, path=self._frame.env.get("PATH"))
        if program is None:
            raise _StartFailed(f"cannot be started: its program {word!r} was not found", is_permanent=True)
        return [program, *(fill_placeholders(argument, values) for argument in mcp.args)]

    def _environment(self, port: int) -> dict[str, str]:
        assert self.member.manifest is not None
        variables = environment(self._frame, self.member.manifest.mcp.env, {PORT: str(port), PYTHON: sys.executable})
        # A member with its own hall reads the user's settings from this home.
        return {**variables, SECRET_VARIABLE: self.secret, HOME_VARIABLE: str(self._home.path)}

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

    The key of a provider is included only if the manifest names it.
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
    """Wait for the exit of a process without polling. Return its exit code, or 128 plus the number of the signal."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        code = await asyncio.to_thread(process.wait)
    else:
        loop, exited = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        code = process.wait()
    return code if code >= 0 else 128 - code


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _free_port(earlier: int | None) -> int:
    """Return the earlier port of the member if it is free, so that its URL stays valid. Return another port if not."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", earlier or 0))
        except OSError:
            sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
