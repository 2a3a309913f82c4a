"""Member library: turns a Python program into a guild member that serves tools and accepts jobs.

    from guildhall import Member

    member = Member(__file__)

    @member.tool
    def add(a: int, b: int) -> int:
        "Adds two numbers."
        return a + b

    if __name__ == "__main__":
        member.main()

The program listens on the port that it is given (`server.py --port N`). It accepts requests with the secret that it was
started with. A member with the capability `worker` opens a small hall: its state is in `.guild/`, its jobs and its
memory are beside that folder.
Does not start or supervise members: `guildhall.members` does.
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

from guildhall.core.errors import GuildError, HallInUse, ToolUnavailable
from guildhall.hall.server.process import Log, log_to_stderr
from guildhall.members.folders import read_manifest
from guildhall.members.model import SECRET_VARIABLE, WORKER
from guildhall.rpc.endpoint import PATH, Endpoint, Offer
from guildhall.rpc.listener import Listener
from guildhall.tools.definition import tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from guildhall.members.manifest import Manifest
    from guildhall.tools.model import Handler, Tool

_RUNNING = "It is running already. If `guild member show` says that the hall runs it, `guild hall stop` ends it."
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
        secret = os.environ.pop(SECRET_VARIABLE, "")  # what the member runs does not have it
        log = log_to_stderr({**os.environ, SECRET_VARIABLE: secret})
        try:
            asyncio.run(self._serve(port, secret, dict(os.environ), log))
        except GuildError as error:
            sys.exit(f"{self.root.name}: {error}")

    async def _serve(self, port: int, secret: str, environ: Mapping[str, str], log: Log) -> None:
        """Until somebody ends the process."""
        leave = asyncio.Event()
        shown = "" if secret else secrets.token_urlsafe(32)  # for a person who starts it by hand
        async with self.serving(port, secret or shown, environ, log=log) as url:
            if shown:
                sys.stderr.write(f"{SECRET_VARIABLE} is not set. Until it ends, this is its secret: {shown}\n")
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, leave.set)
            _log.info("%s serves at %s", self.manifest.name, url)
            await leave.wait()
        _log.info("%s has left", self.manifest.name)

    @asynccontextmanager
    async def serving(
        self, port: int, secret: str, environ: Mapping[str, str], *, log: Log | None = None
    ) -> AsyncGenerator[str]:
        """Serves for the length of a block; gives the address."""
        name, tools = self.manifest.name, tuple(self._tools.values())
        offer = Offer(name=name, version=self.manifest.version or "0", tools=tools)
        if WORKER in self.manifest.capabilities:
            serving = self._with_hall(offer, port, secret, environ, log or Log(environ))
        else:
            serving = _alone(offer, port, secret)
        async with serving as url:
            yield url

    @asynccontextmanager
    async def _with_hall(
        self, offer: Offer, port: int, secret: str, environ: Mapping[str, str], log: Log
    ) -> AsyncGenerator[str]:
        """A member that takes work is a small hall."""
        from guildhall.hall.member_hall import MemberHallProcess, open_member_hall

        try:
            member = open_member_hall(self.root, self.manifest.name, environ)
        except HallInUse as error:
            raise HallInUse(error.message, where=error.where, hint=_RUNNING) from None
        try:
            process = MemberHallProcess(member, log, port=port)
        except BaseException:
            member.hall.release()
            raise
        url = process.offer(offer, secret)
        ready = asyncio.Event()
        serving = asyncio.create_task(process.serve(ready.set))
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                yield url
        finally:
            waiting.cancel()
            process.leave()
            await serving


@asynccontextmanager
async def _alone(offer: Offer, port: int, secret: str) -> AsyncGenerator[str]:
    """A member with tools alone needs no hall."""
    listener = Listener(port=port)
    await listener.listen(Endpoint.of_one(offer, secret))
    try:
        yield f"http://127.0.0.1:{listener.port}{PATH}"
    finally:
        await listener.close(_FAREWELL)
