"""The keeper program: starts a member, stays beside it, and terminates it when the hall ends.

Usage: `python -I -S keeper.py PARENT GRACE COMMAND...`
When the hall stops the member, or dies, the keeper sends SIGTERM to the member and waits for the grace period. Then it
kills the member and all processes that the member has started.
Does not restart a member (`process.py`). Does not import Guildhall, so that it starts at once.
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

_PRCTL = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)  # Linux has it
_PDEATHSIG, _SUBREAPER = 1, 36
_CANNOT = 127  # as a shell says it
_END_SECONDS = 5.0


class _Leave(Exception):
    """The hall wants the member to leave, or is gone."""


def main() -> NoReturn:
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    _prctl(_SUBREAPER, 1)  # what the member leaves behind becomes ours, to be ended
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    child = os.fork()
    if child == 0:
        _become(command)
    code = 1
    try:
        code = _code(os.waitpid(child, 0)[1])
    except _Leave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = _let_go(child, grace)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _PRCTL is None:  # nothing became ours: its group is all that can be reached
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        _end_children()
    sys.exit(code)


def _prctl(option: int, value: int) -> None:
    if _PRCTL is not None:
        _PRCTL(option, value)


def _leave(number: int, _frame: object) -> NoReturn:
    raise _Leave


def _become(command: list[str]) -> NoReturn:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        _prctl(_PDEATHSIG, signal.SIGKILL)  # should the keeper itself be killed
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT)


def _let_go(child: int, grace: float) -> int:
    """Asks it to leave, and waits for a while."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
    until = time.monotonic() + grace
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return _code(status)
        time.sleep(0.01)
    return 128 + signal.SIGKILL


def _end_children() -> None:
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
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


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
