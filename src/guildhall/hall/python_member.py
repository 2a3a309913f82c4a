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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from guildhall.core.errors import GuildError, HallInUse, InvalidFile, ToolUnavailable
from guildhall.core.paths import HOME_VARIABLE, MEMBER_STATE, Home
from guildhall.hall.composition.environment import MemberFolder
from guildhall.hall.composition.hall import Hall
from guildhall.hall.server.job_rpc_methods import HallJobs, WorkerMethods
from guildhall.hall.server.process import HallProcess, RedactingFormatter, configure_logging
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.members.model import MANIFEST, SECRET_VARIABLE, WORKER_CAPABILITY
from guildhall.members.registry import read_manifest
from guildhall.rpc.listener import Listener
from guildhall.rpc.mcp_http_server import PATH, Endpoint, Offer
from guildhall.tools.definition import tool
from guildhall.workers.loader import WORKER_SUFFIXES
from guildhall.workers.model import WORKERS

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.members.manifest import Manifest
    from guildhall.tools.model import Handler, Tool

_RUNNING_HINT = "The member is already running. If the hall started it, stop it: guild member stop {name}"
_CLOSE_TIMEOUT_S = 2.0  # for clients that read their responses
_log = logging.getLogger("guildhall.members")


class Member:
    """A member, whose folder is that of its program."""

    def __init__(self, file: str | Path) -> None:
        """`file`: the program of the member, in the folder of its manifest: `Member(__file__)`."""
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
        """Offer a typed function as a tool: `@member.tool`. Return the function unchanged."""

        def add(function: Handler) -> Handler:
            added = tool(name=name)(function)
            if added.name in self._tools:
                hint = "Pass another name: @member.tool(name=...)"
                raise ToolUnavailable(f"invalid tools: the member has two tools named {added.name!r}", hint=hint)
            self._tools[added.name] = added
            return function

        return add if function is None else add(function)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the program `server.py --port N` until SIGTERM. The next start resumes interrupted runs."""
        parser = argparse.ArgumentParser(prog=self.root.name)
        parser.add_argument("--port", type=int, default=0, help="port on this machine (default: a free port)")
        port = parser.parse_args(arguments).port
        secret = os.environ.pop(SECRET_VARIABLE, "")  # programs of the member do not inherit it
        formatter = configure_logging({**os.environ, SECRET_VARIABLE: secret})
        try:
            asyncio.run(self._serve(port, secret, dict(os.environ), formatter))
        except GuildError as error:
            sys.exit(f"{self.root.name}: {error}")

    async def _serve(self, port: int, secret: str, environ: Mapping[str, str], formatter: RedactingFormatter) -> None:
        stopping = asyncio.Event()
        generated = "" if secret else secrets.token_urlsafe(32)  # for a user who starts the program by hand
        async with self.open_server(port, secret or generated, environ, formatter=formatter) as url:
            if generated:
                sys.stderr.write(f"{SECRET_VARIABLE} is not set. Using a secret for this process: {generated}\n")
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
            _log.info("%s is listening on %s", self.manifest.name, url)
            await stopping.wait()
        _log.info("%s stopped", self.manifest.name)

    @asynccontextmanager
    async def open_server(
        self, port: int, secret: str, environ: Mapping[str, str], *, formatter: RedactingFormatter | None = None
    ) -> AsyncGenerator[str]:
        """Serve within the block. Yield the address."""
        name, tools = self.manifest.name, tuple(self._tools.values())
        offer = Offer(name=name, version=self.manifest.version or "0", tools=tools)
        if WORKER_CAPABILITY in self.manifest.capabilities:
            serving = self._serve_with_hall(offer, port, secret, environ, formatter or RedactingFormatter(environ))
        else:
            serving = _serve_tools(offer, port, secret)
        async with serving as url:
            yield url

    @asynccontextmanager
    async def _serve_with_hall(
        self, offer: Offer, port: int, secret: str, environ: Mapping[str, str], formatter: RedactingFormatter
    ) -> AsyncGenerator[str]:
        try:
            hall, worker = open_member_hall(self.root, self.manifest.name, environ)
        except HallInUse as error:
            hint = _RUNNING_HINT.format(name=self.manifest.name)
            raise HallInUse(error.message, where=error.where, hint=hint) from None
        try:
            process = MemberHallProcess(hall, self.root, worker, formatter, port=port)
        except BaseException:
            hall.release()
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
            process.stop()
            await serving


@asynccontextmanager
async def _serve_tools(offer: Offer, port: int, secret: str) -> AsyncGenerator[str]:
    """Serve the tools without a hall."""
    listener = Listener(port=port)
    await listener.listen(Endpoint.for_offer(offer, secret))
    try:
        yield f"http://127.0.0.1:{listener.port}{PATH}"
    finally:
        await listener.close(_CLOSE_TIMEOUT_S)


def open_member_hall(root: Path, name: str, environ: Mapping[str, str]) -> tuple[Hall, str]:
    """Open the hall of the member in a folder. Return it with the name of the member's worker.

    Raise if the file of the worker is invalid. The settings are those of the user who started the member, unless the
    member has its own.
    """
    worker = find_worker_name(root, name)
    user = environ.get(HOME_VARIABLE)
    folder = MemberFolder(root, user_home=Home(Path(user)) if user else None)
    hall = Hall(Home.at(root / MEMBER_STATE), environ=environ, is_persistent=True, member=folder)
    try:
        hall.workers.find(worker, hall.environment.frame_at(root, root))
    except BaseException:
        hall.release()
        raise
    return hall, worker


class MemberHallProcess(HallProcess):
    """The process of a member: a hall that never exits when idle, and serves the member's own address."""

    def __init__(self, hall: Hall, root: Path, worker: str, formatter: RedactingFormatter, *, port: int) -> None:
        super().__init__(hall, formatter, idle_timeout_s=None, port=port)

        def frame() -> Frame:
            return replace(hall.environment.frame_at(root, root), caller="member")

        self._operations = WorkerMethods(HallJobs(EmbeddedHall(hall), worker, frame))

    def offer(self, offer: Offer, secret: str) -> str:
        """Serve the tools of an offer and the worker. Return the address."""
        endpoint = Endpoint.for_offer(replace(offer, worker=self._operate), secret)
        for path in (PATH, f"{PATH}/"):
            self.api.add_route(path, endpoint)
        return f"{self.url}{PATH}"

    async def _operate(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Execute `worker/*` after the runs of an earlier process are resumed."""
        await self.wait_recovered()
        if self._hall.main.peek_runs() is None:  # importing takes a second and must not block other requests
            await asyncio.to_thread(import_module, "guildhall.runs.execution.runs")
        return await self._operations(method, params)


def find_worker_name(root: Path, name: str) -> str:
    """Return the name of the member's worker: the name of the member, else that of the only worker in its folder."""
    files = [path for path in sorted((root / WORKERS).glob("*")) if path.suffix in WORKER_SUFFIXES and path.is_file()]
    names = [path.stem for path in files]
    if name in names:
        return name
    if len(names) == 1:
        return names[0]
    where = str(root / MANIFEST)
    if not names:
        hint = f"Create {WORKERS}/{name}.yaml, or remove `worker` from the capabilities."
        message = f"the capability `worker` requires a worker in the folder {WORKERS}/"
        raise InvalidFile(message, where=where, hint=hint)
    hint = f"Give one of them the name of the member: {WORKERS}/{name}.yaml."
    message = f"cannot choose a worker: the member has several workers: {', '.join(names)}"
    raise InvalidFile(message, where=where, hint=hint)
