"""Loopback door: gives a confined program a loopback port to its parent.

If the program has its own network namespace, `sandbox.loopback_main` creates the listening socket inside and sends it
to this process. The kernel then guarantees that the program has no other network access. Otherwise the door is an
ordinary socket of this machine.
Does not serve the socket: the caller serves it and closes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from guildhall.core.errors import ToolUnavailable

_PORT = 7420  # always free in a new network namespace
_LAUNCHER = Path(__file__).with_name("loopback_main.py")
_OPEN_TIMEOUT_S = 10.0


class LoopbackDoor:
    """A door for one program, which connects to `port`."""

    def __init__(self, *, has_own_network: bool) -> None:
        self.has_own_network = has_own_network
        self._ours: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._listening: socket.socket | None = None
        self.port = _PORT
        if has_own_network:
            self._ours, self._theirs = socket.socketpair()
            self._ours.setblocking(False)
        else:
            self._listening = socket.create_server(("127.0.0.1", 0))
            self.port = self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the file descriptors that the program has to inherit."""
        return () if self._theirs is None else (self._theirs.fileno(),)

    def wrap_command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that opens the door and then executes the program."""
        if self._theirs is None:
            return list(argv)
        python = os.path.realpath(sys.executable)
        return [python, "-I", "-S", str(_LAUNCHER), str(self._theirs.fileno()), str(self.port), *argv]

    async def receive_socket(self) -> socket.socket:
        """Return the listening socket after the program was started. The caller closes it."""
        if self._ours is None or self._theirs is None:
            listening, self._listening = self._listening, None
            assert listening is not None
            return listening
        self._theirs.close()  # otherwise the exit of the program would not close the connection
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._ours, readable.set)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await readable.wait()
            _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        except (TimeoutError, OSError):
            fds = []
        finally:
            loop.remove_reader(self._ours)
        if not fds:
            reason = f"it exited, or did not open its port within {_OPEN_TIMEOUT_S:g} s"
            raise ToolUnavailable(f"cannot confine the program: {reason}", hint="Try again.")
        return socket.socket(fileno=fds[0])

    def close(self) -> None:
        for end in (self._ours, self._theirs, self._listening):
            if end is not None:
                end.close()
