"""A member that dies at a chosen commit: a fork of the process that has imported everything forks one for each order.

The one function that commits is wrapped here, from outside; the product does not know of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tests.warm import StartedCommand

if TYPE_CHECKING:
    from tests.warm import WarmProcess

_PR_SET_PDEATHSIG = 1


class KilledMember:
    """Starts members that die."""

    def __init__(self, warm: WarmProcess) -> None:
        self._warm = warm

    def __enter__(self) -> Self:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self._process = StartedCommand(
            self._warm, (), program="tests.members.killed_member", env=dict(os.environ), **pipes
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, folder: Path, port: int, secret: str, number: int, when: str) -> int:
        """Start a member that is killed before or after this commit, and return its process."""
        assert self._process.stdin is not None
        order = {"folder": str(folder), "port": port, "secret": secret, "number": number, "when": when}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._read_line())

    def ended(self) -> str:
        """Wait for the end and return `killed` or the exit code."""
        return self._read_line()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def entry() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)


def _child(order: dict[str, Any]) -> NoReturn:
    from guildhall import Member
    from guildhall.hall.server.process import RedactingFormatter
    from guildhall.store import engine

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    commit, count = engine._commit, 0

    def counted(connection: Any, batch: list[Any]) -> None:
        nonlocal count
        for write in batch:  # each its own commit, so that no point hides inside a group
            count += 1
            if count == order["number"] and order["when"] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            commit(connection, [write])
            if count == order["number"]:
                os.kill(os.getpid(), signal.SIGKILL)

    engine._commit = counted
    code = 70
    try:
        member = Member(Path(order["folder"]) / "server.py")
        asyncio.run(member._serve(order["port"], order["secret"], {}, RedactingFormatter({})))
        code = 0
    finally:
        os._exit(code)
