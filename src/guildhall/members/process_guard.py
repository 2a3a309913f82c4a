"""Supervisor program: starts a member, waits for its exit, and terminates it when the hall ends.

Usage: `python -I -S process_guard.py PARENT GRACE COMMAND...`
When the hall stops the member or dies, the supervisor sends SIGTERM to the member and waits for the grace period. Then
it kills the member and all processes that the member has started.
Does not restart a member: `members.process` does. Does not import Guildhall, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

_PRCTL = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux only
_PDEATHSIG, _SUBREAPER = 1, 36
_COMMAND_NOT_FOUND = 127  # the exit code of a shell
_KILL_TIMEOUT_S = 5.0


class _StopRequested(Exception):
    """Raised by SIGTERM, when the hall stops the member or has died."""


def main() -> NoReturn:
    parent, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    _prctl(_SUBREAPER, 1)  # orphans of the member become our children, so that we can kill them
    signal.signal(signal.SIGTERM, _request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    child = os.fork()
    if child == 0:
        _execute(command)
    code = 1
    try:
        code = _exit_code(os.waitpid(child, 0)[1])
    except _StopRequested:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = _terminate(child, grace_s)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _PRCTL is None:  # orphans are not our children: only the process group can be killed
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        _kill_children()
    sys.exit(code)


def _prctl(option: int, value: int) -> None:
    if _PRCTL is not None:
        _PRCTL(option, value)


def _request_stop(number: int, _frame: object) -> NoReturn:
    raise _StopRequested


def _execute(command: list[str]) -> NoReturn:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        _prctl(_PDEATHSIG, signal.SIGKILL)  # in case the supervisor itself is killed
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_COMMAND_NOT_FOUND)


def _terminate(child: int, grace_s: float) -> int:
    """Send SIGTERM and wait for the grace period. Return the exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return _exit_code(status)
        time.sleep(0.01)
    return 128 + signal.SIGKILL


def _kill_children() -> None:
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
