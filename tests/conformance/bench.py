"""Where a runtime is looked at: a home and a project of its own, a worker, and a script in the place of its model.

The worker's file and the script are the same for every runtime; only `runtime:` differs.
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
from guildhall.hall.client.discovery import find_hall_pid, find_or_start, wait_for_end
from guildhall.hall.client.remote import RemoteHall
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runtimes.catalog import RUNTIMES
from tests.conformance.table import Table

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
PATIENCE = 100.0  # seconds for all that is done in one hall; a program of others may take long to start
PRICE = {"input": 3.0, "output": 15.0}
_MODELS = {"anthropic": "anthropic:claude-sonnet-5", "openai": "openai:gpt-5"}


def write(name: str, content: str = "x") -> dict[str, Any]:
    """An answer of the model, or a part of one: it has a file written into the sandbox `notes`."""
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": name, "content": content}}


class Bench:
    """A folder with a home and a project, for one runtime."""

    def __init__(self, folder: Path, runtime: str, environ: Mapping[str, str], *, own: Runtime | None = None) -> None:
        """`environ`: what the hall finds around it, such as where the runtime's program is.

        `own`: a runtime that executes in the place of the named one.
        """
        self.runtime = runtime
        self._own = own
        self.home = Home(folder / "home")
        self.project = folder / "project"
        self.environ = dict(environ)
        (self.project / "workers").mkdir(parents=True)
        (self.project / "notes").mkdir()

    @property
    def notes(self) -> dict[str, str]:
        """What was written."""
        return {path.name: path.read_text() for path in sorted((self.project / "notes").iterdir())}

    @property
    def script(self) -> Path:
        return self.project / "answers.yaml"

    @property
    def provider(self) -> str:
        """A provider whose models the runtime takes."""
        taken = RUNTIMES[self.runtime].providers if self.runtime in RUNTIMES else ()
        return next((name for name in taken if name in _MODELS), "anthropic")

    @property
    def real_model(self) -> str:
        """A model of that provider."""
        return _MODELS[self.provider]

    def put(self, *answers: Mapping[str, Any], **fields: Any) -> None:
        """The worker, and what its model answers."""
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
    async def hall(self, environ: Mapping[str, str] | None = None, *, children: bool = False) -> AsyncGenerator[Desk]:
        """A hall in this process, with these variables around it too.

        `children`: pydantic's runs have processes of their own, as those of programs always have.
        """
        async with self._opened({**self.environ, **(environ or {})}, children=children) as hall:
            yield Desk(EmbeddedHall(hall), self.project)

    @asynccontextmanager
    async def _opened(self, around: Mapping[str, str], *, children: bool) -> AsyncGenerator[Hall]:
        children = children and self._own is None and self.runtime == "pydantic"
        policy = RunPolicy() if self._own is None else RunPolicy(runtime_of=partial(_always, self._own))
        hall = Hall(self.home, environ=around, forks_runs=children, policy=policy)
        hall.runtimes.warm()
        try:
            async with asyncio.timeout(PATIENCE):
                yield hall
        finally:
            await hall.close()

    @asynccontextmanager
    async def table(
        self, environ: Mapping[str, str] | None = None, *, children: bool = False, held: bool = False
    ) -> AsyncGenerator[Table]:
        """A table in a hall of this process, for a conversation with the worker; `held`: the person stays there."""
        async with self._opened({**self.environ, **(environ or {})}, children=children) as hall:
            table = Table(hall, self.project, held=held)
            try:
                yield table
            finally:
                table.close()

    @asynccontextmanager
    async def hall_process(self) -> AsyncGenerator[Desk]:
        """A hall that is a process of its own, and is ended at the end if it is still there."""
        address = await asyncio.to_thread(find_or_start, self.home, self.environ)
        hall = RemoteHall(address)
        try:
            async with asyncio.timeout(PATIENCE):
                await hall.hall.hello(self.project)
                yield Desk(hall, self.project)
        finally:
            await hall.close()
            await asyncio.to_thread(self.kill_hall)

    def kill_hall(self) -> None:
        """As a power cut would end it; returns when it is gone."""
        if (pid := find_hall_pid(self.home)) is not None:
            os.kill(pid, 9)
            wait_for_end(pid)


def _always(own: Runtime, runtime: RuntimeName, frame: Frame) -> Runtime:
    return own


class Desk:
    """A hall, and a person at it."""

    def __init__(self, hall: HallClient, project: Path) -> None:
        self.hall = hall
        self.frame = Frame.here(project, {})

    def stream(self, text: str = TASK, **options: Any) -> AsyncIterator[Event]:
        """The events of a new run of the worker."""
        return self.hall.runs.run(RunRequest(worker=WORKER, input=text, **options), self.frame)

    async def run(self, text: str = TASK, **options: Any) -> list[Event]:
        """A new run of the worker, for as long as it goes on by itself."""
        return await heard(self.stream(text, **options))

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await heard(self.hall.runs.resume(run, self.frame, **options))

    async def answer(self, choice: str, note: str = "") -> None:
        """The same answer to all that is asked."""
        for ask in await self.hall.asks.list():
            await self.hall.asks.answer(ask.id, Answer(choice=choice, note=note or None))

    async def state(self, run: str) -> Run:
        return (await self.hall.runs.get(run)).run

    async def record(self, run: str, *kinds: str) -> list[Entry[Payload]]:
        """What is on record of a run: all, or the entries of these kinds."""
        entries = await self.hall.runs.journal(run)
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    async def is_replayed(self, run: str) -> bool:
        """Whether the run, gone through once more without the model and without an effect, is the same."""
        return (await self.hall.runs.replay(run, self.frame)).matches


async def heard(events: Any, until: str | None = None) -> list[Event]:
    """The events of a stream; `until` one of that type, where the stream is left."""
    found: list[Event] = []
    async with aclosing(events) as stream:
        async for event in stream:
            found.append(event)
            if event.type == until:
                break
    return found
