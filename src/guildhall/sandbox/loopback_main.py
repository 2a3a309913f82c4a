"""Loopback opener: a program that opens a loopback port inside a jail and then executes another program.

Usage: `python -I -S loopback_main.py FD PORT PROGRAM ...`.
The opener runs in a private network namespace. It listens on loopback, sends the listening socket through FD, and
replaces itself by PROGRAM.
Does not accept connections (see `sandbox.loopback`). Does not import Guildhall, so that it starts fast.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

_BACKLOG = 128  # connections that were not accepted yet


def main() -> NoReturn:
    fd, port, *argv = sys.argv[1:]
    try:
        # asyncio sets TCP_NODELAY only on sockets that name their protocol.
        with (
            socket.socket(fileno=int(fd)) as outside,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as door,
        ):
            door.bind(("127.0.0.1", int(port)))
            door.listen(_BACKLOG)
            socket.send_fds(outside, [b"."], [door.fileno()])
        os.execv(argv[0], argv)
    except OSError as error:
        print(f"cannot start the program: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(126)


if __name__ == "__main__":
    main()
