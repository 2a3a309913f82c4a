"""Real `guild` commands without the wait for Python to start.

A process of its own imports once what commands import; each command is then a fork of it with its own environment,
folder, session and files, and runs the command's entry point. It is started by `Warm`, which tests use.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import coverage

from tests.practised import practise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEEDED = (
    "alembic.runtime.migration",
    "alembic.script",
    "jsonschema",
    "pydantic_ai.direct",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.openai",
    "guildhall.cli.main",
    "guildhall.cli.commands.run",
    "guildhall.hall.calling",
    "guildhall.hall.cases",
    "guildhall.hall.embedded",
    "guildhall.hall.library",
    "guildhall.hall.rehearsal",
    "guildhall.hall.trial",
    "guildhall.hall.trusting",
    "guildhall.hall.workflows",
    "guildhall.models.providers",
    "guildhall.models.script",
    "guildhall.runs.condense",
    "guildhall.runs.fork",
    "guildhall.runs.lifecycle",
    "guildhall.runs.planner",
    "guildhall.runs.script",
    "guildhall.runtimes.pydantic",
    "guildhall.tools.executor",
    "guildhall.workflow.workflows",
)


class Warm:
    """The tests' end: hands over commands, one at a time, and waits for them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            # What is imported here is counted elsewhere; each command counts for itself.
            env={name: value for name, value in env.items() if not name.startswith("COVERAGE_")},
            start_new_session=True,
        )

    def run(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: str, files: Sequence[Path], timeout: float
    ) -> int | None:
        """The exit code of a command; None when it took too long and was killed. `files`: its input, output, errors."""
        order = {"words": list(words), "env": dict(env), "cwd": cwd, "files": list(map(str, files)), "limit": timeout}
        stdin, stdout = self._pipes()
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())["code"]

    def close(self) -> None:
        stdin, stdout = self._pipes()
        stdin.close()
        self._process.wait(10)
        stdout.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("there is no connection")
        return self._process.stdin, self._process.stdout


def serve() -> None:
    """The other end: one fork for each line that comes in."""
    orders, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for name in _NEEDED:
        importlib.import_module(name)
    practise()
    inspect.stack()  # coverage asks for it when it starts; the first time it looks at every module there is
    for line in orders:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(order)
        replies.write(json.dumps({"code": _ended(pid, order["limit"])}) + "\n")
        replies.flush()


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
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for fd, path in enumerate(order["files"]):
            opened = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY)
            os.dup2(opened, fd)
            os.close(opened)
        os.environ.clear()
        os.environ.update(order["env"])
        measured = coverage.process_startup()
        os.chdir(order["cwd"])
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, encoding="utf-8") for fd, mode in enumerate("rww"))
        sys.argv = ["guild", *order["words"]]
        from guildhall.cli.main import entry

        code = _code_of(entry)
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
    serve()
