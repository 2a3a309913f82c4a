"""A fork server whose children execute the command in their first message, for the tests of child processes."""

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
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.runtimes.forked.fork_server import serve

if TYPE_CHECKING:
    from collections.abc import Callable

ENDLESS = b"x" * 1024**2


def main() -> None:
    serve(socket.socket(fileno=int(sys.argv[1])), live)


def live(connection: socket.socket) -> NoReturn:
    given = json.loads(connection.makefile("rb").readline())
    word, _, detail = given["first_message"].partition(" ")
    {name: value for name, value in globals().items() if name.startswith("_")}[f"_{word}"](connection, detail)
    os._exit(0)


def _says(connection: socket.socket, text: str) -> None:
    """Send these bytes, and wait to be ended."""
    connection.sendall(text.encode("latin-1"))
    time.sleep(60)


def _asks(connection: socket.socket, text: str) -> None:
    """Send these lines, each after the answer to the previous line."""
    answers = connection.makefile("rb")
    for line in text.splitlines(keepends=True):
        connection.sendall(line.encode())
        answers.readline()


def _stays(connection: socket.socket, _: str) -> None:
    """Start another process, and wait with it."""
    _fork_sleeper(new_session=False)
    time.sleep(60)


def _fork_sleeper(*, new_session: bool) -> int:
    pid = os.fork()
    if pid == 0:
        if new_session:
            os.setsid()
        time.sleep(60)
        os._exit(0)
    return pid


def _endless(connection: socket.socket, _: str) -> None:
    while True:
        connection.sendall(ENDLESS)


def _hangs(connection: socket.socket, _: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def _closes(connection: socket.socket, _: str) -> None:
    """Close the socket, and keep running."""
    connection.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


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


def _leaves(connection: socket.socket, session: str) -> None:
    """Start another process that outlives this one."""
    _send_output(connection, _fork_sleeper(new_session=session == "apart"))


def _reaches(connection: socket.socket, others: str) -> None:
    """Try to affect a file, a folder and a process of the machine."""
    file, folder, pid = json.loads(others)
    attempts: dict[str, Callable[[], Any]] = {
        "read a file": Path(file).read_text,
        "list a folder": lambda: list(Path(folder).iterdir()),
        "write a file": (Path(folder) / "new").touch,
        "remove a file": Path(file).unlink,
        "look at the hall": Path(f"/proc/{pid}/environ").read_bytes,
        "kill the hall": lambda: os.kill(int(pid), signal.SIGKILL),
        "execute": lambda: subprocess.run(["/bin/true"], check=True),
        "go to the network": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        "make a local socket": lambda: socket.socket(socket.AF_UNIX),
    }
    done: dict[str, str] = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except PermissionError:
            continue
        except Exception as error:  # noqa: BLE001 - any other error counts as done
            done[name] = repr(error)
        else:
            done[name] = "done"
    _send_output(connection, done)


def _looks(connection: socket.socket, _: str) -> None:
    """Report the environment of a child."""
    _send_output(
        connection,
        {
            "environment": dict(os.environ),
            "descriptors": [fd for fd in range(1000) if _is_open(fd)],
            "lead_nowhere": [os.fstat(fd).st_rdev == os.makedev(1, 3) for fd in range(3)],
            "group": os.getpgid(0) == os.getsid(0) == os.getpid(),
            "cwd": str(Path.cwd()),
            "files": resource.getrlimit(resource.RLIMIT_FSIZE),
        },
    )


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _send_output(connection: socket.socket, output: Any) -> None:
    line = {"door": "out", "output": json.dumps(output)}
    connection.sendall(json.dumps(line).encode() + b"\n")
