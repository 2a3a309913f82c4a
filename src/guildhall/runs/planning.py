"""Works out what could happen if a worker ran: its plan, before anything does.

A pure function of the worker, the frame and what is known here. Nothing is run, nothing is written, nobody is asked:
what has to be found out first (the tools of a toolbox that may run, the schema of a model) is handed in as facts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.policy.judge import judge
from guildhall.policy.model import Action, Rule
from guildhall.policy.risk import Risk, judge_risk, rules_against_risk
from guildhall.runs.arrange import bounds_of, expected_tools, keeps_budget, kept_in, permitted, tools_of, view_of
from guildhall.runs.create import TOOL as CREATE
from guildhall.runs.fit import fitting, refuse_unguarded, with_own
from guildhall.runs.model import RunRequest
from guildhall.runs.plan import Called, Plan, PlannedTool, PlanProblem
from guildhall.runs.reach import Reached, declared, reached
from guildhall.runs.supply import with_one_sandbox_each
from guildhall.runtimes.catalog import ROWS
from guildhall.tools.builtin import Surroundings
from guildhall.workers.choose import choose_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.policy.model import Mode
    from guildhall.runs.assembled import Assembled
    from guildhall.runs.plan import Executes
    from guildhall.tools.model import Folder, Tool
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a worker's file alone does not say. A toolbox whose tools are not here is one whose tools are unknown."""

    system: tuple[Tool, ...] = ()  # what it has without declaring it
    toolboxes: Mapping[str, Sequence[Tool]] = field(default_factory=dict[str, "Sequence[Tool]"])
    code: tuple[Executes, ...] = ()
    schema: Mapping[str, Any] | None = None
    members: tuple[str, ...] = ()  # what is known of those that it names, in words
    problems: tuple[PlanProblem, ...] = ()  # what it declares and cannot be given


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
        runtime=ROWS[worker.definition.runtime],
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
        choice = fitting(worker, choose_model(worker, frame, known.settings, caller=asked, override=override))
        model, by = choice.model, choice.by
    except GuildError as error:
        problems.insert(0, PlanProblem("model", error.message))
    priced = known.priced(model) if model else None
    kept = keeps_budget(worker, priced=priced is not False)
    bounds = bounds_of(worker, known.settings, request, priced=kept, called=called)
    if priced is False and (definition.limits.max_budget_usd or (request and request.budget)):
        text = f"the model {model} has no known price, so a limit in dollars cannot be kept"
        problems.append(PlanProblem("model", text))
    by_name = with_own(worker, arranged.permitted)
    try:
        refuse_unguarded(worker, arranged.permitted, around)
    except GuildError as error:
        problems.append(PlanProblem("risk", error.message))
    guards = rules_against_risk(by_name, accepted=definition.accepts_risk, around=around)
    mode = request.mode if request else "ask"
    return Plan(
        worker=worker.name,
        place=worker.place,
        status=worker.status,
        runtime=ROWS[worker.definition.runtime],
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
