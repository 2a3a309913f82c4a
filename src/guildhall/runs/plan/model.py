"""Plan model: holds the possible effects of a worker, such as tools, folders, code, cost, callees and problems.

Does not collect the facts (`runs.plan.planner`) and does not format them (`runs.plan.text`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from guildhall.runs.plan import text as plan_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.policy.rules import Decision, Mode, Risk
    from guildhall.runs.model import Bounds
    from guildhall.runtimes.catalog import Row
    from guildhall.runtimes.model import Attachment
    from guildhall.sandbox.view import Folder
    from guildhall.workers.definition import McpServer
    from guildhall.workers.model import FileTrust


@dataclass(frozen=True, kw_only=True)
class Executes:
    """What would be executed: a toolbox, the module of an output schema, a test, the setup of a workflow."""

    kind: str
    name: str
    own: bool  # in the home: it needs no trust
    trusted: bool  # it may run
    files: tuple[FileTrust, ...]
    commands: tuple[str, ...] = ()  # of a setup

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"kind": self.kind, "name": self.name, "home": self.own, "trusted": self.trusted}
        told |= {"commands": list(self.commands)} if self.commands else {}
        return {**told, "files": [seen.as_dict() for seen in self.files]}


@dataclass(frozen=True, kw_only=True)
class PlannedTool:
    """A tool as the model will see it, and what becomes of its calls."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    capabilities: frozenset[str]
    decision: Decision
    rule: str | None = None  # the rule behind it

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "capabilities": sorted(self.capabilities)}


ProblemKind = Literal["missing", "toolbox", "schema", "model", "risk"]


@dataclass(frozen=True)
class PlanProblem:
    """Why a worker cannot run as it is.

    missing: found without executing code; toolbox, schema: found by executing its code; model: none can be chosen, or
    it has no price; risk: a rule forbids this combination of tools.
    """

    kind: ProblemKind
    text: str


@dataclass(frozen=True, kw_only=True)
class Called:
    """A worker that may be called, directly or through others, and what it may do."""

    name: str
    through: str | None = None  # the worker that calls it, where that is another one
    plan: Plan | None = None
    problem: str | None = None  # why it cannot be called

    def as_dict(self) -> dict[str, Any]:
        told = {"name": self.name, "through": self.through, "problem": self.problem}
        return {**told, "plan": self.plan.as_dict() if self.plan else None}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What could happen."""

    worker: str
    place: str
    status: str
    runtime: Row  # what would execute it
    model: str | None  # None: nobody names one
    chosen_by: str | None
    priced: bool | None
    mode: Mode
    bounds: Bounds
    tools: tuple[PlannedTool, ...]
    unknown: tuple[str, ...] = ()  # toolboxes whose tools are not known
    cwd: Path
    folders: tuple[Folder, ...]
    kept: tuple[Path, ...] = ()  # what it does not write, although it lies in a folder that it may write to
    env: tuple[str, ...]
    attached: tuple[Attachment, ...] = ()
    called: bool = False  # by another run, whose dollars it spends
    seated: bool = False  # in a team, whose dollars it spends
    servers: Mapping[str, McpServer] = field(default_factory=dict[str, "McpServer"])
    members: tuple[str, ...] = ()
    member_lines: tuple[str, ...] = ()  # what would be started for them, in words
    calls: tuple[Called, ...] = ()
    schema_ref: str | None = None
    schema: Mapping[str, Any] | None = None
    code: tuple[Executes, ...] = ()
    risk: Risk
    risk_with_calls: Risk | None = None  # with what all those have that call each other; of the first: of all of them
    problems: tuple[PlanProblem, ...] = ()  # why it cannot run as it is

    @property
    def capabilities(self) -> frozenset[str]:
        """What its tools can do to the world, those that its rules forbid left out."""
        own = frozenset({"net"} if self.runtime.network else ())
        return own.union(*(tool.capabilities for tool in self.tools if tool.decision != "refuse"))

    @property
    def reach(self) -> frozenset[str]:
        """What it and all that it may call can do to the world."""
        return self.capabilities.union(*(called.plan.capabilities for called in self.calls if called.plan))

    @property
    def untrusted(self) -> tuple[FileTrust, ...]:
        """The files that would be executed and are not trusted as they are, each once."""
        plans = [self, *(called.plan for called in self.calls if called.plan)]
        files = {seen.path: seen for plan in plans for code in plan.code if not code.trusted for seen in code.files}
        return tuple(seen for seen in files.values() if seen.state != "trusted")

    @property
    def worst_usd(self) -> float | None:
        """The dollars that can be spent before a person is asked or the run ends; None: no limit."""
        limits = (self.bounds.max_budget_usd, self.bounds.budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def line(self) -> str:
        return plan_text.line(self)

    def text(self) -> str:
        """The whole plan. Whatever it quotes is on one line and spelled out where it cannot be seen."""
        return plan_text.text(self)

    def as_dict(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        return {
            "worker": self.worker,
            "file": self.place,
            "status": self.status,
            "runtime": self.runtime.as_dict(),
            "model": self.model,
            "model_chosen_by": self.chosen_by,
            "priced": self.priced,
            "mode": self.mode,
            "limits": asdict(self.bounds),
            "worst_case_usd": self.worst_usd,
            "tools": [tool.as_dict() for tool in self.tools],
            "unknown_toolboxes": list(self.unknown),
            "reads": [str(folder.path) for folder in self.folders] if "fs.read" in self.capabilities else [],
            "writes": [str(folder.path) for folder in plan_text.written(self)],
            "does_not_write": [str(path) for path in self.kept] if "fs.write" in self.capabilities else [],
            "runs_programs": "proc.exec" in self.capabilities,
            "network": "net" in self.capabilities,
            "env": list(self.env),
            "mcp_servers": {name: server.model_dump(mode="json") for name, server in self.servers.items()},
            "members": list(self.members),
            "calls": [called.as_dict() for called in self.calls],
            "output_schema_ref": self.schema_ref,
            "output_schema": self.schema,
            "code": [code.as_dict() for code in self.code],
            "not_trusted": [seen.as_dict() for seen in self.untrusted],
            "risk": self.risk.as_dict(),
            "risk_with_calls": self.risk_with_calls.as_dict() if self.risk_with_calls else None,
            "problems": [problem.text for problem in self.problems],
        }
