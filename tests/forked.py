"""Our own processes, forked by the command that starts them: the wait for Python to start is spared them too.

A command of the tests is a fork of a process that has imported everything. What it starts of ours, the hall, the warm
parent of runs, and the commands of a story, is a fork of it in turn: with the files, folder, session and environment
that it would be executed with, and nothing else of the command's. Every other program is executed, and so is what the
installed command starts.
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


_AS_IT_IS = -1  # what subprocess says of a stream that is inherited


class Forking(subprocess.Popen[Any]):
    """A process that was started; one of ours was forked."""

    def _execute_child(self, args: Any, *more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        program = _ours(args)
        if program is None:
            super()._execute_child(args, *more)  # pyright: ignore[reportAttributeAccessIssue]
            return
        kept, cwd, env, pipes, apart = more[3], more[4], more[5], more[9:15], more[20]
        # Python ignores what a signal handler raises while it runs the hooks of a fork.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self.pid = os.fork()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self.pid == 0:
            if apart:
                os.setsid()
            _become(program, cwd=cwd, env=env, streams=(pipes[0], pipes[3], pipes[5]), kept=kept)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyright: ignore[reportAttributeAccessIssue]


def _ours(command: Any) -> Callable[[], object] | None:
    """What a command line of ours executes; None: it is of something else."""
    if not isinstance(command, list):
        return None
    if command[:3] == [sys.executable, "-m", "guildhall"]:
        return lambda: _command(command[3:])
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


def _command(words: Sequence[str]) -> object:
    from guildhall.cli.main import entry

    sys.argv = ["guild", *words]
    return entry()


def _become(program: Callable[[], object], *, cwd: Any, env: Any, streams: Sequence[int], kept: Any) -> NoReturn:
    code: object = 70
    try:
        gc.freeze()  # nothing of the command's is collected, and closes a file that is none of its any more
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for fd, given in enumerate(streams):
            if given != _AS_IT_IS:
                os.dup2(given, fd)
        _close_all_but(kept)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        tempfile.tempdir = None
        sys.stdin, sys.stdout = (os.fdopen(fd, mode, encoding="utf-8") for fd, mode in enumerate("rw"))
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        logging.root.handlers.clear()
        with _measured():
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
def _measured() -> Generator[None]:
    """What is executed counts where the environment says so; what the command has begun to measure goes on here."""
    measured = coverage.Coverage.current()
    if measured is not None and not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        measured.stop()
        measured = None
    yield
    if measured is not None:
        measured.stop()
        measured.save()
