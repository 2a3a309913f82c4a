"""The test bench of a runtime: a home, a project, a worker and a script that replaces its model.

The worker file and the script are the same for every runtime. Only `runtime:` differs.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.client.discovery import find_hall_pid, find_or_start, wait_for_exit
from guildhall.hall.client.remote import RemoteHall
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runtimes.catalog import RUNTIMES
from tests.conformance.conversation import Conversation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.hall.client.interface import HallClient
    from guildhall.runs.model import Run
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runtimes.model import Runtime
    from guildhall.workers.definition import RuntimeName

WORKER = "bob"
PROMPT = "You are Bob."
TASK = "Go."
TIMEOUT_S = 100.0  # for all work in one hall; external programs can start slowly
PRICE = {"input": 3.0, "output": 15.0}
_MODELS = {"anthropic": "anthropic:claude-sonnet-5", "openai": "openai:gpt-5"}


def write(name: str, content: str = "x") -> dict[str, Any]:
    """Return a scripted call that writes a file to the sandbox `notes`."""
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": name, "content": content}}


class Bench:
    """A folder with a home and a project, for one runtime."""

    def __init__(self, folder: Path, runtime: str, environ: Mapping[str, str], *, own: Runtime | None = None) -> None:
        """`environ` is the environment of the hall. `own` replaces the named runtime."""
        self.runtime = runtime
        self._own = own
        self.home = Home(folder / "home")
        self.project = folder / "project"
        self.environ = dict(environ)
        (self.project / "workers").mkdir(parents=True)
        (self.project / "notes").mkdir()

    @property
    def notes(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((self.project / "notes").iterdir())}

    @property
    def script(self) -> Path:
        return self.project / "answers.yaml"

    @property
    def provider(self) -> str:
        """Return a provider whose models the runtime accepts."""
        taken = RUNTIMES[self.runtime].providers if self.runtime in RUNTIMES else ()
        return next((name for name in taken if name in _MODELS), "anthropic")

    @property
    def real_model(self) -> str:
        """Return a model of the provider."""
        return _MODELS[self.provider]

    def write_worker(self, *answers: Mapping[str, Any], **fields: Any) -> None:
        """Write the worker file, and the answers of its model."""
        worker = {
            "runtime": self.runtime,
            "instructions": PROMPT,
            "model": f"script:{self.script.name}",
            "base": False,
            "sandboxes": {"notes": {"path": "./notes", "mode": "rw"}},
            **fields,
        }
        (self.project / "workers" / f"{WORKER}.yaml").write_text(json.dumps(worker))
        self.script.write_text(json.dumps({"workers": {WORKER: [list(answers)]}, "price": PRICE}))

    @asynccontextmanager
    async def hall(
        self, environ: Mapping[str, str] | None = None, *, children: bool = False
    ) -> AsyncGenerator[HallSession]:
        """Open a hall in this process, with additional environment variables.

        With `children`, runs of pydantic-ai have their own processes, like runs of programs.
        """
        async with self._open_hall({**self.environ, **(environ or {})}, children=children) as hall:
            yield HallSession(EmbeddedHall(hall), self.project)

    @asynccontextmanager
    async def _open_hall(self, around: Mapping[str, str], *, children: bool) -> AsyncGenerator[Hall]:
        children = children and self._own is None and self.runtime == "pydantic"
        policy = RunPolicy() if self._own is None else RunPolicy(runtime_of=partial(_return_own, self._own))
        hall = Hall(self.home, environ=around, forks_runs=children, policy=policy)
        hall.runtimes.start_fork_server()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield hall
        finally:
            await hall.close()

    @asynccontextmanager
    async def conversation(
        self, environ: Mapping[str, str] | None = None, *, children: bool = False, held: bool = False
    ) -> AsyncGenerator[Conversation]:
        """Open a hall in this process for a conversation with the worker. With `held`, the user stays attached."""
        async with self._open_hall({**self.environ, **(environ or {})}, children=children) as hall:
            conversation = Conversation(hall, self.project, held=held)
            try:
                yield conversation
            finally:
                conversation.close()

    @asynccontextmanager
    async def hall_process(self) -> AsyncGenerator[HallSession]:
        """Start a hall process, and kill it at the end if it still runs."""
        address = await asyncio.to_thread(find_or_start, self.home, self.environ)
        hall = RemoteHall(address)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await hall.hall.hello(self.project)
                yield HallSession(hall, self.project)
        finally:
            await hall.close()
            await asyncio.to_thread(self.kill_hall)

    def kill_hall(self) -> None:
        """Kill the hall process, and wait for its end."""
        if (pid := find_hall_pid(self.home)) is not None:
            os.kill(pid, 9)
            wait_for_exit(pid)


def _return_own(own: Runtime, runtime: RuntimeName, frame: Frame) -> Runtime:
    return own


class HallSession:
    """A client of a hall that runs the worker and answers its asks."""

    def __init__(self, hall: HallClient, project: Path) -> None:
        self.hall = hall
        self.frame = Frame.here(project, {})

    def stream(self, text: str = TASK, **options: Any) -> AsyncIterator[Event]:
        """Start a run of the worker, and return its events."""
        return self.hall.runs.run(RunRequest(worker=WORKER, input=text, **options), self.frame)

    async def run(self, text: str = TASK, **options: Any) -> list[Event]:
        """Run the worker until it ends or waits, and return the events."""
        return await collect_events(self.stream(text, **options))

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await collect_events(self.hall.runs.resume(run, self.frame, **options))

    async def answer(self, choice: str, note: str = "") -> None:
        """Give the same answer to all open asks."""
        for ask in await self.hall.asks.list():
            await self.hall.asks.answer(ask.id, Answer(choice=choice, note=note or None))

    async def state(self, run: str) -> Run:
        return (await self.hall.runs.get(run)).run

    async def entries(self, run: str, *kinds: str) -> list[Entry[Payload]]:
        """Return the journal entries of a run, or only the entries of the given kinds."""
        entries = await self.hall.runs.journal(run)
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    async def is_replayed(self, run: str) -> bool:
        """Return True if a replay of the run matches its journal."""
        return (await self.hall.runs.replay(run, self.frame)).matches


async def collect_events(events: Any, until: str | None = None) -> list[Event]:
    """Return the events of a stream, up to the first event of the type `until`."""
    found: list[Event] = []
    async with aclosing(events) as stream:
        async for event in stream:
            found.append(event)
            if event.type == until:
                break
    return found
