"""Types of a loaded workflow file: the workflow with its agents and paths.

Does not read files (`loader.py`) or fill in placeholders (`placeholders.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from guildhall.core.config import resolve_script_path
from guildhall.core.errors import NotFound
from guildhall.core.ids import digest
from guildhall.core.paths import project_root
from guildhall.core.text_checks import did_you_mean
from guildhall.runs.assembly.callees import declared_capabilities
from guildhall.workflow.placeholders import Values, fill

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Definition, Wakeup

ROOMS_FOLDER = ".workflow"  # beside the workflow file
DOCUMENTS_FOLDER = "documents"
_DATABASE_SUFFIXES = ("-wal", "-shm", ".lock")
EXPORTED_FILES = ("channel.md", "_state")  # written by `provider: file`


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent of the team and its worker. Placeholders in its prompts are not filled in."""

    name: str
    worker: Worker  # has the name of the agent
    prompt: str  # all instructions of an inline agent, else text to append; with placeholders
    is_inline: bool  # True if the agent is defined in the workflow file, not in a worker file
    wakeup: Wakeup | None = None
    wakeup_prompt: str | None = None  # with placeholders
    cwd: Path | None = None  # None for the folder of the workflow


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A workflow file with its agents."""

    definition: Definition
    path: Path  # absolute
    text: str  # content of the file
    agents: tuple[Agent, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> Path:
        """Return the folder of the file. Relative paths and commands start there."""
        return self.path.parent

    @property
    def place(self) -> str:
        return str(self.path)

    @cached_property
    def digest(self) -> str:
        return digest(self.text.encode())

    @property
    def budget(self) -> float | None:
        """Return the budget of the file in dollars, or None if it sets no limit."""
        return None if self.definition.budget is None or math.isinf(self.definition.budget) else self.definition.budget

    def agent(self, name: str) -> Agent:
        for agent in self.agents:
            if agent.name == name:
                return agent
        hint = did_you_mean(name, [agent.name for agent in self.agents])
        raise NotFound(f"unknown agent {name!r} of the workflow {self.name}", hint=hint)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame of its commands and agents, whose folder is the folder of the file."""
        model = resolve_script_path(frame.model, frame.cwd) if frame.model else None
        return replace(frame, cwd=self.folder, root=project_root(self.folder), model=model)

    def worker_of(self, agent: Agent, values: Values) -> Worker:
        """Return the worker of an agent with its filled instructions."""
        instructions = fill(agent.prompt, values).text
        if not agent.is_inline:
            own = agent.worker.instructions
            instructions = f"{own.rstrip()}\n\n{instructions}" if instructions else own
        return replace(agent.worker, instructions=instructions, workflow_paths=self.protected_paths(values))

    def protected_paths(self, values: Values) -> tuple[Path, ...]:
        """Return the paths that agents must not write: the file, the room's data and the database."""
        room, database = self.room_folder(values), self.database_path(values)
        paths = [self.path, self.folder / ROOMS_FOLDER, *(room / name for name in (DOCUMENTS_FOLDER, *EXPORTED_FILES))]
        if database is not None:
            paths += [database.with_name(database.name + suffix) for suffix in ("", *_DATABASE_SUFFIXES)]
        return tuple(paths)

    def other_capabilities(self, agent: Agent) -> frozenset[str]:
        """Return the capabilities of the other agents. Data that an agent reads can reach them through the room."""
        if not self.definition.context.enabled:
            return frozenset()
        others = (declared_capabilities(other.worker) for other in self.agents if other.name != agent.name)
        return frozenset[str]().union(*others)

    def room_folder(self, values: Values) -> Path:
        """Return the folder of the documents and, with `provider: file`, of the exported channel."""
        config = self.definition.context.config
        folder = config.dir or config.bind
        if folder is None:
            return self.folder / ROOMS_FOLDER / values.workflow / values.tag
        return self.folder / fill(folder, values).text

    def documents_folder(self, values: Values) -> Path | None:
        """Return the folder of the documents, or None if they are in the database or the workflow has no room."""
        return self.room_folder(values) / DOCUMENTS_FOLDER if self.definition.context.stores_files else None

    def database_path(self, values: Values) -> Path | None:
        """Return the path of the workflow's own database, or None."""
        db = self.definition.context.config.db
        return self.folder / fill(db, values).text if db is not None else None
