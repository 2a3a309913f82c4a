"""A Popen that forks processes of Guildhall instead of executing them, which saves the start of Python.

A command of the tests is a fork of a process that has imported everything. The hall, the fork server of runs and the
commands of a demo are forks of that command, with the files, folder, session and environment that they would be
executed with. Every other program is executed, and so are all programs that the installed command starts.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import coverage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence


_INHERITED = -1  # how subprocess marks an inherited stream


class ForkingPopen(subprocess.Popen[Any]):
    """A started process. Processes of Guildhall are forked."""

    def _execute_child(self, args: Any, *more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        program = _find_program(args)
        if program is None:
            super()._execute_child(args, *more)  # pyright: ignore[reportAttributeAccessIssue]
            return
        kept, cwd, env, pipes, is_new_session = more[3], more[4], more[5], more[9:15], more[20]
        # Python ignores exceptions of a signal handler during the hooks of a fork.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self.pid = os.fork()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self.pid == 0:
            if is_new_session:
                os.setsid()
            _run_program(program, cwd=cwd, env=env, streams=(pipes[0], pipes[3], pipes[5]), kept=kept)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyright: ignore[reportAttributeAccessIssue]


def _find_program(command: Any) -> Callable[[], object] | None:
    """Return the function that a command line of Guildhall executes, or None for any other program."""
    if not isinstance(command, list):
        return None
    if command[:3] == [sys.executable, "-m", "guildhall"]:
        return lambda: _run_command(command[3:])
    if len(command) < len(("python", "-P", "-m", "module", "home", "fd")):
        return None
    if command[1:4] == ["-P", "-m", "guildhall.hall.server.process"]:
        from guildhall.core.paths import Home
        from guildhall.hall.server import process as serve

        return lambda: serve.main(Home.at(Path(command[4])), int(command[5]), dict(os.environ))
    if "guildhall.runtimes.forked.fork_server" in str(command[-3]):
        from guildhall.runtimes.forked import fork_server

        return lambda: fork_server.main(int(command[-1]))
    return None


def _run_command(words: Sequence[str]) -> object:
    from guildhall.cli.main import entry

    sys.argv = ["guild", *words]
    return entry()


def _run_program(program: Callable[[], object], *, cwd: Any, env: Any, streams: Sequence[int], kept: Any) -> NoReturn:
    code: object = 70
    try:
        gc.freeze()  # objects of the command are not collected, which would close reused file descriptors
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for fd, given in enumerate(streams):
            if given != _INHERITED:
                os.dup2(given, fd)
        _close_all_but(kept)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        tempfile.tempdir = None
        sys.stdin, sys.stdout = (os.fdopen(fd, mode, encoding="utf-8") for fd, mode in enumerate("rw"))
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        logging.root.handlers.clear()
        with _measure_coverage():
            code = program()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _close_all_but(kept: Sequence[int]) -> None:
    after = 3
    for fd in sorted(kept):
        os.closerange(after, fd)
        after = fd + 1
    os.closerange(after, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@contextlib.contextmanager
def _measure_coverage() -> Generator[None]:
    """Measure coverage if the environment says so, with the measurement that the command has started."""
    measurement = coverage.Coverage.current()
    if measurement is not None and not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        measurement.stop()
        measurement = None
    yield
    if measurement is not None:
        measurement.stop()
        measurement.save()
