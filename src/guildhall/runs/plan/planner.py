"""Planner: collects the facts about a worker and its callees, and computes the plan.

A full plan imports trusted toolboxes and output models in confined child processes without any permissions. A quick
plan starts no process, and leaves their tools and schemas unknown.

Does not start MCP servers, members or activation functions.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotTrusted
from guildhall.policy.rules import Action, Mode, Risk, Rule, judge, judge_risk, rules_against_risk
from guildhall.runs.assembly.callees import CREATE, Reached, declared, keeps_budget, reached
from guildhall.runs.assembly.preflight import (
    Supply,
    fitting,
    refuse_unguarded,
    schema_of_model,
    with_one_sandbox_each,
    with_own,
)
from guildhall.runs.assembly.tool_set import (
    bounds_of,
    expected_of_member,
    expected_tools,
    kept_in,
    permitted,
    surroundings_of,
    tools_of,
    view_of,
)
from guildhall.runs.model import RunRequest
from guildhall.runs.plan.model import Called, Executes, Plan, PlannedTool, PlanProblem
from guildhall.runtimes.catalog import ROWS
from guildhall.tools.executor import Surroundings
from guildhall.workers.registry import choose_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.sandbox.view import Folder
    from guildhall.tools.model import Tool
    from guildhall.workers.code import Code
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
            folders += one.sandbox_folders(frame)
    view = view_of(worker, folders, frame, known.home, known.locked)
    surroundings = surroundings_of(worker, frame, view, known.settings, known.environ)
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


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes the plans of one hall."""

    assembler: Assembler
    priced: Callable[[str, Frame], bool | None]

    @property
    def supply(self) -> Supply:
        return self.assembler.supply

    async def plan(
        self, worker: Worker, frame: Frame, request: RunRequest | None = None, *, seat: PlannedSeat | None = None
    ) -> Plan:
        """The plan of a worker, which need not be saved anywhere, and of all that it may call. `seat`: in a team."""
        boxes: dict[Path, Sequence[Tool]] = {}
        own = "room" if seat is not None else "run"
        known = self._known(frame, lambda one: facts[one.identity])
        others = (one.worker for one in reached(worker, known.find, known.active) if one.worker)
        everyone = {one.identity: one for one in (worker, *others)}
        context = {identity: own if identity == worker.identity else "called" for identity in everyone}
        facts = {id: await self._learned(one, frame, context[id], boxes) for id, one in everyone.items()}
        if seat is not None:
            own = facts[worker.identity]
            facts[worker.identity] = replace(own, system=(*own.system, *seat.tools))
        return plan(worker, frame, known, request, seat)

    def at_once(self, worker: Worker, frame: Frame, request: RunRequest | None = None) -> Plan:
        """The same without a child process: the tools of toolboxes and the schemas of models stay unknown."""

        def read(one: Worker) -> Facts:
            return self._read(one, frame, "run" if one.identity == worker.identity else "called")

        return plan(worker, frame, self._known(frame, read), request)

    def _known(self, frame: Frame, facts: Callable[[Worker], Facts]) -> Known:
        return Known(
            home=self.supply.home,
            locked=tuple(self.supply.locked()),
            environ=self.supply.environ,
            settings=self.supply.settings(frame),
            find=lambda name: self.assembler.find(name, frame),
            active=lambda: self.assembler.active(frame),
            facts=facts,
            priced=lambda model: self.priced(model, frame),
        )

    def _read(self, worker: Worker, frame: Frame, context: str) -> Facts:
        """What can be read: nothing of the worker's code is run."""
        trust = self.supply.trust()
        found, _ = self.supply.code_of(worker, frame)
        code = tuple(
            Executes(
                kind=one.kind, name=one.name, own=one.is_own, trusted=trust.is_trusted(one), files=trust.files(one)
            )
            for one in found
        )
        lacking = self.supply.lacking(worker, frame)
        outside = self.supply.outsiders(worker, frame)
        return Facts(
            system=(
                *self.assembler.base_tools(worker, frame, context, run="", model=""),
                *self.assembler.tree_tools(worker, frame),
                *outside.tools,
            ),
            toolboxes={name: (expected_of_member(name),) for name in outside.toolboxes},
            members=outside.lines,
            code=code,
            schema=self.supply.schema_in_file(worker, frame),
            problems=tuple(PlanProblem("missing", one.message) for one in lacking if not isinstance(one, NotTrusted)),
        )

    async def _learned(self, worker: Worker, frame: Frame, context: str, boxes: dict[Path, Sequence[Tool]]) -> Facts:
        """What can be read, and what code that may run says about itself. `boxes` has what is known already."""
        facts, trust = self._read(worker, frame, context), self.supply.trust()
        toolboxes = dict(facts.toolboxes)
        schema, problems = facts.schema, list(facts.problems)
        for code in self.supply.code_of(worker, frame)[0]:
            if code.kind in ("server", "member", "activation") or not trust.is_trusted(code):
                continue  # nothing is started for a plan
            try:
                if code.kind == "module":
                    schema = await schema_of_model(worker, code)
                else:
                    toolboxes[code.name] = await self._tools(worker, code, frame, boxes)
            except GuildError as error:
                if code.kind == "toolbox":
                    problems.append(PlanProblem("toolbox", f"{code.name}: {error.message}"))
                else:
                    problems.append(PlanProblem("schema", error.message))
        return replace(facts, toolboxes=toolboxes, schema=schema, problems=tuple(problems))

    async def _tools(
        self, worker: Worker, code: Code, frame: Frame, boxes: dict[Path, Sequence[Tool]]
    ) -> Sequence[Tool]:
        place = code.folder or code.files[0].path
        if place not in boxes:
            nothing = Surroundings(view=view_of(worker, (), frame, self.supply.home))
            boxes[place] = (await self.assembler.describe(code, nothing)).tools
        return boxes[place]
