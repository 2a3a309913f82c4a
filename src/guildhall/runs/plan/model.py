"""Plan model: holds the possible effects of a worker, such as tools, folders, code, cost, callees and problems.

Does not collect the facts (`runs.plan.planner`) and does not format them (`runs.plan.text`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.runs.plan import text as plan_text

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.policy.rules import Decision, Mode, Risk
    from guildhall.runs.assembly.preflight import Problem
    from guildhall.runs.model import Bounds
    from guildhall.runtimes.catalog import RuntimeInfo
    from guildhall.runtimes.model import Attachment
    from guildhall.sandbox.view import Folder
    from guildhall.workers.definition import McpServer, ModelSettings
    from guildhall.workers.model import FileTrust


@dataclass(frozen=True, kw_only=True)
class ExecutedCode:
    """Code that a run would execute: a toolbox, the module of an output schema, a test, the setup of a workflow."""

    kind: str
    name: str
    own: bool  # in the home, where code needs no trust
    trusted: bool
    files: tuple[FileTrust, ...]
    commands: tuple[str, ...] = ()  # of a setup

    def as_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"kind": self.kind, "name": self.name, "home": self.own, "trusted": self.trusted}
        data |= {"commands": list(self.commands)} if self.commands else {}
        return {**data, "files": [seen.as_dict() for seen in self.files]}


@dataclass(frozen=True, kw_only=True)
class PlannedTool:
    """A tool as the model will see it, and the decision on its calls."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    capabilities: frozenset[str]
    decision: Decision
    rule: str | None = None  # the rule that decides

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "capabilities": sorted(self.capabilities)}


@dataclass(frozen=True, kw_only=True)
class PlannedCallee:
    """A worker that a run may call, directly or through other workers, with its own plan."""

    name: str
    through: str | None = None  # the worker that calls it, if not the first one
    plan: Plan | None = None
    problem: str | None = None  # why it cannot be called

    def as_dict(self) -> dict[str, Any]:
        plan = self.plan.as_dict() if self.plan else None
        return {"name": self.name, "through": self.through, "problem": self.problem, "plan": plan}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The possible effects and costs of a worker."""

    worker: str
    place: str
    status: str
    runtime: RuntimeInfo
    model: str | None
    settings: ModelSettings
    chosen_by: str | None
    priced: bool | None
    mode: Mode
    bounds: Bounds
    tools: tuple[PlannedTool, ...]
    team_tools: frozenset[str] = frozenset()  # names of the room and base tools of an agent of a workflow
    deferred_tools: frozenset[str] = frozenset()  # names of the tools that the model sees on demand
    unknown: tuple[str, ...] = ()  # toolboxes whose tools are not known
    cwd: Path
    folders: tuple[Folder, ...]
    protected: tuple[Path, ...] = ()  # paths in writable folders that the run cannot write
    env: tuple[str, ...]
    attached: tuple[Attachment, ...] = ()
    called: bool = False  # by another run, whose budget it shares
    is_in_workflow: bool = False  # it shares the budget of the workflow
    servers: Mapping[str, McpServer] = field(default_factory=dict[str, "McpServer"])
    members: tuple[str, ...] = ()
    member_lines: tuple[str, ...] = ()  # descriptions of the members that would be started
    calls: tuple[PlannedCallee, ...] = ()
    project_instructions: str | None = None  # the file of the project in the system prompt
    schema_ref: str | None = None
    schema: Mapping[str, Any] | None = None
    code: tuple[ExecutedCode, ...] = ()
    risk: Risk
    risk_with_calls: Risk | None = None  # with the capabilities of all workers that call each other
    problems: tuple[Problem, ...] = ()

    @property
    def capabilities(self) -> frozenset[str]:
        """Return the capabilities of the tools that no rule forbids, and of the runtime itself."""
        own = frozenset({"net"} if self.runtime.needs_network else ())
        return own.union(*(tool.capabilities for tool in self.tools if tool.decision != "refuse"))

    @property
    def reach(self) -> frozenset[str]:
        """Return the capabilities of the worker and of every worker that it may call."""
        return self.capabilities.union(*(called.plan.capabilities for called in self.calls if called.plan))

    @property
    def untrusted_files(self) -> tuple[FileTrust, ...]:
        """Return the files that would be executed and are not trusted in their current version, each once."""
        plans = [self, *(called.plan for called in self.calls if called.plan)]
        files = {seen.path: seen for plan in plans for code in plan.code if not code.trusted for seen in code.files}
        return tuple(seen for seen in files.values() if seen.state != "trusted")

    @property
    def can_cost(self) -> bool:
        """Return False if the model and all workers that the run may call are known to have no price."""
        if self.priced is not False or any(tool.name == "worker_create" for tool in self.tools):
            return True
        return any(callee.plan.priced is not False if callee.plan else callee.problem is None for callee in self.calls)

    @property
    def max_cost_usd(self) -> float | None:
        """Return the maximum cost before the run fails or asks the user, or None if no limit can be enforced."""
        if self.calls and not self.can_cost:
            return None
        limits = (self.bounds.max_budget_usd, self.bounds.budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def line(self) -> str:
        return plan_text.format_line(self)

    def text(self) -> str:
        return plan_text.format_rows(plan_text.plan_rows(self))

    def as_dict(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "file": self.place,
            "status": self.status,
            "runtime": self.runtime.as_dict(),
            "model": self.model,
            "model_chosen_by": self.chosen_by,
            "model_settings": {**self.settings.declared_values(), "cache": self.settings.cache},
            "priced": self.priced,
            "mode": self.mode,
            "limits": asdict(self.bounds),
            "worst_case_usd": self.max_cost_usd,
            "tools": [tool.as_dict() for tool in self.tools],
            "deferred_tools": sorted(self.deferred_tools),
            "unknown_toolboxes": list(self.unknown),
            "reads": [str(folder.path) for folder in self.folders] if "fs.read" in self.capabilities else [],
            "writes": [str(folder.path) for folder in plan_text.writable_folders(self)],
            "does_not_write": [str(path) for path in self.protected] if "fs.write" in self.capabilities else [],
            "runs_programs": "proc.exec" in self.capabilities,
            "network": "net" in self.capabilities,
            "env": list(self.env),
            "mcp_servers": {name: server.model_dump(mode="json") for name, server in self.servers.items()},
            "members": list(self.members),
            "calls": [called.as_dict() for called in self.calls],
            "project_instructions": self.project_instructions,
            "output_schema_ref": self.schema_ref,
            "output_schema": self.schema,
            "code": [code.as_dict() for code in self.code],
            "not_trusted": [seen.as_dict() for seen in self.untrusted_files],
            "risk": self.risk.as_dict(),
            "risk_with_calls": self.risk_with_calls.as_dict() if self.risk_with_calls else None,
            "problems": [problem.text for problem in self.problems],
        }
