"""`guild replay` of a workflow, or of a run of one of its agents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound
from guildhall.room.replay import RoomReplay
from guildhall.runs.prepare import frame_then
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.replay import Difference, Replayed
from guildhall.runs.seat import seat_on_record
from guildhall.store.scratch import scratch
from guildhall.workflow import records
from guildhall.workflow.again import Found, TeamAgain, earliest
from guildhall.workflow.beginning import asked_of, conducting
from guildhall.workflow.load import load, thawed
from guildhall.workflow.setup import TOOLS
from guildhall.workflow.start import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.runs.history import History
    from guildhall.runs.model import Run
    from guildhall.runs.recordings import Recordings
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker
    from guildhall.workflow.instance import Instance
    from guildhall.workflow.interpolate import Values
    from guildhall.workflow.model import Workflow


@dataclass(frozen=True, kw_only=True)
class WorkflowReplays:
    """Plays the workflows of a hall again."""

    store: Store
    history: History
    recordings: Recordings
    find: Callable[[str, Frame], Worker]
    settings: Callable[[Frame], Settings]

    async def replay(self, run: str, frame: Frame) -> Replayed:
        """Plays a workflow again, with all below it; of a run inside it shows only what is about that run."""
        root = self.history.get(self.history.get(run).root)
        instance = self.store.read(lambda connection: records.find(connection, root.id))
        if instance is None:
            raise NotFound(f"the run {root.id} is not a workflow")
        tree = self.history.tree(root.id)
        wanted = {one.id for one in self.history.tree(run)}
        steps = sum(len(self.history.entries(one)) for one in wanted)
        there = frame_then(root.frame, frame)
        workflow, gone = self._of_today(instance, there)
        try:
            values = self._values(root, workflow, instance, there)
        except GuildError as error:
            difference = Difference(step=0, text=f"now it cannot start: {error}")
            return Replayed(run=root.id, steps=steps, difference=difference, worker_gone=gone)
        with scratch() as empty:
            room = RoomReplay(instance.room, self.store, empty)
            team = TeamAgain(
                instance=instance,
                workflow=workflow,
                values=values,
                room=room,
                store=self.store,
                history=self.history,
            )
            played = [await self._play_root(root, workflow, team, frame)]
            if played[0].same:
                played += [await self._play(one, team, frame) for one in tree[1:] if one.id in wanted]
        found = [*team.found, *(self._found(one) for one in played if not one.same)]
        gone = gone or any(one.worker_gone for one in played if one.run in wanted)
        return earliest(run, steps, [one for one in found if one.run in wanted], gone=gone)

    async def _play_root(self, root: Run, workflow: Workflow, team: TeamAgain, frame: Frame) -> Replayed:
        request = replace(root.request, input=asked_of(workflow))
        seat = seat_on_record(TOOLS)
        again = replace(root, request=request)
        return await self.recordings.play(again, frame, worker=conducting(workflow), seat=seat, runtime=team)

    async def _play(self, run: Run, team: TeamAgain, frame: Frame) -> Replayed:
        seated = team.seated(run)
        if seated is None:
            return await self.recordings.play(run, frame)
        worker, seat = seated
        return await self.recordings.play(run, frame, worker=worker, seat=seat)

    def _found(self, played: Replayed) -> Found:
        assert played.difference is not None
        entries = self.history.entries(played.run)
        step = min(played.difference.step, len(entries) - 1)
        return Found(at=entries[step].at, run=played.run, difference=played.difference)

    def _of_today(self, instance: Instance, frame: Frame) -> tuple[Workflow, bool]:
        """The workflow as its file is today, with workers on record in the place of those that are gone."""
        then = thawed(instance.source, instance.definition)
        path = Path(instance.path)
        if not path.exists():
            return then, True
        gone: list[str] = []
        find = partial(self._find, then, replace(frame, cwd=path.parent), gone)
        return load(path, find), bool(gone)

    def _find(self, then: Workflow, frame: Frame, gone: list[str], name: str) -> Worker:
        try:
            return self.find(name, frame)
        except NotFound:
            for agent in then.agents:
                if then.definition.agents[agent.name].worker == name:
                    gone.append(name)
                    return agent.worker
            raise

    def _values(self, root: Run, workflow: Workflow, instance: Instance, frame: Frame) -> Values:
        params = self.history.purpose(root.id, WorkflowPurpose).params
        allowed = self.settings(frame).env
        return values_of(workflow, tag=instance.tag, params=params, frame=frame, allowed=allowed)
