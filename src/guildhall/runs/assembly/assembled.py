"""Assembled run: holds the parts of a run, and converts them to and from journal entry 0.

The recorded form is sufficient to resume or replay the run, even if the file of the worker is gone. A resumed run keeps
its recorded parts and loses the permissions that its worker no longer has.

Does not resolve the parts: `runs.assembly.assembler` does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ToolUnavailable
from guildhall.core.ids import fingerprint
from guildhall.policy.rules import Mode, Rule, rules_against_risk
from guildhall.runs.assembly.activation import DEFAULT, Activation
from guildhall.runs.assembly.callees import CREATE_RULES, NO_MEMBERS, MemberTools
from guildhall.runs.assembly.tool_set import permitted_capabilities
from guildhall.runs.model import Bounds
from guildhall.runs.record.entries import Assembly
from guildhall.runtimes.model import Assignment, Attachment
from guildhall.tools.mcp.client import Servers
from guildhall.tools.model import Tool, Toolbox
from guildhall.workers.definition import EVERY_WORKER, Definition
from guildhall.workers.model import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.runs.hooks import RunHooks
    from guildhall.tools.executor import Surroundings


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """What a run is made of. The journal's first entry freezes it."""

    worker: Worker
    model: str
    mode: Mode
    system_prompt: str  # the worker's instructions; the memory block comes last
    memory: str  # the memory block, or an empty string
    first_message: str
    tools: tuple[Tool, ...]
    rules: tuple[Rule, ...]
    bounds: Bounds
    output_schema: Mapping[str, Any] | None
    surroundings: Surroundings
    allow_workers: tuple[str, ...] = ()
    above: frozenset[str] = frozenset()  # what the runs that have called it, and those around them, can do to the world
    callees: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])  # the same, by identity
    attachments: tuple[Attachment, ...] = ()
    given: tuple[Toolbox, ...] = ()  # toolboxes of the caller's own process
    servers: Servers = field(default_factory=Servers)  # of tools, connected; they end with the run
    member_tools: MemberTools = NO_MEMBERS  # the members that it may dispatch to, or has tools of
    called: bool = False  # by another run
    activation: Activation = DEFAULT  # how its worker has it begin
    converses: bool = False  # it is a conversation

    def surrounding_capabilities(self, worker: Worker) -> frozenset[str]:
        """What all around a worker that the run calls can do to the world: the run, those above, and other callees."""
        others = (can for identity, can in self.callees.items() if identity != worker.identity)
        own = permitted_capabilities(self.tools, self.surroundings.forbidden).values()
        return self.above.union(*own, *others)

    @property
    def assignment(self) -> Assignment:
        return Assignment(
            system_prompt=self.system_prompt,
            first_message=self.first_message,
            tools=tuple(tool.as_shown() for tool in self.tools),
            output_schema=self.output_schema,
            attachments=self.attachments,
            model=self.model,
            converses=self.converses,
        )

    def as_shown(self) -> dict[str, Any]:
        """What the model is shown: the part that a replay must find again."""
        return {
            "system_prompt": self.system_prompt,
            "first_message": self.first_message,
            "attachments": [file.as_described() for file in self.attachments],
            "tools": [tool.as_shown() for tool in self.tools],
            "output_schema": self.output_schema,
        }

    def as_recorded(self) -> Assembly:
        """Return the payload of the journal's first entry."""
        shown = self.as_shown()
        return Assembly(
            **shown,
            hash=fingerprint(shown),
            files=[file.as_dict() for file in self.attachments],
            memory=self.memory,
            above=sorted(self.above),
            repeatable=[tool.name for tool in self.tools if tool.repeatable],
            called=self.called,
            worker=snapshot(self.worker),
            model=self.model,
            mode=self.mode,
            bounds=asdict(self.bounds),
            given={toolbox.name: [tool.as_described() for tool in toolbox.tools] for toolbox in self.given},
            servers={name: [tool.as_described() for tool in tools] for name, tools in self.servers.tools.items()},
            member_tools=self.member_tools.as_dict() if self.member_tools != NO_MEMBERS else None,
            activation=asdict(self.activation) if self.activation != DEFAULT else None,
            converses=self.converses,
        )


def tighten(then: Assembled, today: Assembled) -> Assembled:
    """Return the recorded run without the tools, rules, folders and rights that its worker no longer has."""
    kept = {tool.name for tool in today.tools}
    gone = tuple(Rule(name=tool.name, allowed=False) for tool in then.tools if tool.name not in kept)
    writable = {(folder.name, folder.path): folder.is_writable for folder in today.surroundings.view.folders}
    view = then.surroundings.view
    left = tuple(
        replace(folder, is_writable=folder.is_writable and writable[folder.name, folder.path])
        for folder in view.folders
        if (folder.name, folder.path) in writable
    )
    surroundings = replace(then.surroundings, view=replace(view, folders=left))
    allowed = then.allow_workers
    if EVERY_WORKER in allowed:
        allowed = today.allow_workers
    elif EVERY_WORKER not in today.allow_workers:
        allowed = tuple(name for name in allowed if name in today.allow_workers)
    rules = (*then.rules, *today.rules, *gone)
    return replace(then, rules=rules, surroundings=surroundings, allow_workers=allowed)


def with_recorded_descriptions(tools: Iterable[Tool], frozen: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools of the run itself keep the words in which the model knows them: they name workers, which come and go."""
    told = {tool["name"]: tool["description"] for tool in frozen}
    return tuple(
        replace(tool, description=told.get(tool.name, tool.description)) if tool.runs_in == "run" else tool
        for tool in tools
    )


def snapshot(worker: Worker) -> dict[str, Any]:
    """A worker as the record keeps it: enough to be one again when its file is gone."""
    return {
        "definition": worker.definition.model_dump(mode="json"),
        "instructions": worker.instructions,
        "scope": worker.scope,
        "digest": worker.digest,
        "path": str(worker.path) if worker.path else None,
        "workdir": str(worker.workdir) if worker.workdir else None,
        "keeps": [str(path) for path in worker.workflow_paths],
        **({"activate": worker.activate} if worker.activate else {}),
    }


def from_snapshot(data: Mapping[str, Any]) -> Worker:
    return Worker(
        definition=Definition.model_validate(data["definition"]),
        instructions=data["instructions"],
        scope=data["scope"],
        digest=data["digest"],
        path=Path(data["path"]) if data["path"] else None,
        workdir=Path(data["workdir"]) if data.get("workdir") else None,
        workflow_paths=tuple(map(Path, data.get("keeps", ()))),
        activate=data.get("activate"),
    )


def recorded_attachments(frozen: Assembly) -> tuple[Attachment, ...]:
    return tuple(Attachment.from_dict(file) for file in frozen.files)


def recorded_toolbox(name: str, tools: Iterable[Mapping[str, Any]]) -> Toolbox:
    """A toolbox of a process that is gone: good for a replay, which executes nothing."""

    def gone(**_: Any) -> None:
        raise ToolUnavailable(f"the toolbox {name!r} belonged to the process that made the run")

    return Toolbox(name, *(Tool.from_described(tool, gone) for tool in tools))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run is assembled from, be it new or on record."""

    run: str
    worker: Worker
    frame: Frame
    input: str
    model: str
    mode: Mode
    bounds: Bounds
    output_schema: Mapping[str, Any] | None
    given: Sequence[Toolbox] = ()  # toolboxes of the caller's own process
    memory: str | None = None  # the recorded memory block; None: render it from the current memory
    above: frozenset[str] = frozenset()  # what the runs that have called it, and those around them, can do
    served: Mapping[str, Sequence[Tool]] | None = None  # tools of servers, where they are known; else these are started
    member_tools: MemberTools | None = None  # the members, where they are known; else they are looked up
    hooks: RunHooks | None = None
    called: bool = False  # by another run
    activation: Activation | None = None  # how it begins, where that is known; else its worker's function is called
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what that is told of what the run is for

    @property
    def converses(self) -> bool:
        return self.hooks is not None and self.hooks.next_message is not None

    @property
    def context_name(self) -> str:
        """What it is part of: the name of its seat's tools, `called`, or `run` for one that stands alone."""
        return self.hooks.server if self.hooks else "called" if self.called else "run"


def recorded_recipe(frozen: Assembly, frame: Frame, *, run: str, given: Sequence[Toolbox]) -> Recipe:
    return Recipe(
        run=run,
        worker=from_snapshot(frozen.worker),
        frame=frame,
        input=frozen.first_message,
        model=frozen.model,
        mode=frozen.mode,
        bounds=Bounds(**frozen.bounds),
        output_schema=frozen.output_schema,
        given=given,
        memory=frozen.memory,
        above=frozenset(frozen.above),
        called=frozen.called,
        activation=Activation.from_dict(frozen.activation) if frozen.activation else DEFAULT,
    )


def run_rules(
    recipe: Recipe, tools: Iterable[Tool], forbidden: frozenset[str], around: frozenset[str]
) -> tuple[Rule, ...]:
    """The worker's rules, and those that guard what it could carry out; `around` is what those can do around it."""
    tools = tuple(tools)
    # A new worker is always shown whole before it is made: the gate need not ask about its arguments as well.
    own = (
        replace(rule, approval_required=False) if rule.name in CREATE_RULES else rule
        for rule in recipe.worker.rules_for(tool.name for tool in tools)
    )
    accepted = recipe.worker.definition.accepts_risk
    return (*own, *rules_against_risk(permitted_capabilities(tools, forbidden), accepted=accepted, around=around))
