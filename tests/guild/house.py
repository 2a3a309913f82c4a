"""A house with every kind of work: plain runs, called ones, a room, jobs, commissions, meetings, the manager.

One worker, smith, is put to work in each of them, and what its model was shown is read back from the record: the names
from the run's first entry, and that the model was sent exactly these from the fingerprint of its request.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from guildhall.core.ids import fingerprint
from guildhall.core.request_frame import Frame
from guildhall.jobs.model import Dispatch
from guildhall.projects.registry import Projects
from guildhall.runs.model import RunRequest
from guildhall.workflow.target import Start
from tests.guild.packages import put_mail
from tests.projects.commissions.workshop import Workshop
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home

PLAIN = ("run", "called", "room", "job")
IN_PROJECTS = ("commission", "meeting")
DICE = '''
from guildhall import Toolbox, tool


@tool
def roll() -> str:
    """Roll a die."""
    return "4"


@tool
def flip() -> str:
    """Flip a coin."""
    return "heads"


toolbox = Toolbox("dice", roll, flip)
'''
TEAM = {
    "agents": {"smith": {"worker": "smith", "model": "script:script.yaml"}},
    "context": {"documentOwner": "none"},
    "kickoff": "@smith begin",
}
_CALLS = [{"call": "worker_call", "with": {"worker_name": "smith", "input_data": "Go."}}, {"say": "called"}]


class House(Workshop):
    """Create a registered repository and a plain folder, with the same worker in both."""

    elsewhere: Path

    @staticmethod
    def built(folder: Path, home: Home) -> House:
        repo = repository(folder / "shop", {"README.md": "The shop\n", "notes/a.md": "a\n"})
        home.toolboxes.mkdir(parents=True)
        (home.toolboxes / "dice.py").write_text(DICE)
        put_mail(home)
        Projects(home).add(repo.path, "shop")
        house = House(home=home, repo=repo)
        house.elsewhere = folder / "elsewhere"
        house.elsewhere.mkdir()
        for place in (repo.path, house.elsewhere):
            (place / "notes").mkdir(exist_ok=True)
            (place / "team.yaml").write_text(json.dumps(TEAM))
        return house

    def furnish(self, name: str = "smith", **fields: Any) -> None:
        """Write the worker in both places. Its model says one word; its caller calls it first."""
        usual = {"name": name, "instructions": "You forge.", "model": "script:script.yaml", "checkout": "full"}
        caller = {"name": "caller", "instructions": "You call.", "model": "script:script.yaml", "allow_workers": [name]}
        script = {"workers": {"caller": [_CALLS], "*": [[{"say": "done"}]]}, "repeat": True}
        for place in (self.repo.path, self.elsewhere):
            (place / "workers").mkdir(exist_ok=True)
            for file, text in ((f"{name}.yaml", {**usual, **fields}), ("caller.yaml", caller)):
                (place / "workers" / file).write_text(json.dumps(text))
            (place / "script.yaml").write_text(json.dumps(script))

    def shown(self, context: str, *, registered: bool = True, worker: str = "smith") -> list[str]:
        """Return the tools that the worker's model sees in a context, in order."""
        return self.inside(lambda house: house.put_to_work(context, registered=registered, worker=worker))

    async def put_to_work(self, context: str, *, registered: bool, worker: str) -> list[str]:
        place = self.repo.path if registered else self.elsewhere
        frame = Frame(cwd=place, root=place, model="script:script.yaml")
        return self.tools_of(await getattr(self, f"_{context}")(worker, frame))

    def tools_of(self, run: str) -> list[str]:
        """Return the recorded input of a run's model."""
        entries = self.hall.history.entries(run)
        tools = entries[0].data.tools
        asked = [entry.data.tools for entry in entries if entry.kind == "model_asked"]
        sent = fingerprint([[one["name"], one["description"], one["input_schema"]] for one in tools])
        assert asked, "its model was not asked"
        assert set(asked) == {sent}, "the model was shown something else than what the run was given"
        return [one["name"] for one in tools]

    async def _run(self, worker: str, frame: Frame) -> str:
        return await self._followed(self.client.runs.run(RunRequest(worker=worker, input="Go."), frame))

    async def _called(self, worker: str, frame: Frame) -> str:
        root = await self._followed(self.client.runs.run(RunRequest(worker="caller", input="Go."), frame))
        return self.hall.history.descendants(root)[0].id

    async def told_of_call(self, worker: str) -> str:
        """Return the error that a worker receives if its callee did not start."""
        root = await self._followed(self.client.runs.run(RunRequest(worker="caller", input="Go."), self.frame))
        assert self.hall.history.descendants(root) == []
        ended = next(entry for entry in self.hall.history.entries(root) if entry.kind == "tool_ended")
        return str(ended.data.result)

    async def _room(self, worker: str, frame: Frame) -> str:
        request = RunRequest(worker="team.yaml", input="")
        root = await self._followed(
            self.client.workflows.run(Start(file="team.yaml", params={}, fresh=True), request, frame)
        )
        return self.hall.history.descendants(root)[0].id

    async def _job(self, worker: str, frame: Frame) -> str:
        job = await self.hall.jobs.dispatch(worker, Dispatch(description="A key", task="Go."), frame)
        await self._gone(job.run)
        return job.run

    async def _commission(self, worker: str, frame: Frame) -> str:
        made = await self.new(worker=worker, frame=frame)
        await self.commissions.dispatch(made.id, frame)
        done = await self.quiet(made.id)
        assert done.run is not None, done
        return done.run

    async def _meeting(self, worker: str, frame: Frame) -> str:
        meeting = await self.hall.meetings.open(worker, "Go.", frame)
        await self._followed(self.hall.meetings.join(meeting.id, frame))
        run = self.hall.meetings.get(meeting.id).run
        await self.hall.meetings.close_meeting(meeting.id, frame, summarise=False)
        return run

    async def _followed(self, stream: Any) -> str:
        run = ""
        async with aclosing(stream) as events:
            async for event in events:
                run = event.root
        return run

    async def _gone(self, run: str) -> None:
        async with aclosing(self.client.runs.follow(run, self.frame)) as events:
            async for _ in events:
                pass
