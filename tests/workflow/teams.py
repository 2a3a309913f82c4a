"""Teams at work: a workflow file and a script in a project, and a hall in this process that runs them."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.room import records as room_records
from guildhall.runs.model import RunRequest
from guildhall.workflow import records
from guildhall.workflow.service import WorkflowPolicy
from guildhall.workflow.target import Start, Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.room.model import LogEntry
    from guildhall.room.service import Room
    from guildhall.runs.model import Run
    from guildhall.workflow.target import AgentState

QUICK = 0.01  # seconds: of a first pause that nobody wants to wait for

Answer = dict[str, Any]


def call(tool: str, /, **arguments: Any) -> Answer:
    return {"call": tool, "with": arguments}


def send(message: str) -> Answer:
    return call("channel_send", message=message)


def say(text: str = "done") -> Answer:
    return {"say": text}


@dataclass(kw_only=True)
class Team:
    """A workflow in a project, and what its hall shows of it."""

    home: Home
    project: Path
    events: list[Event] = field(default_factory=list["Event"])
    hall: Any = None
    client: Any = None
    debounce: float = QUICK
    environ: dict[str, str] = field(default_factory=dict[str, str])  # the hall's
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @staticmethod
    def anywhere(folder: Path) -> Team:
        """A team with a home and a project of its own in a folder."""
        (folder / "project").mkdir()
        return Team(home=Home(folder / "home"), project=folder / "project")

    def file(
        self, agents: str = "ann bob", *, name: str = "team.yaml", each: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """Writes the workflow: these agents, whose model is the script, with what `each` has besides.

        The kickoff is for the first of them.
        """
        names = agents.split()
        usual = {"system_prompt": "You are at work.", "model": "script:script.yaml"}
        parts: dict[str, Any] = {
            "agents": {one: {**usual, **(each or {}).get(one, {})} for one in names},
            "context": {"documentOwner": "none"},
            "kickoff": f"@{names[0]} begin",
        }
        (self.project / name).write_text(json.dumps({**parts, **fields}))

    def script(self, *, repeat: bool = False, price: Any = None, election: Any = None, **workers: list[Any]) -> None:
        """Writes the script: for each worker a list of runs, each a list of answers."""
        text: dict[str, Any] = {"workers": workers, "repeat": repeat, "price": price, "election": election or {}}
        (self.project / "script.yaml").write_text(json.dumps(text))

    def inside(self, work: Callable[[Team], Awaitable[Any]]) -> Any:
        """Does something with a hall open. Each time it is another one, on the same home."""

        async def go() -> Any:
            quick = WorkflowPolicy(first_pause_s=QUICK, debounce_s=self.debounce)
            self.hall = Hall(self.home, environ=self.environ, policy=RunPolicy(workflows=quick), is_persistent=True)
            self.client = EmbeddedHall(self.hall)
            try:
                async with asyncio.timeout(20):
                    return await work(self)
            finally:
                await self.client.close()

        return asyncio.run(go())

    def frame(self, *, interactive: bool = False) -> Frame:
        return Frame(cwd=self.project, root=self.project, interactive=interactive)

    async def run(self, name: str = "team.yaml", *, interactive: bool = False, **asked: Any) -> Run:
        """Runs the workflow until it stops; how its run stands then."""
        stream = self.client.workflows.run(*self.started(name, **asked), self.frame(interactive=interactive))
        return await self.followed(stream)

    def started(self, name: str = "team.yaml", **asked: Any) -> tuple[Start, RunRequest]:
        return Start(file=name, params={}), RunRequest(worker=name, input="", **asked)

    def begun(self, **how: Any) -> asyncio.Task[Run]:
        """The workflow, while it runs."""
        return asyncio.create_task(self.run(**how))

    def target(self, agent: str | None = None) -> Target:
        return Target(agent, "team", "main")

    async def resume(self, run: str, **more: Any) -> Run:
        return await self.followed(self.client.runs.resume(run, self.frame(), **more))

    async def followed(self, stream: Any) -> Run:
        async with aclosing(stream) as events:
            async for event in events:
                self.events.append(event)
                self.news.set()
        return self.hall.history.get(self.events[-1].run)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Returns once events have come after which the condition holds."""
        while not condition():
            await self.news.wait()
            self.news.clear()

    def heard(self, type: str) -> list[Event]:
        return [event for event in self.events if event.type == type]

    def runs_started(self, worker: str) -> list[Event]:
        return [event for event in self.heard("run_started") if event.data["worker"] == worker]

    @property
    def room(self) -> Room:
        return self.hall.main.rooms.find("team", "main")

    def agents(self, run: str) -> dict[str, AgentState]:
        found = self.hall.store.read(lambda connection: records.list_agents(connection, run))
        return {state.name: state for state in found}

    def runs(self, run: str, worker: str | None = None) -> list[Run]:
        return [one for one in self.hall.history.descendants(run) if worker in (None, one.worker)]

    def said(self) -> list[tuple[str, str]]:
        return [(message.sender, message.content) for message in self.room.list_messages()]

    def history(self) -> list[LogEntry]:
        """All that happened in the room, in order."""
        room = self.room.id
        return self.hall.store.read(lambda connection: room_records.log_entries(connection, room))

    def phases(self) -> list[str]:
        return [event.data["phase"] for event in self.events if event.type == "workflow"]
