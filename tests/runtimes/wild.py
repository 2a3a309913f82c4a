"""A warm parent whose children misbehave, each as its first message says. Started by the tests of children."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from guildhall.runtimes.zygote import serve

ENDLESS = b"x" * 1024**2


def main() -> None:
    serve(socket.socket(fileno=int(sys.argv[1])), live)


def live(connection: socket.socket) -> NoReturn:
    given = json.loads(connection.makefile("rb").readline())
    word, _, detail = given["first_message"].partition(" ")
    {name: value for name, value in globals().items() if name.startswith("_")}[f"_{word}"](connection, detail)
    os._exit(0)


def _says(connection: socket.socket, text: str) -> None:
    """Just these bytes; then it waits to be ended."""
    connection.sendall(text.encode("latin-1"))
    time.sleep(60)


def _asks(connection: socket.socket, text: str) -> None:
    """These lines, each after the answer to the one before it."""
    answers = connection.makefile("rb")
    for line in text.splitlines(keepends=True):
        connection.sendall(line.encode())
        answers.readline()


def _stays(connection: socket.socket, _: str) -> None:
    """Starts another process and waits for it."""
    subprocess.run(["/bin/sleep", "60"], check=False)


def _endless(connection: socket.socket, _: str) -> None:
    while True:
        connection.sendall(ENDLESS)


def _hangs(connection: socket.socket, _: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def _exits(connection: socket.socket, code: str) -> None:
    os._exit(int(code))


def _signals(connection: socket.socket, number: str) -> None:
    os.kill(os.getpid(), int(number))


def _crashes(connection: socket.socket, _: str) -> None:
    ctypes.string_at(0)


def _eats(connection: socket.socket, _: str) -> None:
    try:
        kept = [bytearray(16 * 1024**2)]
        while True:
            kept.append(bytearray(16 * 1024**2))
    except MemoryError:
        os._exit(71)


def _leaves(connection: socket.socket, how: str) -> None:
    """Starts another process, which stays when this one has ended."""
    process = subprocess.Popen(["/bin/sleep", "60"], start_new_session=how == "apart")
    _tells(connection, process.pid)


def _looks(connection: socket.socket, _: str) -> None:
    """What a child finds around itself."""
    _tells(
        connection,
        {
            "environment": dict(os.environ),
            "descriptors": sorted(int(fd.name) for fd in Path("/proc/self/fd").iterdir())[:-1],
            "leads_to": [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in range(3)],
            "group": os.getpgid(0) == os.getsid(0) == os.getpid(),
            "cwd": str(Path.cwd()),
            "files": resource.getrlimit(resource.RLIMIT_FSIZE),
            "threads": len(list(Path("/proc/self/task").iterdir())),
        },
    )


def _tells(connection: socket.socket, what: Any) -> None:
    line = {"door": "out", "output": json.dumps(what)}
    connection.sendall(json.dumps(line).encode() + b"\n")
