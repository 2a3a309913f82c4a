"""Planner: collects the facts about a worker and its callees, and computes the plan.

A full plan imports trusted toolboxes and output models in confined child processes without any permissions. A quick
plan starts no process, and leaves their tools and schemas unknown.

Does not start MCP servers, members or activation functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotTrusted
from guildhall.policy.rules import Action, Mode, Risk, Rule, assess_risk, judge
from guildhall.runs.assembly import tools_and_folders
from guildhall.runs.assembly.callees import CREATE, Callee, can_cost, declared_capabilities, find_callees
from guildhall.runs.assembly.preflight import (
    Preflight,
    Problem,
    adapt_model,
    add_runtime_capabilities,
    check_exfiltration,
    load_model_schema,
    split_by_sandbox,
)
from guildhall.runs.assembly.project_instructions import FILES, read_project_instructions
from guildhall.runs.model import RunRequest
from guildhall.runs.plan.model import ExecutedCode, Plan, PlannedCallee, PlannedTool
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.tools.call_router import ToolEnvironment
from guildhall.workers.registry import choose_model

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.sandbox.view import Folder
    from guildhall.tools.model import Tool
    from guildhall.workers.lifecycle import Use
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """Facts about a worker that are not in its file. The tools of a toolbox that is missing here are unknown."""

    system: tuple[Tool, ...] = ()  # the tools to call workers and members
    base: tuple[Tool, ...] = ()  # the base toolbox
    toolboxes: Mapping[str, Sequence[Tool]] = field(default_factory=dict[str, "Sequence[Tool]"])
    code: tuple[ExecutedCode, ...] = ()
    schema: Mapping[str, Any] | None = None
    members: tuple[str, ...] = ()  # descriptions of the members that it names
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """The resources and lookups that plans are computed with."""

    home: Home
    locked: tuple[Path, ...] = ()  # the files of locked workers
    environ: Mapping[str, str]
    settings: Settings
    find_worker: Callable[[str], Worker]  # by name; raises GuildError if the worker cannot be used
    list_active_workers: Callable[[], Sequence[Worker]]  # the workers that `*` stands for
    find_facts: Callable[[Worker], WorkerFacts]
    has_price: Callable[[str], bool | None]  # None if the price of a model cannot be known


@dataclass(frozen=True, kw_only=True)
class TeamContext:
    """The tools that a workflow adds to an agent, the capabilities of its other agents, and how it starts the agent."""

    tools: tuple[Tool, ...] = ()
    deferred: frozenset[str] = frozenset()  # names of the tools that the model sees on demand
    around: frozenset[str] = frozenset()
    use: Use = "name"
    has_budget: bool = False  # from the user or the workflow file


def plan(
    worker: Worker,
    frame: Frame,
    context: PlanContext,
    request: RunRequest | None = None,
    team: TeamContext | None = None,
) -> Plan:
    """Return the plan of a worker and of every worker that it may call. An agent of a `team` shares its budget."""
    callees = find_callees(worker, context.find_worker, context.list_active_workers)
    own = _prepare(worker, frame, context)
    capabilities = {worker.identity: frozenset[str]().union(*own.permitted_capabilities.values())}
    capabilities |= {
        callee.worker.identity: declared_capabilities(callee.worker) for callee in callees if callee.worker
    }

    def capabilities_around(worker: Worker) -> frozenset[str]:
        """Return the capabilities of all other workers of this plan."""
        return frozenset[str]().union(*(can for identity, can in capabilities.items() if identity != worker.identity))

    def plan_callee(callee: Callee) -> PlannedCallee:
        through = callee.through if callee.through != worker.name else None
        if callee.worker is None:
            return PlannedCallee(name=callee.name, through=through, problem=callee.problem)
        prepared = _prepare(callee.worker, frame, context)
        planned = _plan_alone(prepared, frame, context, capabilities_around(callee.worker), passed_on, called=True)
        return PlannedCallee(name=callee.name, through=through, plan=planned, problem=callee.problem)

    of_team = team.around if team else frozenset[str]()
    mine = _plan_alone(own, frame, context, capabilities_around(worker) | of_team, request, called=team is not None)
    override = request.override_model if request else None
    passed_on = RunRequest(worker="", input="", model=mine.model, override_model=override, mode=mine.mode)
    calls = tuple(map(plan_callee, callees))
    risk = _join_risks([mine, *(callee.plan for callee in calls if callee.plan)]) if calls else None
    mine = replace(mine, calls=calls, risk_with_calls=risk)
    if team is None:
        return mine
    names = frozenset(tool.name for tool in (*team.tools, *context.find_facts(worker).base))
    return replace(mine, is_in_workflow=True, team_tools=names, deferred_tools=team.deferred)


def plan_of_run(assembled: Assembled, model: str, *, priced: bool, called: bool = False) -> Plan:
    """Return the plan of an assembled run. `called`: by another run, whose budget it shares."""
    worker, view = assembled.worker, assembled.environment.view
    by_name = tools_and_folders.permitted_capabilities(assembled.tools, assembled.environment.forbidden)
    return Plan(
        worker=worker.name,
        place=worker.place,
        status=worker.status,
        runtime=RUNTIMES[worker.definition.runtime],
        model=model,
        settings=worker.definition.model_settings,
        chosen_by=None,
        priced=priced,
        mode=assembled.mode,
        bounds=assembled.bounds,
        tools=_judge_tools(assembled.tools, assembled.rules, assembled.mode),
        attached=assembled.attachments,
        called=called,
        cwd=view.cwd,
        folders=view.folders,
        protected=tools_and_folders.protected_paths(view),
        env=tuple(sorted(assembled.environment.env)),
        schema_ref=worker.definition.output_schema_ref,
        schema=assembled.output_schema,
        calls=tuple(PlannedCallee(name=name) for name in worker.definition.allow_workers),
        risk=assess_risk(by_name, accepted=worker.definition.accepts_risk),
    )


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A worker with its tools and their environment."""

    worker: Worker
    tools: tuple[Tool, ...]
    environment: ToolEnvironment
    facts: WorkerFacts

    @property
    def permitted_capabilities(self) -> dict[str, frozenset[str]]:
        return tools_and_folders.permitted_capabilities(self.tools, self.environment.forbidden)


def _prepare(worker: Worker, frame: Frame, context: PlanContext) -> _Prepared:
    """Collect the available tools of a worker. Its facts list the missing tools as problems."""
    facts = context.find_facts(worker)
    folders: list[Folder] = []
    for part in split_by_sandbox(worker):
        with suppress(GuildError):
            folders += part.sandbox_folders(frame)
    view = tools_and_folders.make_view(worker, folders, frame, context.home, context.locked)
    environment = tools_and_folders.make_tool_environment(worker, frame, view, context.settings, context.environ)
    collect = partial(
        tools_and_folders.collect_tools,
        worker,
        environment,
        system=(*facts.system, *facts.base),
        toolboxes=facts.toolboxes,
    )
    try:
        tools = collect()
    except GuildError:  # no search engine
        tools = collect(excluded=("WebSearch",))
    tools += tools_and_folders.placeholder_tools(worker, environment)
    return _Prepared(worker=worker, tools=tools, environment=environment, facts=facts)


def _plan_alone(
    prepared: _Prepared,
    frame: Frame,
    context: PlanContext,
    around: frozenset[str],
    request: RunRequest | None,
    *,
    called: bool,
) -> Plan:
    """Return the plan of one worker. `around`: capabilities of other workers. `called`: the request is its caller's."""
    worker, facts, view = prepared.worker, prepared.facts, prepared.environment.view
    definition, problems = worker.definition, list(facts.problems)
    model = by = None
    with suppress(GuildError):  # a problem in `facts`
        asked, override = (request.model, request.override_model) if request else (None, None)
        choice = adapt_model(worker, choose_model(worker, frame, context.settings, caller=asked, override=override))
        model, by = choice.model, choice.by
    priced = context.has_price(model) if model else None
    keeps_budget = can_cost(worker, priced=priced is not False)
    by_name = add_runtime_capabilities(worker, prepared.permitted_capabilities)
    unknown = tuple(name for name in definition.toolboxes if name not in facts.toolboxes)
    if not unknown:
        rules = worker.unknown_rules(tool.name for tool in prepared.tools)
        problems += [Problem("rule", error) for error in rules]
    try:
        check_exfiltration(worker, prepared.permitted_capabilities, around)
    except GuildError as error:
        problems.append(Problem("risk", error))
    risk_with_calls = assess_risk(by_name, accepted=definition.accepts_risk, others=around)
    mode = request.mode if request else "ask"
    return Plan(
        worker=worker.name,
        place=worker.place,
        status=worker.status,
        runtime=RUNTIMES[definition.runtime],
        model=model,
        settings=definition.model_settings,
        chosen_by=by,
        priced=priced,
        mode=mode,
        bounds=tools_and_folders.make_bounds(worker, context.settings, request, priced=keeps_budget, called=called),
        tools=_judge_tools(prepared.tools, (*worker.rules, *risk_with_calls.rules), mode),
        unknown=unknown,
        cwd=view.cwd,
        folders=view.folders,
        protected=tools_and_folders.protected_paths(view),
        env=tuple(sorted(prepared.environment.env)),
        called=called,
        servers=definition.mcp_servers,
        members=definition.members,
        member_lines=facts.members,
        project_instructions=_find_project_instructions(worker, frame),
        schema_ref=definition.output_schema_ref,
        schema=facts.schema,
        code=facts.code,
        risk=assess_risk(by_name, accepted=definition.accepts_risk),
        risk_with_calls=risk_with_calls,
        problems=tuple(problems),
    )


def _find_project_instructions(worker: Worker, frame: Frame) -> str | None:
    if not worker.definition.project_instructions:
        return None
    return str(read_project_instructions(frame.root) or f"no {' or '.join(FILES)}")


def _judge_tools(tools: Sequence[Tool], rules: Sequence[Rule], mode: Mode) -> tuple[PlannedTool, ...]:
    rules = (*rules, Rule(name=CREATE, approval_required=True))  # the creation of a worker always asks
    verdicts = (judge(Action(tool=tool.name, capabilities=tool.capabilities), rules, mode) for tool in tools)
    return tuple(
        PlannedTool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.input_schema,
            capabilities=tool.capabilities,
            decision=verdict.decision,
            rule=verdict.rule,
        )
        for tool, verdict in zip(tools, verdicts, strict=True)
    )


def _join_risks(plans: Sequence[Plan]) -> Risk:
    """Return the risk of workers that call each other: one can send out the data that another has read."""
    risks = [(plan.worker, plan.risk_with_calls or plan.risk) for plan in plans]
    private = any(risk.reads_private for _, risk in risks)
    outward = [(worker, risk) for worker, risk in risks if risk.reads_private or not private]
    return Risk(
        reads_private=private,
        outward=tuple(f"{name} of {worker}" for worker, risk in outward for name in risk.outward),
        guarded=tuple(f"{name} of {worker}" for worker, risk in risks for name in risk.guarded),
    )


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Computes the plans of one hall."""

    assembler: Assembler

    @property
    def preflight(self) -> Preflight:
        return self.assembler.preflight

    async def plan(
        self, worker: Worker, frame: Frame, request: RunRequest | None = None, *, team: TeamContext | None = None
    ) -> Plan:
        """Return the full plan of a worker, which need not be saved. `team`: it is an agent of a workflow."""
        return await self._plan(worker, frame, request, team, {})

    async def quick_plan(self, worker: Worker, frame: Frame, request: RunRequest | None = None) -> Plan:
        """Return a plan without starting a process: the tools of toolboxes and schemas of models stay unknown."""
        return await self._plan(worker, frame, request, None, None)

    async def _plan(
        self,
        worker: Worker,
        frame: Frame,
        request: RunRequest | None,
        team: TeamContext | None,
        known: dict[Path, Sequence[Tool]] | None,
    ) -> Plan:
        """Return a plan. `known`: the described toolboxes, or None to execute no code."""
        request, of_team = request or RunRequest(worker=worker.name, input=""), team or TeamContext()
        context = self._context(frame, lambda planned: facts[planned.identity])
        limits = (request.budget, request.max_budget_usd, worker.definition.limits.max_budget_usd)
        needs_price = of_team.has_budget or any(limit is not None for limit in limits)
        check = partial(self.preflight.check_start, frame=frame, needs_price=needs_price)
        start = await check(worker, request=request, use=of_team.use)
        own = await self._inspect(worker, frame, "run" if team is None else "room", start.problems, known)
        facts = {worker.identity: replace(own, system=(*own.system, *of_team.tools))}
        model = start.choice.model if start.choice else None
        passed_on = RunRequest(worker="", input="", model=model, override_model=request.override_model)
        for callee in find_callees(worker, context.find_worker, context.list_active_workers):
            if callee.worker is not None:
                problems = (await check(callee.worker, request=passed_on)).problems
                facts[callee.worker.identity] = await self._inspect(callee.worker, frame, "called", problems, known)
        return plan(worker, frame, context, request, team)

    def _context(self, frame: Frame, find_facts: Callable[[Worker], WorkerFacts]) -> PlanContext:
        return PlanContext(
            home=self.preflight.home,
            locked=tuple(self.preflight.list_locked_files()),
            environ=self.preflight.environ,
            settings=self.preflight.load_settings(frame),
            find_worker=lambda name: self.assembler.find_worker(name, frame),
            list_active_workers=lambda: self.assembler.list_active_workers(frame),
            find_facts=find_facts,
            has_price=lambda model: self.preflight.is_priced(model, frame),
        )

    def _read(self, worker: Worker, frame: Frame, context: str, problems: Sequence[Problem]) -> WorkerFacts:
        """Return the facts that can be read without executing code."""
        trust = self.preflight.load_trust()
        all_code, _ = self.preflight.find_code(worker, frame)
        executed = tuple(
            ExecutedCode(
                kind=code.kind, name=code.name, own=code.is_own, trusted=trust.is_trusted(code), files=trust.files(code)
            )
            for code in all_code
        )
        member_tools = self.preflight.find_member_tools(worker, frame)
        has_memory = self.assembler.memory.has_entries(worker, frame)
        return WorkerFacts(
            system=(*self.assembler.tree_tools(worker, frame), *member_tools.tools),
            base=self.assembler.base_tools(worker, frame, context, run_id="", model="", has_memory=has_memory),
            toolboxes={name: (tools_and_folders.member_placeholder(name),) for name in member_tools.toolboxes},
            members=member_tools.lines,
            code=executed,
            schema=self.preflight.read_schema_file(worker, frame),
            problems=tuple(problem for problem in problems if not isinstance(problem.error, NotTrusted)),
        )

    async def _inspect(
        self,
        worker: Worker,
        frame: Frame,
        context: str,
        found: Sequence[Problem],
        known: dict[Path, Sequence[Tool]] | None,
    ) -> WorkerFacts:
        """Return the facts of a worker, with the tools and schemas of its trusted code, which is imported.

        `known`: the tools of toolboxes that were described before, by place. None executes no code.
        """
        facts, trust = self._read(worker, frame, context, found), self.preflight.load_trust()
        if known is None:
            return facts
        toolboxes = dict(facts.toolboxes)
        schema, problems = facts.schema, list(facts.problems)
        for code in self.preflight.find_code(worker, frame)[0]:
            if code.kind in ("server", "member", "activation") or not trust.is_trusted(code):
                continue
            try:
                if code.kind == "module":
                    schema = await load_model_schema(worker, code)
                    continue
                place = code.folder or code.files[0].path
                if place not in known:
                    no_access = ToolEnvironment(
                        view=tools_and_folders.make_view(worker, (), frame, self.preflight.home)
                    )
                    known[place] = (await self.assembler.describe_code(code, no_access)).tools
                toolboxes[code.name] = known[place]
            except GuildError as error:
                if code.kind == "toolbox":
                    error = type(error)(f"{code.name}: {error.message}", where=error.where, hint=error.hint)
                problems.append(Problem("toolbox" if code.kind == "toolbox" else "schema", error))
        return replace(facts, toolboxes=toolboxes, schema=schema, problems=tuple(problems))
