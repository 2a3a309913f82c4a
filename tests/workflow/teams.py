"""Run a workflow of scripted agents in a project, with a hall in this process."""

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
from guildhall.workflow.instance import Start
from guildhall.workflow.service import WorkflowPolicy
from guildhall.workflow.target import Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.room.model import LogEntry
    from guildhall.room.service import Room
    from guildhall.runs.model import Run
    from guildhall.workflow.instance import AgentState

QUICK_S = 0.01  # the first pause of a retry, so that tests do not wait

Answer = dict[str, Any]


def call(tool: str, /, **arguments: Any) -> Answer:
    return {"call": tool, "with": arguments}


def send(message: str) -> Answer:
    return call("channel_send", message=message)


def say(text: str) -> Answer:
    return {"say": text}


def stop() -> Answer:
    """End the turn without a reply."""
    return call("no_action")


@dataclass(kw_only=True)
class Team:
    """A workflow in a project, and the events of its hall."""

    home: Home
    project: Path
    events: list[Event] = field(default_factory=list["Event"])
    hall: Any = None
    client: Any = None
    debounce: float = QUICK_S
    environ: dict[str, str] = field(default_factory=dict[str, str])  # of the hall
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @staticmethod
    def create_in(folder: Path) -> Team:
        """Return a team with its own home and project in a folder."""
        (folder / "project").mkdir()
        return Team(home=Home(folder / "home"), project=folder / "project")

    def write_workflow(
        self, agents: str = "ann bob", *, name: str = "team.yaml", each: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """Write a workflow file with these agents, whose model is the script.

        `each` has more fields of single agents. The kickoff mentions the first agent.
        """
        names = agents.split()
        usual = {"system_prompt": "You are at work.", "model": "script:script.yaml"}
        parts: dict[str, Any] = {
            "agents": {one: {**usual, **(each or {}).get(one, {})} for one in names},
            "context": {"documentOwner": "none"},
            "kickoff": f"@{names[0]} begin",
        }
        (self.project / name).write_text(json.dumps({**parts, **fields}))

    def write_script(
        self, *, repeat: bool = False, price: Any = None, election: Any = None, **workers: list[Any]
    ) -> None:
        """Write the script: for each worker a list of runs, each a list of answers."""
        text: dict[str, Any] = {"workers": workers, "repeat": repeat, "price": price, "election": election or {}}
        (self.project / "script.yaml").write_text(json.dumps(text))

    def run_in_hall(self, work: Callable[[Team], Awaitable[Any]]) -> Any:
        """Open a new hall on the home, and run `work` in it."""

        async def run_work() -> Any:
            policy = WorkflowPolicy(first_pause_s=QUICK_S, debounce_s=self.debounce)
            self.hall = Hall(self.home, environ=self.environ, policy=RunPolicy(workflows=policy), is_persistent=True)
            self.client = EmbeddedHall(self.hall)
            try:
                async with asyncio.timeout(20):
                    return await work(self)
            finally:
                await self.client.close()

        return asyncio.run(run_work())

    def frame(self, *, interactive: bool = False) -> Frame:
        return Frame(cwd=self.project, root=self.project, interactive=interactive)

    async def run(self, name: str = "team.yaml", *, interactive: bool = False, **options: Any) -> Run:
        """Run the workflow until it stops, and return its run."""
        stream = self.client.workflows.run(*self.start_arguments(name, **options), self.frame(interactive=interactive))
        return await self.follow(stream)

    def start_arguments(self, name: str = "team.yaml", **options: Any) -> tuple[Start, RunRequest]:
        return Start(file=name, params={}), RunRequest(worker=name, input="", **options)

    def start_task(self, **options: Any) -> asyncio.Task[Run]:
        """Start the workflow, and return its task."""
        return asyncio.create_task(self.run(**options))

    def target(self, agent: str | None = None) -> Target:
        return Target(agent, "team", "main")

    async def resume(self, run: str, **more: Any) -> Run:
        return await self.follow(self.client.runs.resume(run, self.frame(), **more))

    async def follow(self, stream: Any) -> Run:
        async with aclosing(stream) as events:
            async for event in events:
                self.events.append(event)
                self.news.set()
        return self.hall.history.get(self.events[-1].run)

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait for events until the condition holds."""
        while not condition():
            await self.news.wait()
            self.news.clear()

    def events_of(self, type: str) -> list[Event]:
        return [event for event in self.events if event.type == type]

    def runs_started(self, worker: str) -> list[Event]:
        return [event for event in self.events_of("run_started") if event.data["worker"] == worker]

    @property
    def room(self) -> Room:
        return self.hall.main.rooms.find(str(self.project), "team", "main")

    def agents(self, run: str) -> dict[str, AgentState]:
        found = self.hall.store.read(lambda connection: records.list_agents(connection, run))
        return {state.name: state for state in found}

    def runs(self, run: str, worker: str | None = None) -> list[Run]:
        return [one for one in self.hall.history.descendants(run) if worker in (None, one.worker)]

    def messages(self) -> list[tuple[str, str]]:
        return [(message.sender, message.content) for message in self.room.list_messages()]

    def room_log(self) -> list[LogEntry]:
        """Return all operations of the room, in order."""
        room = self.room.id
        return self.hall.store.read(lambda connection: room_records.log_entries(connection, room))

    def phases(self) -> list[str]:
        return [event.data["phase"] for event in self.events if event.type == "workflow"]
