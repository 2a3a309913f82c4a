"""Real `guild` commands without the wait for Python to start.

A process of its own imports once what commands import; each command is then a fork of it with its own environment,
folder, session and files, and runs the command's entry point. It is started by `Warm`, which tests use. A command that
is only begun (`Started`) looks from outside like any process that subprocess has started.
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

from tests.forked import Forking
from tests.practised import practise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEEDED = (
    "guildhall.cli.commands.projects.edit",
    "guildhall.cli.commands.runs.answer",
    "guildhall.cli.commands.runs.replay",
    "guildhall.cli.commands.runs.resume",
    "guildhall.cli.commands.runs.run",
    "guildhall.cli.command",
    "guildhall.cli.main",
    "guildhall.cli.arguments",
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
    "guildhall.tools.executor",
    "guildhall.tools.host.main",
    "guildhall.workflow.scheduler",
    "guildhall.workflow.service",
    "jsonschema",
    "pydantic_ai.direct",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.openai",
    "tests.conformance.table",
)


class Warm:
    """The tests' end: hands over commands, one at a time, and waits for them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._files, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            # What is imported here is counted elsewhere; each command counts for itself.
            env={name: value for name, value in env.items() if not name.startswith("COVERAGE_")},
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: str, files: Sequence[Path], timeout: float
    ) -> int | None:
        """The exit code of a command; None when it took too long and was killed. `files`: its input, output, errors."""
        order = {"words": list(words), "env": dict(env), "cwd": cwd, "files": list(map(str, files)), "limit": timeout}
        return self._ordered(order)["code"]

    def begin(self, words: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int], **more: Any) -> int:
        """Begins a command; its process id. `fds`: its input, output, errors, and where its exit code is written to."""
        order = {"words": list(words), "env": dict(env), "files": [], **more}
        socket.send_fds(self._files, [b"."], fds)
        return self._ordered(order)["pid"]

    def perform(self, program: str, *words: object, seconds: float = 110) -> str:
        """What a program of the tests prints; it has to end well. `program`: its module, which has an `entry`."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = Started(self, list(map(str, words)), program=program, env=dict(os.environ), **options)
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

    def _ordered(self, order: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._pipes()
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("there is no connection")
        return self._process.stdin, self._process.stdout


class Started(subprocess.Popen[str]):
    """A command that was begun: a process as any other, but for who has forked it and who waits for it."""

    def __init__(self, warm: Warm, words: Sequence[str], **options: Any) -> None:
        """`options`: of subprocess.Popen; `terminal`: its input is a terminal, which it is to be controlled by.

        `program`: the module of a program of the tests, which is begun by its `entry` in the place of the command.
        """
        self._warm = warm
        self._kind = {name: options.pop(name, None) for name in ("terminal", "program")}
        self._told: int | None = None
        super().__init__(list(words), text=True, encoding="utf-8", start_new_session=True, **options)

    def _execute_child(self, args: list[str], *more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        cwd, env, pipes = more[4], more[5], more[9:15]
        self._told, telling = os.pipe()
        try:
            streams = (own if given < 0 else given for own, given in enumerate((pipes[0], pipes[3], pipes[5])))
            fds = [*streams, telling]
            place = str(cwd or Path.cwd())
            self.pid = self._warm.begin(args, env=env, cwd=place, fds=fds, **self._kind)
        finally:
            os.close(telling)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._learn(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._learn(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _learn(self, seconds: float | None) -> bool:
        """Whether it has ended, looked at for so long."""
        if self._told is not None and select.select([self._told], [], [], seconds)[0]:
            self.returncode = int(os.read(self._told, 100) or -signal.SIGKILL)
            os.close(self._told)
            self._told = None
        return self._told is None


def serve(files: socket.socket) -> None:
    """The other end: one fork for each line that comes in."""
    orders, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for name in _NEEDED:
        importlib.import_module(name)
    practise()
    inspect.stack()  # coverage asks for it when it starts; the first time it looks at every module there is
    for line in orders:
        order = json.loads(line)
        if order["files"]:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _child(order)
            reply = {"code": _ended(pid, order["limit"])}
        else:
            reply = {"pid": _begun(order, socket.recv_fds(files, 1, 4)[1])}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _begun(order: dict[str, Any], fds: list[int]) -> int:
    """The process id of a command that goes on while others are ordered: a process in between waits for it."""
    *streams, telling = fds
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(told)
        if pid := os.fork():
            for fd in (*streams, tell):
                os.close(fd)
            os.write(telling, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os._exit(0)
        os.close(telling)
        os.setsid()
        os.write(tell, str(os.getpid()).encode())  # not before it has a group that can be killed
        os.close(tell)
        order["files"] = streams
        _child(order)
    for fd in (*fds, tell):
        os.close(fd)
    pid = int(os.read(told, 100))
    os.close(told)
    with contextlib.suppress(ChildProcessError):  # those of commands that have ended meanwhile
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return pid


def _ended(pid: int, limit: float) -> int | None:
    """How a command ended, as a shell would say it: a signal is a negative number."""

    def too_long(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        nonlocal late
        late = True

    late = False
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None if late else os.waitstatus_to_exitcode(status)


def _child(order: dict[str, Any]) -> NoReturn:
    code: Any = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for fd, given in enumerate(order["files"]):
            opened = given if isinstance(given, int) else os.open(given, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.dup2(opened, fd)
            os.close(opened)
        if order.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.environ.clear()
        os.environ.update(order["env"])
        tempfile.tempdir = None  # what practised before had another one
        measured = coverage.process_startup()
        os.chdir(order["cwd"])
        sys.stdin, sys.stdout = (os.fdopen(fd, mode, encoding="utf-8") for fd, mode in enumerate("rw"))
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        sys.argv = ["guild", *order["words"]]
        subprocess.Popen = Forking
        code = _code_of(importlib.import_module(order.get("program") or "guildhall.cli.main").entry)
        sys.stdout.flush()
        sys.stderr.flush()
        if measured is not None:
            measured.stop()
            measured.save()
    finally:
        os._exit(code)


def _code_of(entry: Any) -> int:
    try:
        code = entry()
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
