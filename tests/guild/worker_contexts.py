"""Run one worker in every context: a plain run, a call, a room, a job, a commission, a meeting.

The tools of the worker `smith` are read from the first journal entry of its run. The fingerprint of the model request
proves that the model received exactly these tools.
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
from guildhall.workers.model import ROOM_TOOLS
from guildhall.workflow.instance import Start
from tests.guild.packages import write_mail_package
from tests.projects.commissions.harness import CommissionProject
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home

# The tools of a room that an agent without others in its team receives only on request.
DEFERRED = frozenset(ROOM_TOOLS) - {"channel_send", "no_action", "resource_read", "more_tools"}
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
_CALLS = [{"call": "worker_call", "with": {"worker": "smith", "input_data": "Go."}}, {"say": "called"}]


class WorkerContexts(CommissionProject):
    """A registered project and a folder that is not a project, with the same worker in both."""

    elsewhere: Path

    @staticmethod
    def create(folder: Path, home: Home) -> WorkerContexts:
        repo = repository(folder / "shop", {"README.md": "The shop\n", "notes/a.md": "a\n"})
        home.toolboxes.mkdir(parents=True)
        (home.toolboxes / "dice.py").write_text(DICE)
        write_mail_package(home)
        Projects(home).add(repo.path, "shop")
        contexts = WorkerContexts(home=home, repo=repo)
        contexts.elsewhere = folder / "elsewhere"
        contexts.elsewhere.mkdir()
        for place in (repo.path, contexts.elsewhere):
            (place / "notes").mkdir(exist_ok=True)
            (place / "team.yaml").write_text(json.dumps(TEAM))
        return contexts

    def write_workers(self, name: str = "smith", **fields: Any) -> None:
        """Write the worker, its caller and their script to both folders."""
        usual = {"name": name, "instructions": "You forge.", "model": "script:script.yaml", "checkout": "full"}
        caller = {"name": "caller", "instructions": "You call.", "model": "script:script.yaml", "allow_workers": [name]}
        script = {"workers": {"caller": [_CALLS], "*": [[{"say": "done"}]]}, "repeat": True}
        for place in (self.repo.path, self.elsewhere):
            (place / "workers").mkdir(exist_ok=True)
            for file, text in ((f"{name}.yaml", {**usual, **fields}), ("caller.yaml", caller)):
                (place / "workers" / file).write_text(json.dumps(text))
            (place / "script.yaml").write_text(json.dumps(script))

    def tools_in(self, context: str, *, registered: bool = True, worker: str = "smith") -> list[str]:
        """Run the worker in a context, and return the tools that its model gets, in order."""
        return self.run_in_hall(lambda contexts: contexts.run_in(context, registered=registered, worker=worker))

    async def run_in(self, context: str, *, registered: bool, worker: str) -> list[str]:
        place = self.repo.path if registered else self.elsewhere
        frame = Frame(cwd=place, root=place, model="script:script.yaml")
        return self.recorded_tools(await self.start(context, worker, frame))

    async def start(self, context: str, worker: str, frame: Frame) -> str:
        """Run the worker in a context, and return the run."""
        return await getattr(self, f"_start_{context}")(worker, frame)

    def recorded_tools(self, run: str) -> list[str]:
        """Return the tools of a run, and check that the model received exactly these.

        An agent of a team has tools that its model receives only after a call of `more_tools`.
        """
        entries = self.hall.history.entries(run)
        tools = entries[0].data.tools
        requested = [entry.data.tools for entry in entries if entry.kind == "model_asked"]
        names = [one["name"] for one in tools]
        deferred = {*names} & DEFERRED if "more_tools" in names else set[str]()
        shown = [one for one in tools if one["name"] not in deferred]
        sent = fingerprint([[one["name"], one["description"], one["input_schema"]] for one in shown])
        assert requested, "its model was not called"
        assert set(requested) == {sent}, "the model received other tools than the run has"
        return names

    async def _start_run(self, worker: str, frame: Frame) -> str:
        return await self._follow(self.client.runs.run(RunRequest(worker=worker, input="Go."), frame))

    async def _start_called(self, worker: str, frame: Frame) -> str:
        root = await self._follow(self.client.runs.run(RunRequest(worker="caller", input="Go."), frame))
        return self.hall.history.descendants(root)[0].id

    async def failed_call_result(self, worker: str) -> str:
        """Call a worker that cannot start, and return the result that the caller gets."""
        root = await self._follow(self.client.runs.run(RunRequest(worker="caller", input="Go."), self.frame))
        assert self.hall.history.descendants(root) == []
        ended = next(entry for entry in self.hall.history.entries(root) if entry.kind == "tool_ended")
        return str(ended.data.result)

    async def _start_room(self, worker: str, frame: Frame) -> str:
        request = RunRequest(worker="team.yaml", input="")
        root = await self._follow(
            self.client.workflows.run(Start(file="team.yaml", params={}, fresh=True), request, frame)
        )
        return self.hall.history.descendants(root)[0].id

    async def _start_job(self, worker: str, frame: Frame) -> str:
        job = await self.hall.jobs.dispatch(worker, Dispatch(description="A key", task="Go."), frame)
        await self._wait_ended(job.run)
        return job.run

    async def _start_commission(self, worker: str, frame: Frame) -> str:
        made = await self.create_commission(worker=worker, frame=frame)
        await self.commissions.dispatch(made.id, frame)
        done = await self.wait_ended(made.id)
        assert done.run is not None, done
        return done.run

    async def _start_meeting(self, worker: str, frame: Frame) -> str:
        meeting = await self.hall.meetings.open(worker, "Go.", frame)
        await self._follow(self.hall.meetings.join(meeting.id, frame))
        run = self.hall.meetings.get(meeting.id).run
        await self.hall.meetings.close_meeting(meeting.id, frame, summarise=False)
        return run

    async def _follow(self, stream: Any) -> str:
        run = ""
        async with aclosing(stream) as events:
            async for event in events:
                run = event.root
        return run

    async def _wait_ended(self, run: str) -> None:
        async with aclosing(self.client.runs.follow(run, self.frame)) as events:
            async for _ in events:
                pass
