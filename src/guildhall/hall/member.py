"""A guild member in a few lines: what the program of a plug-in is made of.

    from guildhall import Member

    member = Member(__file__)

    @member.tool
    def add(a: int, b: int) -> int:
        "Adds two numbers."
        return a + b

    if __name__ == "__main__":
        member.main()

It serves at the port that it is given, to whoever knows the secret that it was started with. With the capability
`worker` it is a small hall: its state in `.guild/`, its jobs and its memory beside that in its own folder.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.hall.http import Listener
from guildhall.members.endpoint import PATH, Endpoint, Offer
from guildhall.members.manifest import read_manifest
from guildhall.members.model import SECRET_VARIABLE, WORKER
from guildhall.tools.define import tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from guildhall.hall.small import SmallHall
    from guildhall.members.manifest import Manifest
    from guildhall.tools.model import Handler, Tool

_FAREWELL = 2.0  # seconds that clients get to read their answers
_log = logging.getLogger("guildhall.members")


class Member:
    """A member, by the folder that its program lies in."""

    def __init__(self, file: str | Path) -> None:
        """`file`: the program, beside which its manifest lies: `Member(__file__)`."""
        self.root = Path(file).resolve().parent
        self._tools: dict[str, Tool] = {}

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.root)

    @overload
    def tool(self, function: Handler, /) -> Handler: ...

    @overload
    def tool(self, /, *, name: str | None = None) -> Callable[[Handler], Handler]: ...

    def tool(self, function: Handler | None = None, /, *, name: str | None = None) -> Any:
        """Offers a typed function as a tool: `@member.tool`. It stays the function that it is."""

        def offer(function: Handler) -> Handler:
            made = tool(name=name)(function)
            if made.name in self._tools:
                raise ToolUnavailable(f"the member has two tools named {made.name!r}")
            self._tools[made.name] = made
            return function

        return offer if function is None else offer(function)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The program: `server.py --port N`. Leaves on SIGTERM; what runs then goes on at the next start."""
        parser = argparse.ArgumentParser(prog=self.root.name)
        parser.add_argument("--port", type=int, default=0, help="where to serve on this machine; 0: any free port")
        port = parser.parse_args(arguments).port
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("guildhall").setLevel(logging.INFO)
        secret = os.environ.pop(SECRET_VARIABLE, "")  # what the member runs does not have it
        try:
            asyncio.run(self._serve(port, secret or _made_up(), dict(os.environ)))
        except GuildError as error:
            sys.exit(f"{self.root.name}: {error}")

    async def _serve(self, port: int, secret: str, environ: Mapping[str, str]) -> None:
        """Until somebody ends the process."""
        leave = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave.set)
        async with self.serving(port, secret, environ) as url:
            _log.info("%s serves at %s", self.manifest.name, url)
            await leave.wait()
        _log.info("%s has left", self.manifest.name)

    @asynccontextmanager
    async def serving(self, port: int, secret: str, environ: Mapping[str, str]) -> AsyncGenerator[str]:
        """Serves for the length of a block; gives the address."""
        hall = self._hall(environ)
        try:
            listener = Listener(port=port)
        except GuildError:
            if hall is not None:
                hall.release()
            raise
        going_on = asyncio.ensure_future(hall.go_on()) if hall is not None else None
        try:
            offer = Offer(
                name=self.manifest.name,
                version=self.manifest.version or "0",
                tools=tuple(self._tools.values()),
                worker=hall.operate if hall is not None else None,
            )
            await listener.listen(Endpoint.of_one(offer, secret))
            yield f"http://127.0.0.1:{listener.port}{PATH}"
        finally:
            listener.refuse()
            if hall is not None and going_on is not None:
                going_on.cancel()
                await asyncio.wait([going_on])
                await hall.drain()
            await listener.close(_FAREWELL)
            if hall is not None:
                await hall.close()

    def _hall(self, environ: Mapping[str, str]) -> SmallHall | None:
        """The hall of a member that takes work; a member with tools alone needs none."""
        if WORKER not in self.manifest.capabilities:
            return None
        from guildhall.hall.small import SmallHall

        return SmallHall(self.root, self.manifest.name, environ)


def _made_up() -> str:
    """A secret for a member that a person starts by hand, and shows them."""
    secret = secrets.token_urlsafe(32)
    sys.stderr.write(f"{SECRET_VARIABLE} is not set. Until it ends, this is its secret: {secret}\n")
    return secret
