"""The plan: what could happen if a worker ran, before anything does.

A pure function of the worker, the frame and what is known here. Nothing is run, nothing is written, nobody is asked:
what has to be found out first (the tools of a toolbox that may run, the schema of a model) is handed in as facts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.policy.judge import judge
from guildhall.policy.model import Action, Rule
from guildhall.policy.risk import Risk, judge_risk, rules_against_risk
from guildhall.runs import plan_text
from guildhall.runs.arrange import bounds_of, expected_tools, keeps_budget, kept_in, permitted, tools_of, view_of
from guildhall.runs.create import TOOL as CREATE
from guildhall.runs.model import RunRequest
from guildhall.runs.reach import Reached, declared, reached
from guildhall.runs.supply import with_one_sandbox_each
from guildhall.tools.builtin import Surroundings
from guildhall.workers.choose import choose_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.policy.model import Decision, Mode
    from guildhall.runs.assembled import Assembled
    from guildhall.runs.model import Bounds
    from guildhall.runtimes.model import Attachment
    from guildhall.tools.model import Folder, Tool
    from guildhall.workers.definition import McpServer
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Seen


@dataclass(frozen=True, kw_only=True)
class Executes:
    """What would be executed: a toolbox, the module of an output schema, a test, the setup of a workflow."""

    kind: str
    name: str
    own: bool  # in the home: it needs no trust
    trusted: bool  # it may run
    files: tuple[Seen, ...]
    commands: tuple[str, ...] = ()  # of a setup

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"kind": self.kind, "name": self.name, "home": self.own, "trusted": self.trusted}
        told |= {"commands": list(self.commands)} if self.commands else {}
        return {**told, "files": [seen.as_dict() for seen in self.files]}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a worker's file alone does not say. A toolbox whose tools are not here is one whose tools are unknown."""

    system: tuple[Tool, ...] = ()  # what it has without declaring it
    toolboxes: Mapping[str, Sequence[Tool]] = field(default_factory=dict[str, "Sequence[Tool]"])
    code: tuple[Executes, ...] = ()
    schema: Mapping[str, Any] | None = None
    members: tuple[str, ...] = ()  # what is known of those that it names, in words
    problems: tuple[str, ...] = ()  # what it declares and cannot be given


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known here."""

    home: Home
    locked: tuple[Path, ...] = ()  # the files of workers that are locked
    environ: Mapping[str, str]
    settings: Settings
    find: Callable[[str], Worker]  # a worker by its name; GuildError: there is none that can be used
    active: Callable[[], Sequence[Worker]]  # those that `*` reaches
    facts: Callable[[Worker], Facts]
    priced: Callable[[str], bool | None]  # whether a model has a price; None: that cannot be known


@dataclass(frozen=True, kw_only=True)
class PlannedSeat:
    """A place in a team: the tools that it gives, and what the others there can do to the world."""

    tools: tuple[Tool, ...] = ()
    around: frozenset[str] = frozenset()


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
    problems: tuple[str, ...] = ()  # why it cannot run as it is

    @property
    def capabilities(self) -> frozenset[str]:
        """What its tools can do to the world, those that its rules forbid left out."""
        return frozenset[str]().union(*(tool.capabilities for tool in self.tools if tool.decision != "refuse"))

    @property
    def reach(self) -> frozenset[str]:
        """What it and all that it may call can do to the world."""
        return self.capabilities.union(*(called.plan.capabilities for called in self.calls if called.plan))

    @property
    def untrusted(self) -> tuple[Seen, ...]:
        """The files that would be executed and are not trusted as they are, each once."""
        plans = [self, *(called.plan for called in self.calls if called.plan)]
        files = {seen.path: seen for plan in plans for code in plan.code if not code.trusted for seen in code.files}
        return tuple(seen for seen in files.values() if seen.standing != "trusted")

    @property
    def worst_usd(self) -> float | None:
        """The dollars that can be spent before a person is asked or the run ends; None: no limit."""
        limits = (self.bounds.max_budget_usd, self.bounds.budget)
        return min((limit for limit in limits if limit is not None), default=None)

    def line(self) -> str:
        """The plan in one line."""
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
            "model": self.model,
            "model_chosen_by": self.chosen_by,
            "priced": self.priced,
            "mode": self.mode,
            "limits": self.bounds.as_dict(),
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
            "problems": list(self.problems),
        }


def plan(
    worker: Worker, frame: Frame, known: Known, request: RunRequest | None = None, seat: PlannedSeat | None = None
) -> Plan:
    """What could happen if this worker ran here, it and all that it may call. In a `seat` it has the team's budget."""
    others = reached(worker, known.find, known.active)
    arranged = {one.worker.identity: _arranged(one.worker, frame, known) for one in others if one.worker}
    own = _arranged(worker, frame, known)
    can = {worker.identity: frozenset[str]().union(*own.permitted.values())}
    can |= {one.worker.identity: declared(one.worker) for one in others if one.worker}
    around = _around(worker, can) | (seat.around if seat else frozenset[str]())
    mine = _planned(worker, own, frame, known, around, request, called=seat is not None)
    override = request.override_model if request else None
    passed_on = RunRequest(worker="", input="", model=mine.model, override_model=override, mode=mine.mode)
    calls = tuple(_called(one, worker, arranged, frame, known, can, passed_on) for one in others)
    together = _together([mine, *(called.plan for called in calls if called.plan)]) if calls else None
    return replace(mine, calls=calls, risk_with_calls=together, seated=seat is not None)


def plan_of_run(assembled: Assembled, model: str, *, priced: bool, called: bool = False) -> Plan:
    """The plan of a run that is assembled: all is known. `called`: by another run, whose dollars it spends."""
    worker, view = assembled.worker, assembled.surroundings.view
    by_name = permitted(assembled.tools, assembled.surroundings.forbidden)
    return Plan(
        worker=worker.name,
        place=worker.place,
        status=worker.status,
        model=model,
        chosen_by=None,
        priced=priced,
        mode=assembled.mode,
        bounds=assembled.bounds,
        tools=_judged(assembled.tools, assembled.rules, assembled.mode),
        attached=assembled.attachments,
        called=called,
        cwd=view.cwd,
        folders=view.folders,
        kept=kept_in(view),
        env=tuple(sorted(assembled.surroundings.env)),
        schema_ref=worker.definition.output_schema_ref,
        schema=assembled.output_schema,
        calls=tuple(Called(name=name) for name in worker.definition.allow_workers),
        risk=judge_risk(by_name, accepted=worker.definition.accepts_risk),
    )


@dataclass(frozen=True, kw_only=True)
class _Arranged:
    """A worker's tools, and where they work."""

    tools: tuple[Tool, ...]
    surroundings: Surroundings
    facts: Facts

    @property
    def permitted(self) -> dict[str, frozenset[str]]:
        return permitted(self.tools, self.surroundings.forbidden)


def _arranged(worker: Worker, frame: Frame, known: Known) -> _Arranged:
    """What cannot be had is left out: that it is lacking is among the facts."""
    facts = known.facts(worker)
    folders: list[Folder] = []
    for one in with_one_sandbox_each(worker):
        with suppress(GuildError):
            folders += one.folders(frame)
    web_search = known.settings.web_search
    surroundings = Surroundings(
        view=view_of(worker, folders, frame, known.home, known.locked),
        env=dict(frame.env),
        web_search=web_search.model_dump() if web_search else None,
        environ=known.environ,
        forbidden=frozenset(rule.name for rule in worker.rules if not rule.allowed),
    )
    try:
        tools = tools_of(worker, surroundings, system=facts.system, toolboxes=facts.toolboxes)
    except GuildError:  # no search engine: all the others are known nevertheless
        tools = tools_of(worker, surroundings, system=facts.system, toolboxes=facts.toolboxes, without=("WebSearch",))
    tools += expected_tools(worker, surroundings)
    return _Arranged(tools=tools, surroundings=surroundings, facts=facts)


def _planned(
    worker: Worker,
    arranged: _Arranged,
    frame: Frame,
    known: Known,
    around: frozenset[str],
    request: RunRequest | None,
    *,
    called: bool = False,
) -> Plan:
    """The plan of one worker alone; `around` is what all the others can do. Where it is `called` by another one, the
    request has what that one hands on.
    """
    definition, problems = worker.definition, list(arranged.facts.problems)
    model = by = None
    try:
        asked, override = (request.model, request.override_model) if request else (None, None)
        choice = choose_model(worker, frame, known.settings, caller=asked, override=override)
        model, by = choice.model, choice.by
    except GuildError as error:
        problems.insert(0, error.message)
    priced = known.priced(model) if model else None
    kept = keeps_budget(worker, priced=priced is not False)
    bounds = bounds_of(worker, known.settings, request, priced=kept, called=called)
    if priced is False and (definition.limits.max_budget_usd or (request and request.budget)):
        problems.append(f"the model {model} has no known price, so a limit in dollars cannot be kept")
    by_name = arranged.permitted
    guards = rules_against_risk(by_name, accepted=definition.accepts_risk, around=around)
    mode = request.mode if request else "ask"
    return Plan(
        worker=worker.name,
        place=worker.place,
        status=worker.status,
        model=model,
        chosen_by=by,
        priced=priced,
        mode=mode,
        bounds=bounds,
        tools=_judged(arranged.tools, (*worker.rules, *guards), mode),
        unknown=tuple(name for name in definition.toolboxes if name not in arranged.facts.toolboxes),
        cwd=arranged.surroundings.view.cwd,
        folders=arranged.surroundings.view.folders,
        kept=kept_in(arranged.surroundings.view),
        env=tuple(sorted(arranged.surroundings.env)),
        called=called,
        servers=definition.mcp_servers,
        members=definition.members,
        member_lines=arranged.facts.members,
        schema_ref=definition.output_schema_ref,
        schema=arranged.facts.schema,
        code=arranged.facts.code,
        risk=judge_risk(by_name, accepted=definition.accepts_risk),
        risk_with_calls=judge_risk(by_name, accepted=definition.accepts_risk, around=around),
        problems=tuple(problems),
    )


def _called(
    one: Reached,
    first: Worker,
    arranged: Mapping[str, _Arranged],
    frame: Frame,
    known: Known,
    can: Mapping[str, frozenset[str]],
    passed_on: RunRequest,
) -> Called:
    through = one.through if one.through != first.name else None
    if one.worker is None:
        return Called(name=one.name, through=through, problem=one.problem)
    mine = arranged[one.worker.identity]
    planned = _planned(one.worker, mine, frame, known, _around(one.worker, can), passed_on, called=True)
    return Called(name=one.name, through=through, plan=planned, problem=one.problem)


def _around(worker: Worker, can: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """What all others that it runs with can do to the world."""
    return frozenset[str]().union(
        *(capabilities for identity, capabilities in can.items() if identity != worker.identity)
    )


def _judged(tools: Sequence[Tool], rules: Sequence[Rule], mode: Mode) -> tuple[PlannedTool, ...]:
    rules = (*rules, Rule(name=CREATE, approval_required=True))  # it asks by itself, whatever the rules say
    found: list[PlannedTool] = []
    for tool in tools:
        verdict = judge(Action(tool=tool.name, capabilities=tool.capabilities), rules, mode)
        found.append(
            PlannedTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                capabilities=tool.capabilities,
                decision=verdict.decision,
                rule=verdict.rule,
            )
        )
    return tuple(found)


def _together(plans: Sequence[Plan]) -> Risk:
    """The verdict on workers that call each other: what one of them has read, another can carry out."""
    risks = [(plan.worker, plan.risk_with_calls or plan.risk) for plan in plans]
    private = any(risk.private for _, risk in risks)
    outward = [(worker, risk) for worker, risk in risks if risk.private or not private]
    return Risk(
        private=private,
        outward=tuple(f"{name} of {worker}" for worker, risk in outward for name in risk.outward),
        guarded=tuple(f"{name} of {worker}" for worker, risk in risks for name in risk.guarded),
    )
