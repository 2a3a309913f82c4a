"""Assembler: resolves prompt, model, tools, sandboxes, rules and limits of a new, resumed or replayed run.

A new run uses the current worker file, a resumed run its journal entry 0 and the stricter of both permissions. A replay
uses the current worker file and the recorded memory and files. MCP servers are connected here, except for a replay.

Invariant: a worker never runs with only a part of the things that it declares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotFound, ToolUnavailable, UsageError
from guildhall.core.text_checks import is_text
from guildhall.runs.assembly import tools_and_folders
from guildhall.runs.assembly.activation import DEFAULT, activate_worker, activation_context
from guildhall.runs.assembly.assembled import (
    Assembled,
    Recipe,
    from_snapshot,
    make_rules,
    narrow_environment,
    rebind_tool,
    recorded_recipe,
    recorded_toolbox,
    restrict_to_current,
    with_recorded_descriptions,
)
from guildhall.runs.assembly.attachments import check_policy, read_user_files
from guildhall.runs.assembly.callees import (
    calling_tools,
    can_create_workers,
    declared_capabilities,
    find_callees,
    recorded_members,
)
from guildhall.runs.assembly.preflight import (
    Preflight,
    check_conversation,
    check_exfiltration,
    check_native_tools,
    raise_problems,
)
from guildhall.runs.assembly.project_instructions import CAPABILITIES, read_project_instructions
from guildhall.runs.assembly.tool_sources import unchanged_server_tools
from guildhall.runtimes.pydantic import OUTPUT_TOOL
from guildhall.tools.mcp.client import Servers, close_on_error
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.registry import choose_model

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.models.model import Source
    from guildhall.runs.assembly.callees import MemberTools
    from guildhall.runs.assembly.memory import RunMemory
    from guildhall.runs.model import RunRequest
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.runs.record.entries import Assembly
    from guildhall.runtimes.model import Attachment
    from guildhall.sandbox.view import View
    from guildhall.tools.call_router import ToolEnvironment
    from guildhall.tools.model import Tool, Toolbox
    from guildhall.workers.code_trust import Code
    from guildhall.workers.model import Worker, WorkerListing


@dataclass(frozen=True, kw_only=True)
class Assembler:
    """Assembles runs for one hall."""

    preflight: Preflight
    find_worker: Callable[[str, Frame], Worker]
    list_workers: Callable[[Frame], Iterable[WorkerListing]]
    list_active_workers: Callable[[Frame], Sequence[Worker]]  # the workers that `*` stands for
    describe_code: Callable[[Code, ToolEnvironment], Awaitable[Toolbox]]
    memory: RunMemory
    # The tools that a worker has without declaring them, for a frame, a run id and the name of its context.
    hall_tools: Callable[[Worker, Frame, str, str], Sequence[Tool]]
    connect_servers: Callable[[Worker, Frame, ToolEnvironment], Awaitable[Servers]]
    replace_tool: Callable[[Tool], Tool]
    project_name: Callable[[Frame], str | None]  # of the registered project of a frame

    async def assemble(
        self,
        request: RunRequest,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        *,
        run_id: str,
        worker: Worker | None = None,
        caller: Assembled | None = None,
        attached: tuple[Attachment, ...] | None = None,
        hooks: RunHooks | None = None,
        needs_price: bool = False,
    ) -> tuple[Assembled, Source | None]:
        """Assemble a new run. Return it with its model, or None if it calls no model.

        `given`: toolboxes of the caller's process. `worker`: if it is known already. `caller`: the run that calls this
        one, shares its budget, and passes on the `attached` files. `needs_price`: a budget from the user applies.
        """
        if not is_text(request.input):
            raise UsageError("invalid input: not text, or contains a NUL byte", hint="Attach other data as a file.")
        if not request.input.strip():
            raise UsageError("invalid input: empty", hint="Describe the task for the worker.")
        worker = worker or self.find_worker(request.worker, frame)
        if hooks is not None and hooks.next_message is not None:
            check_conversation(worker)
        bounds = tools_and_folders.make_bounds(
            worker, self.preflight.load_settings(frame), request, called=caller is not None
        )
        start = await self.preflight.check_start(
            worker,
            frame,
            request,
            given=[toolbox.name for toolbox in given],
            needs_price=needs_price or bounds.max_budget_usd is not None,
        )
        raise_problems([problem.error for problem in start.problems], worker.place)
        recipe = Recipe(
            run_id=run_id,
            worker=worker,
            frame=frame,
            input=request.input,
            model=start.choice.model if start.choice else "",
            mode=request.mode,
            bounds=bounds,
            output_schema=await self.preflight.load_output_schema(worker, frame),
            given=given,
            above=hooks.other_capabilities
            if hooks
            else caller.surrounding_capabilities(worker)
            if caller
            else frozenset(),
            hooks=hooks,
            called=caller is not None,
            activation=None if worker.activate else DEFAULT,
            context=activation_context(request, self.project_name(frame)) if worker.activate else {},
        )
        policy = worker.definition.attachment_policy
        if attached is None and request.attachments:
            view = self._view(worker, frame)
            attached = await asyncio.to_thread(
                read_user_files, request.attachments, view, policy, root=frame.project_folder, where=worker.place
            )
        check_policy(attached or (), policy, where=worker.place)
        return await self._build(replace(recipe, attachments=attached or ())), start.source

    async def assemble_resumed(
        self,
        frozen: Assembly,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        *,
        run_id: str,
        hooks: RunHooks | None = None,
    ) -> Assembled:
        """Assemble a recorded run with the stricter of its recorded and its worker's current permissions."""
        recipe = replace(recorded_recipe(frozen, frame, run_id=run_id, given=given), hooks=hooks)
        worker = self._current_worker(recipe)
        if worker is not None:
            recipe = replace(recipe, current=self._environment(worker, frame))
        built = await self._build(recipe)
        async with close_on_error(built.servers):
            tools = with_recorded_descriptions(built.tools, frozen.tools)
            _check_tools_unchanged(tools, frozen.tools)
            # A toolbox can have new tools. The gate needs the forbidden tools, which are not recorded.
            forbidden = {tool.name for tool in built.tools} - {tool.name for tool in built.visible_tools}
            names = forbidden | {tool["name"] for tool in frozen.tools}
            resumed = replace(
                built,
                system_prompt=frozen.system_prompt,
                memory=frozen.memory,
                tools=tuple(tool for tool in tools if tool.name in names),
            )
            if worker is None:
                return resumed
            served = unchanged_server_tools(worker, recipe.worker, built.servers.tools)
            today = replace(recipe, worker=worker, output_schema=None, served=served, current=None)
            return restrict_to_current(resumed, await self._build(today))

    def _current_worker(self, recipe: Recipe) -> Worker | None:
        """Return the worker of a recorded run as its file is today, or None. Agents keep their recorded permissions."""
        then = recipe.worker
        if then.scope == "workflow" or not then.path.exists():
            return None
        found = self.find_worker(str(then.path), recipe.frame)
        return _adapt_to_owner(replace(found, workdir=then.workdir, workflow_paths=then.workflow_paths), recipe.hooks)

    def _environment(self, worker: Worker, frame: Frame) -> ToolEnvironment:
        settings = self.preflight.load_settings(frame)
        return tools_and_folders.make_tool_environment(
            worker, frame, self._view(worker, frame), settings, self.preflight.environ
        )

    async def assemble_replay(
        self,
        request: RunRequest,
        frozen: Assembly,
        frame: Frame,
        *,
        run_id: str,
        worker: Worker | None = None,
        hooks: RunHooks | None = None,
    ) -> tuple[Assembled, bool]:
        """Assemble a recorded run from the current worker file.

        Return the run, and True if the file of the worker or of a callee is missing and its recorded form was used.
        """
        given = [recorded_toolbox(name, tools) for name, tools in frozen.given.items()]
        recipe, is_missing = replace(recorded_recipe(frozen, frame, run_id=run_id, given=given), hooks=hooks), False
        try:
            worker = worker or _adapt_to_owner(self.find_worker(request.worker, frame), hooks)
            schema = await self.preflight.load_output_schema(worker, frame)
            recipe = replace(recipe, worker=worker, input=request.input, output_schema=schema)
        except NotFound:
            worker, is_missing = recipe.worker, True
        listed = {name: recorded_toolbox(name, tools).tools for name, tools in frozen.servers.items()}
        then_worker = from_snapshot(frozen.worker)
        served = unchanged_server_tools(worker, then_worker, listed)
        recipe = replace(recipe, served=served, member_tools=recorded_members(frozen, then_worker, worker))
        recipe = recipe if worker.activate else replace(recipe, activation=DEFAULT)
        assembled = await self._build(recipe)
        then = with_recorded_descriptions(assembled.tools, frozen.tools)
        if then != assembled.tools and self._has_missing_callee(worker, frame):
            return replace(assembled, tools=then), True
        return assembled, is_missing

    def _has_missing_callee(self, worker: Worker, frame: Frame) -> bool:
        near = worker.project_frame(frame)
        try:
            for name in worker.definition.allow_workers:
                if name != EVERY_WORKER:
                    self.find_worker(name, near)
        except NotFound:
            return True
        return False

    async def _build(self, recipe: Recipe) -> Assembled:
        worker, frame = recipe.worker, recipe.frame
        environment = recorded = self._environment(worker, frame)
        if recipe.current is not None:
            environment = narrow_environment(recorded, recipe.current)
        member_tools = recipe.member_tools or self.preflight.find_member_tools(worker, frame)
        servers = await self.connect_servers(worker, frame, environment) if recipe.served is None else Servers()
        async with close_on_error(servers):
            served = servers.tools if recipe.served is None else recipe.served
            # A tool stays on the list without its permission.
            memory = recipe.memory
            if memory is None:
                limit = self.preflight.load_settings(frame).memory.limit_tokens
                memory = await self.memory.prompt_block(worker, frame, worker.rules, limit_tokens=limit)
            tools = await self._tools(recipe, recorded, served, member_tools, has_memory=bool(memory))
            if recipe.current is not None:
                tools = tuple(rebind_tool(tool, environment) for tool in tools)
            assembled = await self._complete(replace(recipe, memory=memory), environment, tools, member_tools)
            return replace(assembled, servers=servers)

    async def _complete(
        self, recipe: Recipe, environment: ToolEnvironment, tools: tuple[Tool, ...], member_tools: MemberTools
    ) -> Assembled:
        worker, frame = recipe.worker, recipe.frame
        settings = self.preflight.load_settings(frame)
        near = worker.project_frame(frame)
        others = find_callees(worker, lambda name: self.find_worker(name, near), lambda: self.list_active_workers(near))
        workers = [callee.worker for callee in others if callee.worker]
        callees = {callee.identity: declared_capabilities(callee) for callee in workers}
        around = recipe.above.union(*callees.values())
        project = ""
        if worker.definition.project_instructions:
            around |= CAPABILITIES
            file = await asyncio.to_thread(read_project_instructions, frame.root)
            project = file.render() if file else ""
        rules = make_rules(recipe, tools, environment.forbidden, around)
        check_exfiltration(worker, tools_and_folders.permitted_capabilities(tools, environment.forbidden), around)
        tools_and_folders.check_native_rules(tools, rules, recipe.mode, worker.place)
        memory, visible = recipe.memory or "", tools_and_folders.visible_tools(worker, tools)
        activation = recipe.activation or await activate_worker(worker, visible, memory, recipe.context)
        timeout = settings.approvals.timeout
        instructions = worker.instructions if activation.system_prompt is None else activation.system_prompt
        return Assembled(
            worker=worker,
            model=recipe.model,
            mode=recipe.mode,
            system_prompt=_join_prompt(instructions, project, member_tools.prompt, memory),
            memory=memory,
            first_message=recipe.input,
            tools=activation.select_tools(tools, recipe.hooks.tools if recipe.hooks else ()),
            rules=tuple(replace(rule, timeout=timeout) if rule.timeout is None else rule for rule in rules),
            bounds=activation.tighten(recipe.bounds),
            activation=activation,
            output_schema=None if recipe.converses else recipe.output_schema,  # a conversation has no result
            environment=environment,
            allow_workers=worker.definition.allow_workers,
            above=recipe.above,
            callees=callees,
            attachments=recipe.attachments,
            given=tuple(toolbox for toolbox in recipe.given if toolbox.name in worker.definition.toolboxes),
            member_tools=member_tools,
            called=recipe.called,
            converses=recipe.converses,
        )

    async def _tools(
        self,
        recipe: Recipe,
        environment: ToolEnvironment,
        served: Mapping[str, Sequence[Tool]],
        member_tools: MemberTools,
        *,
        has_memory: bool,
    ) -> tuple[Tool, ...]:
        """Return the tools of the run in the order that the model sees."""
        worker, frame = recipe.worker, recipe.frame
        base = self.base_tools(
            worker, frame, recipe.context_name, run_id=recipe.run_id, model=recipe.model, has_memory=has_memory
        )
        tree, hooks = self.tree_tools(worker, frame), recipe.hooks
        system = (*tree, *member_tools.tools, *base)
        if hooks:
            filtered = hooks.filter_base_tools(tree), hooks.filter_base_tools(base)
            system = (*filtered[0], *member_tools.tools, *hooks.tools, *filtered[1])
        given = {toolbox.name: toolbox for toolbox in recipe.given}
        boxes = await self._toolboxes(worker, frame, environment, given, member_tools.toolboxes)
        served = {name: tools for name, tools in served.items() if name not in given}
        every = tools_and_folders.collect_tools(worker, environment, system=system, toolboxes=boxes, servers=served)
        tools = tuple(map(self.replace_tool, every))
        check_native_tools(worker, tools)
        names = [tool.name for tool in tools]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise _duplicate_error(duplicates[0], {**boxes, **served}, worker)
        if recipe.output_schema is not None and not recipe.converses and OUTPUT_TOOL in names:
            message = f"invalid tools: the name {OUTPUT_TOOL!r} is reserved for the result"
            raise ToolUnavailable(message, where=worker.place, hint="Rename the tool, or remove output_schema_ref.")
        return tools

    def base_tools(
        self, worker: Worker, frame: Frame, context: str, *, run_id: str, model: str, has_memory: bool
    ) -> tuple[Tool, ...]:
        """Return the base toolbox of a worker. `has_memory`: the worker can read memory entries (ADR 041)."""
        if not worker.definition.base:
            return ()
        limit = self.preflight.load_settings(frame).memory.limit_tokens
        memory = self.memory.tools(worker, frame, run_id=run_id, model=model, limit_tokens=limit)
        memory = self.memory.select_tools(memory, worker, has_entries=has_memory)
        is_unattended = context not in ("run", "called") or worker.definition.base is True
        decisions = tools_and_folders.BASE_TOOLS if is_unattended else ()
        return (*self.hall_tools(worker, frame, run_id, context), *memory, *decisions)

    def tree_tools(self, worker: Worker, frame: Frame) -> tuple[Tool, ...]:
        """Return the tools with which a worker calls and creates workers."""
        near = worker.project_frame(frame)
        return calling_tools(worker, lambda name: self.find_worker(name, near), lambda: self.list_workers(near))

    def can_callee_cost(self, worker: Worker, frame: Frame, model: str, override: str | None = None) -> bool:
        """Return True if a worker that a run may call can have a model with a price. `model`: that of the run."""
        near, settings = worker.project_frame(frame), self.preflight.load_settings(frame)
        callees = find_callees(
            worker, lambda name: self.find_worker(name, near), lambda: self.list_active_workers(near)
        )
        workers = [callee.worker for callee in callees if callee.worker and callee.problem is None]
        try:
            models = [choose_model(each, near, settings, caller=model, override=override).model for each in workers]
        except GuildError:
            return True  # unknown
        creates = any(map(can_create_workers, (worker, *workers)))
        return creates or any(self.preflight.is_priced(each, near) is not False for each in models)

    def _view(self, worker: Worker, frame: Frame) -> View:
        return tools_and_folders.make_view(
            worker, worker.sandbox_folders(frame), frame, self.preflight.home, self.preflight.list_locked_files()
        )

    async def _toolboxes(
        self,
        worker: Worker,
        frame: Frame,
        environment: ToolEnvironment,
        given: Mapping[str, Toolbox],
        of_members: Sequence[str],
    ) -> dict[str, Sequence[Tool]]:
        """Return the tools of each declared toolbox. Skip the toolboxes `of_members`, which are on servers."""
        toolboxes: dict[str, Sequence[Tool]] = {}
        for name in worker.definition.toolboxes:
            if name in given:  # the handlers exist only in this process
                toolboxes[name] = [replace(tool, runs_in="hall") for tool in given[name].tools]
            elif name not in of_members:
                code = self.preflight.toolbox_code(worker, name, frame, given)
                toolboxes[name] = (await self.describe_code(code, environment)).tools
        return toolboxes


def _adapt_to_owner(worker: Worker, hooks: RunHooks | None) -> Worker:
    return hooks.adapt_worker(worker) if hooks and hooks.adapt_worker else worker


def _join_prompt(instructions: str, *blocks: str) -> str:
    """Join the parts of the system prompt. The constant part comes first, for prompt caches."""
    more = [block for block in blocks if block]
    return "\n\n".join([instructions.rstrip(), *more]) if more else instructions


def _duplicate_error(name: str, sources: Mapping[str, Sequence[Tool]], worker: Worker) -> ToolUnavailable:
    """Return the error for two tools of the same name. `sources`: the tools of toolboxes and servers by source."""
    names = [source for source, tools in sources.items() if any(tool.name == name for tool in tools)]
    message = f"invalid tools: two tools are named {name!r}, in {' and '.join([*names, 'Guildhall itself'][:2])}"
    hint = "Rename one of them, or remove it from tools, toolboxes, mcp_servers or members in the worker file."
    return ToolUnavailable(message, where=worker.place, hint=hint)


def _check_tools_unchanged(tools: Iterable[Tool], frozen: Iterable[Mapping[str, Any]]) -> None:
    """Raise ToolUnavailable if a recorded tool is missing or has another description or schema."""
    current = {tool.name: tool.as_shown() for tool in tools}
    for tool in frozen:
        if current.get(tool["name"]) != tool:
            raise ToolUnavailable(
                f"cannot resume the run: the tool {tool['name']!r} has changed since the run started",
                hint="Restore the tool, or start a new run.",
            )
