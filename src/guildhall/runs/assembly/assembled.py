"""Assembled run: holds the parts of a run, and converts them to and from journal entry 0.

The recorded form is sufficient to resume or replay the run, even if the file of the worker is gone. A resumed run keeps
its recorded parts and loses the permissions that its worker no longer has.

Does not resolve the parts: `runs.assembly.assembler` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ToolUnavailable
from guildhall.core.ids import fingerprint
from guildhall.policy.rules import Mode, Rule, assess_risk
from guildhall.runs.assembly.activation import DEFAULT, Activation
from guildhall.runs.assembly.callees import CREATE_RULES, NO_MEMBERS, MemberTools
from guildhall.runs.assembly.tools_and_folders import permitted_capabilities, visible_tools
from guildhall.runs.model import Bounds
from guildhall.runs.record.entries import Assembly
from guildhall.runtimes.model import Assignment, Attachment
from guildhall.tools.call_router import built_in_tools
from guildhall.tools.mcp.client import Servers
from guildhall.tools.model import Tool, Toolbox
from guildhall.workers.definition import EVERY_WORKER, Definition
from guildhall.workers.model import Worker

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.tools.call_router import ToolEnvironment


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The resolved parts of a run. Entry 0 of the journal records them."""

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
    environment: ToolEnvironment
    allow_workers: tuple[str, ...] = ()
    above: frozenset[str] = frozenset()  # capabilities of the calling runs and of the other workers around them
    callees: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])  # capabilities by identity
    attachments: tuple[Attachment, ...] = ()
    given: tuple[Toolbox, ...] = ()  # toolboxes of the caller's process
    servers: Servers = field(default_factory=Servers)  # connected MCP servers, closed with the run
    member_tools: MemberTools = NO_MEMBERS
    called: bool = False  # by another run
    activation: Activation = DEFAULT
    converses: bool = False  # the run is a conversation

    def surrounding_capabilities(self, worker: Worker) -> frozenset[str]:
        """Return the capabilities around a worker that the run calls: of the run, its callers and other callees."""
        others = (can for identity, can in self.callees.items() if identity != worker.identity)
        own = permitted_capabilities(self.tools, self.environment.forbidden).values()
        return self.above.union(*own, *others)

    @property
    def request_settings(self) -> dict[str, Any]:
        """Return the settings of each model call, under the names of pydantic-ai."""
        return self.worker.definition.model_settings.request_values()

    @property
    def visible_tools(self) -> tuple[Tool, ...]:
        return visible_tools(self.worker, self.tools)

    @property
    def assignment(self) -> Assignment:
        return Assignment(
            system_prompt=self.system_prompt,
            first_message=self.first_message,
            tools=tuple(tool.as_shown() for tool in self.visible_tools),
            output_schema=self.output_schema,
            attachments=self.attachments,
            model=self.model,
            settings=self.worker.definition.model_settings.declared_values(),
            is_conversation=self.converses,
        )

    def as_shown(self) -> dict[str, Any]:
        """Return the input of the model, which a replay compares."""
        return {
            "system_prompt": self.system_prompt,
            "first_message": self.first_message,
            "attachments": [file.describe() for file in self.attachments],
            "tools": [tool.as_shown() for tool in self.visible_tools],
            "output_schema": self.output_schema,
        }

    def as_recorded(self) -> Assembly:
        """Return the payload of entry 0."""
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


def restrict_to_current(recorded: Assembled, current: Assembled) -> Assembled:
    """Return the recorded run. Forbid the tools and permissions that its worker no longer has."""
    names = {tool.name for tool in current.tools}
    removed = tuple(Rule(name=tool.name, allowed=False) for tool in recorded.tools if tool.name not in names)
    allowed = recorded.allow_workers
    if EVERY_WORKER in allowed:
        allowed = current.allow_workers
    elif EVERY_WORKER not in current.allow_workers:
        allowed = tuple(name for name in allowed if name in current.allow_workers)
    rules = (*recorded.rules, *current.rules, *removed)
    return replace(recorded, rules=rules, allow_workers=allowed)


def narrow_environment(recorded: ToolEnvironment, current: ToolEnvironment) -> ToolEnvironment:
    """Return the recorded environment without the folders and permissions that the worker no longer has."""
    writable = {(folder.name, folder.path): folder.is_writable for folder in current.view.folders}
    folders = tuple(
        replace(folder, is_writable=folder.is_writable and writable[folder.name, folder.path])
        for folder in recorded.view.folders
        if (folder.name, folder.path) in writable
    )
    view = replace(recorded.view, folders=folders)
    return replace(recorded, view=view, forbidden=recorded.forbidden | current.forbidden)


def rebind_tool(tool: Tool, environment: ToolEnvironment) -> Tool:
    """Return the tool with a handler for this environment. Only Bash runs in the hall and has its own view."""
    if tool.name != "Bash" or tool.runs_in != "hall":
        return tool
    return replace(tool, handler=built_in_tools((tool.name,), environment)[0].handler)


def with_recorded_descriptions(tools: Iterable[Tool], frozen: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Return tools with recorded texts where a text lists workers, which can change during a run."""
    recorded = {tool["name"]: tool for tool in frozen}
    return tuple(
        replace(tool, description=then["description"], input_schema=then["input_schema"])
        if tool.runs_in == "run" and (then := recorded.get(tool.name))
        else tool
        for tool in tools
    )


def snapshot(worker: Worker) -> dict[str, Any]:
    """Return the recorded form of a worker, from which `from_snapshot` restores it without its file."""
    return {
        "definition": worker.definition.model_dump(mode="json"),
        "instructions": worker.instructions,
        "scope": worker.scope,
        "digest": worker.digest,
        "path": str(worker.path),
        "workdir": str(worker.workdir) if worker.workdir else None,
        "keeps": [str(path) for path in worker.workflow_paths],
        **({"activate": worker.activate} if worker.activate else {}),
        **({"rule_files": dict(worker.rule_files)} if worker.rule_files else {}),
    }


def from_snapshot(data: Mapping[str, Any]) -> Worker:
    return Worker(
        definition=Definition.model_validate(data["definition"]),
        instructions=data["instructions"],
        scope=data["scope"],
        digest=data["digest"],
        path=Path(data["path"]),
        workdir=Path(data["workdir"]) if data.get("workdir") else None,
        workflow_paths=tuple(map(Path, data.get("keeps", ()))),
        activate=data.get("activate"),
        rule_files=data.get("rule_files", {}),
    )


def recorded_toolbox(name: str, tools: Iterable[Mapping[str, Any]]) -> Toolbox:
    """Return a toolbox of an ended process for a replay, which does not call its tools."""

    def unavailable(**_: Any) -> None:
        raise ToolUnavailable(f"cannot call the toolbox {name!r}: it exists only in the process that started the run")

    return Toolbox(name, *(Tool.from_described(tool, unavailable) for tool in tools))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The inputs from which a new or recorded run is assembled."""

    run_id: str
    worker: Worker
    frame: Frame
    input: str
    model: str
    mode: Mode
    bounds: Bounds
    output_schema: Mapping[str, Any] | None
    given: Sequence[Toolbox] = ()
    attachments: tuple[Attachment, ...] = ()
    memory: str | None = None  # the recorded memory block, or None to render the current memory
    above: frozenset[str] = frozenset()
    served: Mapping[str, Sequence[Tool]] | None = None  # known tools of servers, or None to start the servers
    member_tools: MemberTools | None = None  # None to look the members up
    hooks: RunHooks | None = None
    called: bool = False  # by another run
    activation: Activation | None = None  # None to call the function of the worker, with the `context`
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    current: ToolEnvironment | None = None  # of the worker today, which limits the environment of a recorded run

    @property
    def converses(self) -> bool:
        return self.hooks is not None and self.hooks.next_message is not None

    @property
    def context_name(self) -> str:
        """Return the server name of the owner's tools, `called`, or `run` for a run on its own."""
        return self.hooks.server if self.hooks else "called" if self.called else "run"


def recorded_recipe(frozen: Assembly, frame: Frame, *, run_id: str, given: Sequence[Toolbox]) -> Recipe:
    return Recipe(
        run_id=run_id,
        worker=from_snapshot(frozen.worker),
        frame=frame,
        input=frozen.first_message,
        model=frozen.model,
        mode=frozen.mode,
        bounds=Bounds(**frozen.bounds),
        output_schema=frozen.output_schema,
        given=given,
        attachments=tuple(Attachment.from_dict(file) for file in frozen.files),
        memory=frozen.memory,
        above=frozenset(frozen.above),
        called=frozen.called,
        activation=Activation.from_dict(frozen.activation) if frozen.activation else DEFAULT,
    )


def make_rules(
    recipe: Recipe, tools: Iterable[Tool], forbidden: frozenset[str], around: frozenset[str]
) -> tuple[Rule, ...]:
    """Return the worker's rules and the exfiltration rules. `around`: capabilities of the workers around it."""
    tools = tuple(tools)
    # The user always reviews a new worker before it is created, so the gate does not ask about the call as well.
    own = (
        replace(rule, approval_required=False) if rule.name in CREATE_RULES else rule
        for rule in recipe.worker.rules_for(tool.name for tool in tools)
    )
    capabilities, accepted = permitted_capabilities(tools, forbidden), recipe.worker.definition.accepts_risk
    return (*own, *assess_risk(capabilities, accepted=accepted, others=around).rules)
