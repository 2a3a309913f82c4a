"""One question at a time on a plain socket, and how questions and answers look as bytes.

As much of HTTP/1.1 as a client of the hall needs. Commands that only look use nothing else: an event loop takes longer
to import than the hall takes to answer.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.errors import HallGone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from guildhall.hall.start import Address

T = TypeVar("T")

_PATIENCE = 60.0  # seconds for an answer


class Postcard:
    """Asks one hall, and waits for each answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer. Awaited for the sake of form: it never lets anybody else run."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._address.port), _PATIENCE)
            self._socket.sendall(request(self._address, path, body))
            with self._socket.makefile("rb") as answer:
                status, headers = head(_until_empty(answer))
                return status, json.loads(answer.read(int(headers["content-length"])))
        except (OSError, EOFError, ValueError, LookupError):
            raise gone(self._address) from None

    async def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _until_empty(answer: Any) -> bytes:
    lines = b""
    while not lines.endswith(b"\r\n\r\n"):
        line = answer.readline(65536)
        if not line:
            raise EOFError
        lines += line
    return lines


def request(address: Address, path: str, body: Any) -> bytes:
    """A question as bytes."""
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{address.port}",
        f"Authorization: Bearer {address.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def head(data: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    first, *lines = data.decode("latin-1").splitlines()
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def gone(address: Address) -> HallGone:
    return HallGone(
        f"the hall (process {address.pid}) is gone",
        hint="What ran there is on record, and goes on with the next command that needs a hall: guild ls",
    )


def run_without_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but a Postcard, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("this work has to wait, and there is no event loop")
