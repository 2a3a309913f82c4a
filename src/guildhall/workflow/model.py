"""The nouns of this floor: a workflow as its file says, and the seats in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from guildhall.core.config import anchored
from guildhall.core.errors import NotFound
from guildhall.core.ids import digest
from guildhall.core.nearest import did_you_mean
from guildhall.core.paths import project_root
from guildhall.runs.reach import declared
from guildhall.workflow.interpolate import Values, filled

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Definition
    from guildhall.workflow.wakeup import Wakeup

ROOMS = ".workflow"  # beside the workflow file: what people see of its rooms
DOCUMENTS = "documents"
_BESIDE = ("-wal", "-shm", ".lock")  # what SQLite and the hall have beside a database
_SHOWN = ("channel.md", "_state")  # what `provider: file` writes there


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A seat, and the worker that takes it. Its prompt is not filled in yet."""

    name: str
    ordinal: int  # in the order of the file
    worker: Worker  # under the agent's name
    prompt: str  # with placeholders: all instructions of an agent of the file's own, or what a worker's get added
    inline: bool  # the file defines it; else it is a worker with a file of its own
    wakeup: Wakeup | None = None
    wakeup_prompt: str | None = None  # with placeholders
    place: Path | None = None  # where it works from; None: where its workflow does


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A workflow file, with all that it names."""

    definition: Definition
    path: Path  # absolute
    text: str  # the file's
    agents: tuple[Agent, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> Path:
        """Where its relative paths start and its commands run."""
        return self.path.parent

    @property
    def place(self) -> str:
        return str(self.path)

    @cached_property
    def digest(self) -> str:
        return digest(self.text.encode())

    @property
    def budget(self) -> float | None:
        """Dollars that the file sets for the team; None: it sets none."""
        return None if self.definition.budget is None or math.isinf(self.definition.budget) else self.definition.budget

    def agent(self, name: str) -> Agent:
        for agent in self.agents:
            if agent.name == name:
                return agent
        hint = did_you_mean(name, [agent.name for agent in self.agents])
        raise NotFound(f"the workflow {self.name} has no agent {name!r}", hint=hint)

    def frame(self, frame: Frame) -> Frame:
        """The frame in which its commands and agents work: in the folder of its file, wherever it was started from."""
        model = anchored(frame.model, frame.cwd) if frame.model else None
        return replace(frame, cwd=self.folder, root=project_root(self.folder), model=model)

    def seated(self, agent: Agent, values: Values) -> Worker:
        """The agent's worker as it runs in the room."""
        said = filled(agent.prompt, values)
        if not agent.inline:
            own = agent.worker.instructions
            said = f"{own.rstrip()}\n\n{said}" if said else own
        return replace(agent.worker, instructions=said, keeps=self.keeps(values))

    def keeps(self, values: Values) -> tuple[Path, ...]:
        """What it has on disk, which agents change through the room or not at all."""
        room, database = self.room_folder(values), self.database(values)
        beside = [database.with_name(database.name + ending) for ending in ("", *_BESIDE)] if database else []
        return (self.path, self.folder / ROOMS, *(room / name for name in (DOCUMENTS, *_SHOWN)), *beside)

    def around(self, agent: Agent) -> frozenset[str]:
        """What the others at the table can do to the world: what one of them has read, another can be told."""
        if not self.definition.context.enabled:
            return frozenset()
        others = (declared(one.worker) for one in self.agents if one.name != agent.name)
        return frozenset[str]().union(*others)

    def room_folder(self, values: Values) -> Path:
        """Where people see its room: documents, and with `provider: file` the channel."""
        config = self.definition.context.config
        named = config.dir or config.bind
        if named is None:
            return self.folder / ROOMS / values.workflow / values.tag
        return self.folder / filled(named, values)

    def documents(self, values: Values) -> Path | None:
        """The folder of its documents; None: they are in the database, or it has none."""
        return self.room_folder(values) / DOCUMENTS if self.definition.context.stores_files else None

    def database(self, values: Values) -> Path | None:
        """The database that its state is in, where it is one of its own."""
        db = self.definition.context.config.db
        return self.folder / filled(db, values) if db is not None else None
