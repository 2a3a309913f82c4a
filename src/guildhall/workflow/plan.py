"""The plan of a workflow: describes the commands, agents, capabilities and costs of a start, before the start.

Computes the plan from the workflow, the frame and the plans of its agents, and prints it as a line, a text or JSON.
Does not execute or write anything. Does not plan the runs of single agents (`runs/plan`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.runs.assembly.callees import declared_capabilities
from guildhall.runs.plan.text import LABEL_COLUMNS, escape, format_rows, format_usd
from guildhall.runtimes.catalog import ROWS, Row
from guildhall.workers.registry import choose_model
from guildhall.workflow.definition import NOBODY, in_words
from guildhall.workflow.loader import executed
from guildhall.workflow.model import Values, Workflow, command
from guildhall.workflow.setup import environment
from guildhall.workflow.start import budget_of, check_places, values_of, wakes_nobody

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan.model import ExecutedCode, Plan
    from guildhall.workers.code import Trust
    from guildhall.workers.model import FileTrust


_INDENT = "  "
_DOING = {"fs.read": "reads files", "fs.write": "writes files", "proc.exec": "runs programs", "net": "uses the network"}


def titled(agent: str, runtime: Row) -> str:
    """An agent, and the program of others that executes it, where it is one."""
    return agent if runtime.program is None else f"{agent} ({runtime.title})"


def opening(models: Mapping[str, str], *, commands: int, reach: frozenset[str], budget: float | None) -> str:
    """The line that is said at the start: the agents with their models, and what they can do to the world."""
    parts = [f"agents {', '.join(models)}", f"models {', '.join(dict.fromkeys(map(escape, models.values())))}"]
    parts += [f"runs {'a command' if commands == 1 else f'{commands} commands'} of its own first"] if commands else []
    parts += [said for capability, said in _DOING.items() if capability in reach]
    return "; ".join([*parts, _worst(budget)])


def _rows(plan: WorkflowPlan) -> Iterator[tuple[str, list[str]]]:
    yield "workflow", [f"{plan.workflow}:{plan.tag} ({escape(plan.place)})"]
    if plan.params:
        given = {name: "(to be given)" if value is None else escape(value) for name, value in plan.params.items()}
        yield "params", [f"{name} = {value}" for name, value in given.items()]
    yield "setup", [escape(one) for one in _setup(plan)] or ["none"]
    if plan.setup:
        yield "runs in", [escape(plan.folder)]
        yield "variables", [", ".join(plan.env) or "none"]
    yield "room", [_room(plan)]
    if plan.documents is not None:
        yield "documents", [escape(plan.documents)]
    if plan.database is not None:
        yield "database", [escape(plan.database)]
    yield "kickoff", [escape(one) for one in (plan.kickoff or "none").strip().splitlines()]
    yield "limits", [_worst(plan.budget), *(f"{name}: {value}" for name, value in plan.limits.items())]
    if plan.untrusted_files:
        yield (
            "not trusted",
            [
                f"{escape(s.display_path)} ({s.size:,} bytes, sha256 {s.digest[:16]}): {s.state_text}"
                for s in plan.untrusted_files
            ],
        )
    if plan.doubts:
        yield "warning", [escape(doubt) for doubt in plan.doubts]
    if plan.problems:
        yield "cannot start", [escape(problem) for problem in plan.problems]


def _setup(plan: WorkflowPlan) -> Iterator[str]:
    """Every line of every command, and what becomes of it."""
    for number, step in enumerate(plan.setup, 1):
        kept = f", kept as {step.keeps}" if step.keeps else ""
        yield f"{number}. at most {in_words(step.timeout)}{kept}, outside every sandbox:"
        yield from (f"   $ {one}" for one in step.command.strip("\n").splitlines())


def _room(plan: WorkflowPlan) -> str:
    if plan.room is None:
        return "none: the agents share nothing"
    owner = {None: "everyone writes documents", "elected": "the agents elect who writes documents"}
    return f"{plan.room}; {owner.get(plan.owner, f'only {plan.owner} writes documents')}"


def _worst(budget: float | None) -> str:
    if budget is None:
        return "no budget"
    return f"at most {format_usd(budget)} USD for the workflow; then asks you"


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A command of the setup, as a shell would read it."""

    command: str
    keeps: str | None  # the name under which its output is kept
    timeout: float


@dataclass(frozen=True, kw_only=True)
class PlannedAgent:
    """An agent, and what each of its runs could do."""

    name: str
    wakeup: str | None  # when it runs without being mentioned
    plan: Plan

    def as_dict(self) -> dict[str, Any]:
        return {"agent": self.name, "wakeup": self.wakeup, **self.plan.as_dict()}


@dataclass(frozen=True, kw_only=True)
class WorkflowPlan:
    """What could happen."""

    workflow: str
    tag: str
    place: str
    folder: str  # where its commands run
    setup: tuple[PlannedStep, ...]
    code: ExecutedCode | None  # the file, as far as it is executed
    env: tuple[str, ...]  # names that the commands see
    params: Mapping[str, str | None]  # None: it has to be given
    agents: tuple[PlannedAgent, ...]
    room: str | None  # who keeps what the agents share; None: they share nothing
    documents: str | None  # the folder of documents; None: no files
    owner: str | None  # who alone writes documents; None: everyone may
    database: str | None  # of its own
    kickoff: str | None  # with placeholders
    budget: float | None  # dollars that can be spent before the user is asked; None: no limit
    limits: Mapping[str, int]
    problems: tuple[str, ...] = ()  # why it cannot start as it is
    doubts: tuple[str, ...] = ()  # what may not be meant

    @property
    def untrusted_files(self) -> tuple[FileTrust, ...]:
        """The files that would be executed and are not trusted as they are, each once."""
        own = self.code.files if self.code and not self.code.trusted else ()
        files = {
            seen.path: seen for seen in (*own, *(seen for agent in self.agents for seen in agent.plan.untrusted_files))
        }
        return tuple(seen for seen in files.values() if seen.state != "trusted")

    def line(self) -> str:
        """Return the plan in one line."""
        reach = frozenset[str]().union(*(agent.plan.reach for agent in self.agents))
        models = {titled(agent.name, agent.plan.runtime): agent.plan.model or "not named" for agent in self.agents}
        return opening(models, commands=len(self.setup), reach=reach, budget=self.budget)

    def text(self) -> str:
        """Return the whole plan: the workflow, then each of its agents."""
        parts = [format_rows(_rows(self))]
        for agent in self.agents:
            wakes = [f"{_INDENT}{'wakes':<{LABEL_COLUMNS}}{agent.wakeup}"] if agent.wakeup else []
            lines = [f"{_INDENT}{one}" for one in agent.plan.text().splitlines()]
            parts.append("\n".join([f"agent {agent.name}", *wakes, *lines]))
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
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
            "worst_case_usd": self.budget,
            "not_trusted": [seen.as_dict() for seen in self.untrusted_files],
            "problems": list(self.problems),
            "warnings": list(self.doubts),
        }


@dataclass(frozen=True, kw_only=True)
class Starting:
    """What a workflow is to be started with, as far as that is known."""

    values: Values
    given: Mapping[str, str]  # the params
    problems: tuple[str, ...] = ()  # why it cannot be started with them


def plan(
    workflow: Workflow,
    agents: Mapping[str, Plan],
    starting: Starting,
    *,
    frame: Frame,
    home: Home,
    trust: Trust,
    budget: float | None,
) -> WorkflowPlan:
    """What could happen if this workflow were started like that, its agents as these plans say."""
    definition, values = workflow.definition, starting.values
    documents, database = workflow.documents(values), workflow.database(values)
    of_agents = (f"{name}: {problem.text}" for name, plan in agents.items() for problem in plan.problems)
    return WorkflowPlan(
        workflow=workflow.name,
        tag=values.tag,
        place=workflow.place,
        folder=str(workflow.folder),
        setup=tuple(
            PlannedStep(command=command(step.shell), keeps=step.name, timeout=step.timeout) for step in definition.setup
        ),
        code=executed(workflow, trust, home),
        env=tuple(sorted(environment(workflow, frame))) if definition.setup else (),
        params={name: starting.given.get(name, param.default) for name, param in definition.params.items()},
        agents=tuple(
            PlannedAgent(name=one.name, wakeup=str(one.wakeup) if one.wakeup else None, plan=agents[one.name])
            for one in workflow.agents
        ),
        room=definition.context.provider if definition.context.enabled else None,
        documents=str(documents) if documents else None,
        owner=_owner(workflow),
        database=str(database) if database else None,
        kickoff=definition.kickoff,
        budget=budget,
        limits=definition.limits.model_dump(),
        problems=(*starting.problems, *of_agents),
        doubts=(doubt,) if (doubt := wakes_nobody(workflow)) else (),
    )


def opening_of(workflow: Workflow, request: RunRequest, frame: Frame, settings: Settings) -> str:
    """What could happen, in a line, by the files of its agents alone. `frame` is the workflow's own."""
    models: dict[str, str] = {}
    for agent in workflow.agents:
        name = titled(agent.name, ROWS[agent.worker.definition.runtime])
        try:
            choice = choose_model(agent.worker, frame, settings, caller=request.model, override=request.override_model)
            models[name] = choice.model
        except GuildError:
            models[name] = "not named"
    reach = frozenset[str]().union(*(declared_capabilities(agent.worker) for agent in workflow.agents))
    budget = budget_of(workflow, settings, request.budget)
    return opening(models, commands=len(workflow.definition.setup), reach=reach, budget=budget)


def as_far_as_known(
    workflow: Workflow, *, tag: str, params: Mapping[str, str], frame: Frame, home: Home, settings: Settings
) -> Starting:
    """What it would be started with."""
    problems: list[str] = []
    try:
        values = values_of(workflow, tag=tag, params=params, frame=frame, allowed=settings.env)
    except GuildError as error:
        problems.append(error.message)
        defaults = {name: param.default or name.upper() for name, param in workflow.definition.params.items()}
        known = {**defaults, **{name: value for name, value in params.items() if name in defaults}}
        env = {name: frame.env.get(name, name) for name in workflow.definition.env}
        values = Values(workflow=workflow.name, tag=tag, params=known, env=env)
    try:
        check_places(workflow, values, home, frame)
    except GuildError as error:
        problems.append(error.message)
    return Starting(values=values, given=params, problems=tuple(problems))


def _owner(workflow: Workflow) -> str | None:
    """Who alone writes documents, as far as the file says it."""
    context = workflow.definition.context
    if not context.enabled or len(workflow.agents) == 1 or context.document_owner == NOBODY:
        return None
    return context.document_owner or "elected"
