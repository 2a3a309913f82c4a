"""A registered repository with a scripted worker, and a hall that holds its meetings."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.runs.record.entries import ModelAsked
from tests.projects.conftest import Repository, repository

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.service import Meetings

Answer = dict[str, Any]
SUMMARISER = "meeting-summariser"


def say(text: str, **more: Any) -> Answer:
    return {"say": text, **more}


def call(tool: str, /, **arguments: Any) -> Answer:
    return {"call": tool, "with": arguments}


class ShiftedClock(SystemClock):
    """The system clock plus a number of days."""

    def __init__(self) -> None:
        self.days = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(days=self.days)


@dataclass(kw_only=True)
class MeetingProject:
    """A registered project with a scripted worker, and a hall in this process."""

    home: Home
    repo: Repository
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    hall: Any = None
    client: Any = None

    @staticmethod
    def at(home: Home, folder: Path) -> MeetingProject:
        (folder / "workers").mkdir(parents=True, exist_ok=True)
        made = MeetingProject(home=home, repo=Repository(folder))
        made.worker()
        made.script([say("hello")])
        written = {name: (folder / name).read_text() for name in ("workers/architect.yaml", "answers.yaml")}
        repository(folder, {**written, ".lore/plan.md": "The plan\n", "src/cart.py": "total = 1\n"})
        home.path.mkdir(parents=True, exist_ok=True)
        made.register()
        return made

    def register(self, **more: Any) -> None:
        shop = {"path": str(self.repo.path), "branch": "main", **more}
        self.home.settings.write_text(json.dumps({"projects": {"shop": shop}}))

    def worker(self, name: str = "architect", **fields: Any) -> None:
        usual = {"name": name, "instructions": "You talk about design.", "model": "script:answers.yaml"}
        (self.repo.path / "workers").mkdir(exist_ok=True)
        (self.repo.path / "workers" / f"{name}.yaml").write_text(json.dumps({**usual, **fields}))

    def script(
        self,
        *runs: Sequence[Answer],
        summary: str | None = "They talked.",
        name: str = "architect",
        price: float | None = None,
    ) -> None:
        """`price`: USD for a million tokens of input or output."""
        workers: dict[str, Any] = {name: [list(run) for run in runs]}
        if summary is not None:
            workers[SUMMARISER] = [[say(summary)] for _ in range(3)]
        prices = {} if price is None else {"price": {"input": price, "output": price}}
        (self.repo.path / "answers.yaml").write_text(json.dumps({"workers": workers, **prices}))

    @property
    def frame(self) -> Frame:
        return Frame(cwd=self.repo.path, root=self.repo.path)

    @property
    def meetings(self) -> Meetings:
        return self.hall.meetings

    def run_in_hall(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine with a new hall of the home."""

        async def go() -> Any:
            self.hall = Hall(self.home, environ={}, clock=self.clock, is_persistent=True)
            self.client = EmbeddedHall(self.hall)
            try:
                async with asyncio.timeout(30):
                    return await work()
            finally:
                await self.client.close()

        return asyncio.run(go())

    async def open_meeting(self, message: str = "How do we store exports?", worker: str = "architect") -> Meeting:
        """Open a meeting and wait for the answer to the first message."""
        meeting = await self.client.meetings.open(worker, message, self.frame)
        await self.collect(self.client.meetings.join(meeting.id, self.frame))
        return self.meetings.get(meeting.id)

    async def say(self, id: str, message: str) -> list[Event]:
        return await self.collect(self.client.meetings.join(id, self.frame, messages=[message]))

    async def collect(self, stream: Any) -> list[Event]:
        async with aclosing(stream) as events:
            return [event async for event in events]

    def details(self, id: str) -> MeetingDetails:
        return self.meetings.context.details(id)

    def answers(self, id: str) -> list[tuple[str, str]]:
        return [(one.user_message, one.answer) for one in self.details(id).exchanges]

    async def wait_idle(self) -> None:
        """Wait until no run is alive."""
        await self.wait_until(lambda: not self.hall.runs.count)

    async def wait_until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(8):
            while not (found := condition()):  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(0.01)
        return found

    async def complete_run(self) -> str:
        """Return an ended run that can request a meeting."""
        stream = self.client.runs.run(RunRequest(worker="architect", input="go"), self.frame)
        return (await self.collect(stream))[0].run

    def model_input(self, run: str) -> str:
        """Return the recorded input of the model."""
        asked = self.hall.history.journal(run).all(ModelAsked)
        return "\n".join(str(entry.data.message) for entry in asked)
