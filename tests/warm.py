"""Real `guild` commands without the start-up time of Python.

A separate process imports the modules of the commands once. Each command is a fork of it with its own environment,
folder, session and files, and runs the entry point of the command. Tests use it through `WarmProcess`. A command that
keeps running (`StartedCommand`) behaves like a process of subprocess.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import coverage

from tests.forking_popen import ForkingPopen
from tests.warm_up import warm_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IMPORTED_MODULES = (
    "guildhall.cli.commands.projects.edit",
    "guildhall.cli.commands.runs.answer",
    "guildhall.cli.commands.runs.replay",
    "guildhall.cli.commands.runs.resume",
    "guildhall.cli.commands.runs.run",
    "guildhall.cli.command",
    "guildhall.cli.main",
    "guildhall.cli.argument_parser",
    "guildhall.hall.composition.workers",
    "guildhall.hall.services.trust",
    "guildhall.hall.services.embedded",
    "guildhall.hall.python_api",
    "guildhall.hall.server.process",
    "guildhall.hall.python_member",
    "guildhall.hall.testrun.runner",
    "guildhall.hall.services.trust",
    "guildhall.hall.services.workflows",
    "guildhall.jobs.service",
    "guildhall.models.provider_source",
    "guildhall.models.scripted.source",
    "guildhall.projects.commissions.service",
    "guildhall.projects.registry",
    "guildhall.runs.execution.memory_compaction",
    "guildhall.runs.replay.fork",
    "guildhall.runs.execution.runs",
    "guildhall.runs.plan.planner",
    "guildhall.runs.replay.script_export",
    "guildhall.runtimes.forked.child",
    "guildhall.runtimes.pydantic",
    "guildhall.runtimes.forked.child",
    "guildhall.tools.call_router",
    "guildhall.tools.host.main",
    "guildhall.workflow.team",
    "guildhall.workflow.service",
    "jsonschema",
    "pydantic_ai.direct",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.openai",
    "tests.conformance.conversation",
)


class WarmProcess:
    """The client of the process: sends commands one at a time, and waits for them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._files, remote = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(remote.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            # The imports of this process are not measured; each command is measured by itself.
            env={name: value for name, value in env.items() if not name.startswith("COVERAGE_")},
            start_new_session=True,
            pass_fds=[remote.fileno()],
        )
        remote.close()

    def run(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: str, files: Sequence[Path], timeout: float
    ) -> int | None:
        """Run a command and return its exit code, or None if it timed out and was killed.

        `files` are its input, output and errors.
        """
        request = {"words": list(words), "env": dict(env), "cwd": cwd, "files": list(map(str, files)), "limit": timeout}
        return self._request(request)["code"]

    def begin(self, words: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int], **more: Any) -> int:
        """Start a command and return its pid. `fds` are its input, output, errors, and a pipe for its exit code."""
        request = {"words": list(words), "env": dict(env), "files": [], **more}
        socket.send_fds(self._files, [b"."], fds)
        return self._request(request)["pid"]

    def perform(self, program: str, *words: object, seconds: float = 110) -> str:
        """Run a program of the tests, and return its output. `program` is a module with an `entry`."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = StartedCommand(self, list(map(str, words)), program=program, env=dict(os.environ), **options)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if process.returncode:
            raise AssertionError(f"{program} ended with {process.returncode}\n{err}")
        return out

    def close(self) -> None:
        stdin, stdout = self._pipes()
        stdin.close()
        self._process.wait(10)
        stdout.close()
        self._files.close()

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._pipes()
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("not connected")
        return self._process.stdin, self._process.stdout


class StartedCommand(subprocess.Popen[str]):
    """A started command. Another process has forked it and waits for it."""

    def __init__(self, warm: WarmProcess, words: Sequence[str], **options: Any) -> None:
        """`options` are passed to subprocess.Popen, except two.

        `terminal`: the input becomes the controlling terminal.
        `program`: a module of the tests whose `entry` is called instead of the command.
        """
        self._warm = warm
        self._kind = {name: options.pop(name, None) for name in ("terminal", "program")}
        self._exit_code_fd: int | None = None
        super().__init__(list(words), text=True, encoding="utf-8", start_new_session=True, **options)

    def _execute_child(self, args: list[str], *more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        cwd, env, pipes = more[4], more[5], more[9:15]
        self._exit_code_fd, exit_code_fd = os.pipe()
        try:
            streams = (own if given < 0 else given for own, given in enumerate((pipes[0], pipes[3], pipes[5])))
            fds = [*streams, exit_code_fd]
            folder = str(cwd or Path.cwd())
            self.pid = self._warm.begin(args, env=env, cwd=folder, fds=fds, **self._kind)
        finally:
            os.close(exit_code_fd)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._update_returncode(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._update_returncode(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _update_returncode(self, seconds: float | None) -> bool:
        """Wait for the exit code, and return True if the command has ended."""
        if self._exit_code_fd is not None and select.select([self._exit_code_fd], [], [], seconds)[0]:
            self.returncode = int(os.read(self._exit_code_fd, 100) or -signal.SIGKILL)
            os.close(self._exit_code_fd)
            self._exit_code_fd = None
        return self._exit_code_fd is None


def serve(files: socket.socket) -> None:
    """Fork a command for each request line."""
    requests, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for name in _IMPORTED_MODULES:
        importlib.import_module(name)
    warm_up()
    inspect.stack()  # coverage calls it at its start, and the first call scans every module
    for line in requests:
        request = json.loads(line)
        if request["files"]:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _run_child(request)
            reply = {"code": _wait_for_exit(pid, request["limit"])}
        else:
            reply = {"pid": _start_detached(request, socket.recv_fds(files, 1, 4)[1])}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _start_detached(request: dict[str, Any], fds: list[int]) -> int:
    """Start a command, and return its pid. An intermediate process waits for it."""
    *streams, exit_code_fd = fds
    pid_reader, pid_writer = os.pipe()
    waiter = os.fork()
    if waiter == 0:
        os.close(pid_reader)
        if pid := os.fork():
            for fd in (*streams, pid_writer):
                os.close(fd)
            os.write(exit_code_fd, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os._exit(0)
        os.close(exit_code_fd)
        os.setsid()
        os.write(pid_writer, str(os.getpid()).encode())  # only now it has a process group that can be killed
        os.close(pid_writer)
        request["files"] = streams
        _run_child(request)
    for fd in (*fds, pid_writer):
        os.close(fd)
    pid = int(os.read(pid_reader, 100))
    os.close(pid_reader)
    with contextlib.suppress(ChildProcessError):  # intermediate processes of ended commands
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return pid


def _wait_for_exit(pid: int, limit: float) -> int | None:
    """Return the exit code of a command, or a negative signal number, or None after a timeout."""

    def kill_command(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        nonlocal is_late
        is_late = True

    is_late = False
    signal.signal(signal.SIGALRM, kill_command)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None if is_late else os.waitstatus_to_exitcode(status)


def _run_child(request: dict[str, Any]) -> NoReturn:
    code: Any = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for fd, given in enumerate(request["files"]):
            opened = given if isinstance(given, int) else os.open(given, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.dup2(opened, fd)
            os.close(opened)
        if request.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None  # the warm-up used another folder
        measurement = coverage.process_startup()
        os.chdir(request["cwd"])
        sys.stdin, sys.stdout = (os.fdopen(fd, mode, encoding="utf-8") for fd, mode in enumerate("rw"))
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        sys.argv = ["guild", *request["words"]]
        subprocess.Popen = ForkingPopen
        code = _run_entry(importlib.import_module(request.get("program") or "guildhall.cli.main").entry)
        sys.stdout.flush()
        sys.stderr.flush()
        if measurement is not None:
            measurement.stop()
            measurement.save()
    finally:
        os._exit(code)


def _run_entry(entry: Any) -> int:
    try:
        code = entry()
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
