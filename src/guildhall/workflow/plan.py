"""The plan of a workflow: describes the commands, agents, capabilities and costs of a start, before the start.

Computes the plan from the workflow, the frame and the plans of its agents, and prints it as a line, a text or JSON.
Does not execute or write anything. Does not plan the runs of single agents (`runs/plan`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.runs.assembly.callees import declared_capabilities
from guildhall.runs.plan.text import LABEL_COLUMNS, escape, format_errors, format_rows, format_usd
from guildhall.runtimes.catalog import RUNTIMES, RuntimeInfo
from guildhall.workers.registry import choose_model
from guildhall.workflow.definition import NO_OWNER, format_seconds
from guildhall.workflow.loader import setup_status
from guildhall.workflow.placeholders import Values, shell_command
from guildhall.workflow.setup_commands import command_environment
from guildhall.workflow.start_values import check_paths, no_agent_warning, start_values, team_budget

if TYPE_CHECKING:
    from guildhall.core.config import Settings
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan.model import ExecutedCode, Plan
    from guildhall.workers.code_trust import Trust
    from guildhall.workers.model import FileTrust
    from guildhall.workflow.definition import Definition
    from guildhall.workflow.model import Workflow

_INDENT = "  "
_CAPABILITY_TEXTS = {
    "fs.read": "reads files",
    "fs.write": "writes files",
    "proc.exec": "runs programs",
    "net": "uses the network",
}


def agent_title(agent: str, runtime: RuntimeInfo) -> str:
    """Return the name of an agent with the title of the external program that executes it, if any."""
    return agent if runtime.program is None else f"{agent} ({runtime.title})"


def summary_line(models: Mapping[str, str], *, commands: int, reach: frozenset[str], budget: float | None) -> str:
    """Return the line that a start prints: agents, models, capabilities and the budget."""
    parts = [f"agents {', '.join(models)}", f"models {', '.join(dict.fromkeys(map(escape, models.values())))}"]
    parts += [f"setup: {commands} command{'' if commands == 1 else 's'}"] if commands else []
    parts += [text for capability, text in _CAPABILITY_TEXTS.items() if capability in reach]
    return "; ".join([*parts, _budget_text(budget)])


def _rows(plan: WorkflowPlan) -> Iterator[tuple[str, list[str]]]:
    yield "workflow", [f"{plan.workflow}:{plan.tag} ({escape(plan.place)})"]
    if plan.params:
        given = {name: "(required)" if value is None else escape(value) for name, value in plan.params.items()}
        yield "params", [f"{name} = {value}" for name, value in given.items()]
    yield "setup", [escape(line) for line in _setup_lines(plan)] or ["none"]
    if plan.setup:
        yield "runs in", [escape(plan.folder)]
        yield "variables", [", ".join(plan.env) or "none"]
    yield "room", [_room_text(plan)]
    if plan.documents is not None:
        yield "documents", [escape(plan.documents)]
    if plan.database is not None:
        yield "database", [escape(plan.database)]
    yield "kickoff", [escape(line) for line in (plan.kickoff or "none").strip().splitlines()]
    yield "limits", [_budget_text(plan.enforced_budget), *(f"{name}: {value}" for name, value in plan.limits.items())]
    if plan.untrusted_files:
        yield (
            "not trusted",
            [
                f"{escape(file.display_path)} ({file.size:,} bytes, sha256 {file.digest[:16]}): {file.state_text}"
                for file in plan.untrusted_files
            ],
        )
    if plan.warnings:
        yield "warning", [escape(warning) for warning in plan.warnings]
    if plan.problems:
        yield "cannot start", [*format_errors(plan.problems)]


def _setup_lines(plan: WorkflowPlan) -> Iterator[str]:
    """Yield the lines of every setup command, with its timeout and the name of its output."""
    for number, step in enumerate(plan.setup, 1):
        output = f", output {step.keeps}" if step.keeps else ""
        yield f"{number}. timeout {format_seconds(step.timeout)}{output}, not sandboxed:"
        yield from (f"   $ {line}" for line in step.command.strip("\n").splitlines())


def _room_text(plan: WorkflowPlan) -> str:
    if plan.room is None:
        return "none (the agents share nothing)"
    owner = {None: "all agents write documents", "elected": "the agents elect the document owner"}
    return f"{plan.room}; {owner.get(plan.owner, f'only {plan.owner} writes documents')}"


def _budget_text(budget: float | None) -> str:
    if budget is None:
        return "no budget"
    return f"at most {format_usd(budget)} USD for the workflow; then asks you"


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A command of the setup, as a shell would read it."""

    command: str
    keeps: str | None  # name of the kept output
    timeout: float


@dataclass(frozen=True, kw_only=True)
class PlannedAgent:
    """An agent with the plan of each of its runs."""

    name: str
    wakeup: str | None  # schedule of the agent
    plan: Plan

    def as_dict(self) -> dict[str, Any]:
        return {"agent": self.name, "wakeup": self.wakeup, **self.plan.as_dict()}


@dataclass(frozen=True, kw_only=True)
class WorkflowPlan:
    """The possible effects and costs of a start."""

    workflow: str
    tag: str
    place: str
    folder: str  # working directory of the setup commands
    setup: tuple[PlannedStep, ...]
    code: ExecutedCode | None  # the setup commands, with the trust of the file
    env: tuple[str, ...]  # names of the environment variables of the setup commands
    params: Mapping[str, str | None]  # None for a required param without a value
    agents: tuple[PlannedAgent, ...]
    room: str | None  # the provider, or None if the agents have no room
    documents: str | None  # folder of the documents, or None without files
    owner: str | None  # the only agent that writes documents, or None if all agents write
    database: str | None  # path of a separate database
    kickoff: str | None  # with placeholders
    budget: float | None  # in dollars, or None without a budget
    limits: Mapping[str, int]
    problems: tuple[GuildError, ...] = ()  # that prevent the start
    warnings: tuple[str, ...] = ()

    @property
    def untrusted_files(self) -> tuple[FileTrust, ...]:
        """Return the files that a start would execute and that are not trusted in their current version."""
        own = self.code.files if self.code and not self.code.trusted else ()
        of_agents = (seen for agent in self.agents for seen in agent.plan.untrusted_files)
        files = {seen.path: seen for seen in (*own, *of_agents)}
        return tuple(seen for seen in files.values() if seen.state != "trusted")

    def line(self) -> str:
        """Return the plan in one line."""
        reach = frozenset[str]().union(*(agent.plan.reach for agent in self.agents))
        models = {agent_title(agent.name, agent.plan.runtime): agent.plan.model or "not named" for agent in self.agents}
        return summary_line(models, commands=len(self.setup), reach=reach, budget=self.enforced_budget)

    @property
    def enforced_budget(self) -> float | None:
        """Return the budget, or None if no agent has a model with a price."""
        return self.budget if any(agent.plan.can_cost for agent in self.agents) else None

    def text(self) -> str:
        """Return the whole plan: the workflow, then each of its agents."""
        parts = [format_rows(_rows(self))]
        for agent in self.agents:
            wakes = [f"{_INDENT}{'wakes':<{LABEL_COLUMNS}}{agent.wakeup}"] if agent.wakeup else []
            lines = [f"{_INDENT}{line}" for line in agent.plan.text().splitlines()]
            parts.append("\n".join([f"agent {agent.name}", *wakes, *lines]))
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`."""
        return {
            "workflow": self.workflow,
            "tag": self.tag,
            "file": self.place,
            "setup": {
                "folder": self.folder,
                "env": list(self.env),
                "commands": [asdict(step) for step in self.setup],
                "code": self.code.as_dict() if self.code else None,
            },
            "params": dict(self.params),
            "agents": [agent.as_dict() for agent in self.agents],
            "room": self.room,
            "documents": self.documents,
            "document_owner": self.owner,
            "database": self.database,
            "kickoff": self.kickoff,
            "limits": dict(self.limits),
            "worst_case_usd": self.enforced_budget,
            "not_trusted": [seen.as_dict() for seen in self.untrusted_files],
            "problems": [error.message for error in self.problems],
            "warnings": list(self.warnings),
        }


def make_plan(
    workflow: Workflow,
    agents: Mapping[str, Plan],
    values: Values,
    *,
    params: Mapping[str, str],
    problems: Sequence[GuildError],
    frame: Frame,
    home: Home,
    trust: Trust,
    budget: float | None,
) -> WorkflowPlan:
    """Return the plan of a workflow. `agents` has the plan of each agent."""
    definition = workflow.definition
    documents, database = workflow.documents_folder(values), workflow.database_path(values)
    of_agents = (
        _as_agent_error(name, problem.error, workflow) for name, plan in agents.items() for problem in plan.problems
    )
    return WorkflowPlan(
        workflow=workflow.name,
        tag=values.tag,
        place=workflow.place,
        folder=str(workflow.folder),
        setup=tuple(
            PlannedStep(command=shell_command(step.shell), keeps=step.name, timeout=step.timeout)
            for step in definition.setup
        ),
        code=setup_status(workflow, trust, home),
        env=tuple(sorted(command_environment(workflow, frame))) if definition.setup else (),
        params={name: params.get(name, param.default) for name, param in definition.params.items()},
        agents=tuple(
            PlannedAgent(name=agent.name, wakeup=str(agent.wakeup) if agent.wakeup else None, plan=agents[agent.name])
            for agent in workflow.agents
        ),
        room=definition.context.provider if definition.context.enabled else None,
        documents=str(documents) if documents else None,
        owner=_owner(workflow),
        database=str(database) if database else None,
        kickoff=definition.kickoff,
        budget=budget,
        limits=definition.limits.model_dump(),
        problems=(*problems, *of_agents),
        warnings=(*filter(None, (no_agent_warning(workflow),)), *unlisted_variables(definition)),
    )


def _as_agent_error(name: str, error: GuildError, workflow: Workflow) -> GuildError:
    return type(error)(f"agent {name}: {error.message}", where=error.where or workflow.place, hint=error.hint)


def plan_summary(
    workflow: Workflow, request: RunRequest, frame: Frame, settings: Settings, *, can_cost: bool = True
) -> str:
    """Return the summary line of a start from the worker files alone. `frame` is the frame of the workflow.

    Without `can_cost` no agent has a price, so there is no budget.
    """
    models: dict[str, str] = {}
    for agent in workflow.agents:
        name = agent_title(agent.name, RUNTIMES[agent.worker.definition.runtime])
        try:
            choice = choose_model(agent.worker, frame, settings, caller=request.model, override=request.override_model)
            models[name] = choice.model
        except GuildError:
            models[name] = "not named"
    reach = frozenset[str]().union(*(declared_capabilities(agent.worker) for agent in workflow.agents))
    budget = team_budget(workflow, settings, request.budget) if can_cost else None
    return summary_line(models, commands=len(workflow.definition.setup), reach=reach, budget=budget)


def planned_start(
    workflow: Workflow, *, tag: str, params: Mapping[str, str], frame: Frame, home: Home, settings: Settings
) -> tuple[Values, list[GuildError]]:
    """Return the values of a start, and the problems that prevent it. The name of a missing value replaces it."""
    problems: list[GuildError] = []
    try:
        values = start_values(workflow, tag=tag, params=params, frame=frame, allowed=settings.env)
    except GuildError as error:
        problems.append(error)
        defaults = {name: param.default or name.upper() for name, param in workflow.definition.params.items()}
        known = {**defaults, **{name: value for name, value in params.items() if name in defaults}}
        env = {name: frame.env.get(name, name) for name in workflow.definition.env}
        values = Values(workflow=workflow.name, tag=tag, folder=str(workflow.folder), params=known, env=env)
    try:
        check_paths(workflow, values, home, frame)
    except GuildError as error:
        problems.append(error)
    return values, problems


_VARIABLE = re.compile(r"(?<![\\$])\$\{?([A-Z][A-Z0-9_]*)")
# Variables that the shell sets, or that every setup command has.
_SHELL_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "PWD", "OLDPWD", "IFS"),
        *("RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID"),
    }
)
_SHELL_PREFIXES = ("BASH", "XDG_", "GUILD_", "LC_", "LANG", "TERM", "TZ", "OPT")


def unlisted_variables(definition: Definition) -> tuple[str, ...]:
    """Return a warning for each variable of a setup command that `env` does not list, so that it is empty."""
    warnings: list[str] = []
    for index, step in enumerate(definition.setup):
        assigned = set(re.findall(r"\b([A-Z][A-Z0-9_]*)=|\b(?:for|read|export|local)\s+([A-Z][A-Z0-9_]*)", step.shell))
        known = {*definition.env, *_SHELL_VARIABLES, *(name for names in assigned for name in names)}
        for name in dict.fromkeys(_VARIABLE.findall(step.shell)):
            if name not in known and not name.startswith(_SHELL_PREFIXES):
                warnings.append(f"setup[{index}].shell: ${name} is empty: add `env: [{name}]` to the file")
    return tuple(warnings)


def _owner(workflow: Workflow) -> str | None:
    """Return the document owner by the file: an agent, `elected`, or None if every agent may write."""
    context = workflow.definition.context
    if not context.enabled or len(workflow.agents) == 1 or context.document_owner == NO_OWNER:
        return None
    return context.document_owner or "elected"
