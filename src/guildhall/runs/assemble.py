"""Assembly: a worker, a request and a frame become exactly what is executed. Nothing is run and nothing is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, ToolUnavailable, UsageError
from guildhall.policy.risk import rules_against_risk
from guildhall.runs.arrange import bounds_of, tools_of, view_of
from guildhall.runs.assembled import (
    Assembled,
    as_recorded,
    files_of,
    from_snapshot,
    remembered,
    tightened,
    told_as_then,
)
from guildhall.runs.attachments import collect_for_person, permit
from guildhall.runs.create import RULES
from guildhall.runs.delegate import tree_tools
from guildhall.runs.model import Bounds, RunRequest, is_text
from guildhall.runs.reach import declared, reached
from guildhall.runs.supply import refuse, refuse_later_fields
from guildhall.runs.toolbox import base_toolbox
from guildhall.runtimes.pydantic import OUTPUT_TOOL
from guildhall.tools.builtin import Surroundings
from guildhall.workers.choose import choose_model
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.lifecycle import usable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.policy.model import Mode, Rule
    from guildhall.runs.remember import Remembering
    from guildhall.runs.supply import Supply
    from guildhall.runtimes.model import Attachment
    from guildhall.tools.model import Tool, Toolbox, View
    from guildhall.workers.model import Listed, Worker

    Finder = Callable[[str, Frame], Worker]
    Described = Callable[[str, Path, Surroundings, str | None], Awaitable[Toolbox]]


class Assembler:
    """Assembles runs for one hall."""

    def __init__(
        self,
        environ: Mapping[str, str],
        find: Finder,
        everyone: Callable[[Frame], Iterable[Listed]],
        active: Callable[[Frame], Sequence[Worker]],
        settings: Callable[[Frame], Settings],
        describe: Described,
        remembering: Remembering,
        instead: Callable[[Tool], Tool],
        supply: Supply,
    ) -> None:
        self._environ = environ
        self.find = find
        self.everyone = everyone
        self._active = active
        self.settings = settings
        self._describe = describe
        self._remembering = remembering
        self._instead = instead
        self._supply = supply

    async def assemble(
        self,
        request: RunRequest,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        *,
        run: str,
        caller: Assembled | None = None,
        attached: tuple[Attachment, ...] | None = None,
    ) -> Assembled:
        """A new run. `given` are toolboxes of the caller's own process.

        `caller` is the run that has called it, whose budget it has, and `attached` are the files that it hands over.
        """
        if not is_text(request.input):
            raise UsageError("the input is not text", hint="Inputs are text without NUL; give anything else as a file.")
        if not request.input.strip():
            raise UsageError("the input is empty", hint="Say what the worker is to do.")
        worker = self.find(request.worker, frame)
        usable(worker, "name")
        settings = self.settings(frame)
        choice = choose_model(worker, frame, settings, caller=request.model, override=request.override_model)
        given = tuple(given)
        named = [toolbox.name for toolbox in given]
        own = choice.by == "worker"
        refuse(self._supply.lacking(worker, frame, given=named, script=own, thorough=False), worker.place)
        bounds = bounds_of(worker, settings, request, called=caller is not None)
        schema = await self._supply.output_schema(worker, frame)
        built = await self._build(
            worker,
            frame,
            request.input,
            choice.model,
            request.mode,
            bounds,
            schema,
            given,
            run=run,
            above=caller.around(worker) if caller else (),
        )
        return replace(built, attachments=await self._attached(worker, request, frame, attached))

    async def _attached(
        self, worker: Worker, request: RunRequest, frame: Frame, attached: tuple[Attachment, ...] | None
    ) -> tuple[Attachment, ...]:
        policy = worker.definition.attachment_policy
        if attached is None and request.attachments:
            view = self._view(worker, frame)
            attached = await asyncio.to_thread(
                collect_for_person, request.attachments, view, policy, root=frame.root, where=worker.place
            )
        permit(attached or (), policy, where=worker.place)
        return attached or ()

    async def revive(
        self, frozen: Mapping[str, Any], frame: Frame, given: Sequence[Toolbox] = (), *, run: str
    ) -> Assembled:
        """A run that is on record, as it was frozen. What its worker may do today counts too: the tighter one wins."""
        worker = from_snapshot(frozen["worker"])
        bounds = Bounds(**frozen["bounds"])
        built = await self._build(
            worker,
            frame,
            frozen["first_message"],
            frozen["model"],
            frozen["mode"],
            bounds,
            frozen["output_schema"],
            given,
            run=run,
            memory=remembered(frozen),
            above=frozen.get("above", ()),
        )
        built = replace(built, tools=told_as_then(built.tools, frozen["tools"]))
        now = {tool.name: tool.as_shown() for tool in built.tools}
        for tool in frozen["tools"]:
            if now.get(tool["name"]) != tool:
                raise ToolUnavailable(
                    f"the tool {tool['name']!r} is not what it was when the run started",
                    hint="The run cannot go on with another tool. Restore the tool, or start a new run.",
                )
        names = {tool["name"] for tool in frozen["tools"]}
        revived = replace(
            built,
            system_prompt=frozen["system_prompt"],
            memory=remembered(frozen),
            attachments=files_of(frozen),
            tools=tuple(tool for tool in built.tools if tool.name in names),  # a toolbox may have got more since
        )
        if worker.path is None or not worker.path.exists():
            return revived
        today = self.find(str(worker.path), frame)
        as_today = await self._build(
            today,
            frame,
            "",
            built.model,
            built.mode,
            bounds,
            None,
            given,
            run=run,
            memory=built.memory,
            above=built.above,
        )
        return tightened(revived, as_today)

    async def again(
        self, request: Mapping[str, Any], frozen: Mapping[str, Any], frame: Frame, *, run: str
    ) -> tuple[Assembled, bool]:
        """A run that is on record, assembled from its worker as it is today; as it was, if it is there no more.

        What the worker remembered is what it remembered then. Says also whether it is there no more.
        """
        gone = False
        try:
            worker = self.find(request["worker"], frame)
        except NotFound:
            worker, gone = from_snapshot(frozen["worker"]), True
        assembled = await self._build(
            worker,
            frame,
            request["input"],
            frozen["model"],
            frozen["mode"],
            Bounds(**frozen["bounds"]),
            frozen["output_schema"] if gone else await self._supply.output_schema(worker, frame),
            [as_recorded(name, tools) for name, tools in frozen.get("given", {}).items()],
            run=run,
            memory=remembered(frozen),
            above=frozen.get("above", ()),
        )
        assembled = replace(assembled, attachments=files_of(frozen))
        then = told_as_then(assembled.tools, frozen["tools"])
        if then != assembled.tools and self._lacks_one_to_call(worker, frame):
            return replace(assembled, tools=then), True
        return assembled, gone

    def _lacks_one_to_call(self, worker: Worker, frame: Frame) -> bool:
        """Whether one of those that the worker may call by name is not there any more."""
        near = worker.frame(frame)
        for name in worker.definition.allow_workers:
            try:
                if name != EVERY_WORKER:
                    self.find(name, near)
            except NotFound:
                return True
        return False

    async def _build(
        self,
        worker: Worker,
        frame: Frame,
        input: str,
        model: str,
        mode: Mode,
        bounds: Bounds,
        output_schema: Mapping[str, Any] | None,
        given: Sequence[Toolbox] = (),
        *,
        run: str,
        memory: str | None = None,
        above: Iterable[str] = (),
    ) -> Assembled:
        """`above` is what the runs that have called it can do to the world, and all that these may call.

        `memory` is the block of the prompt where it is known already; else it is made of what is there now."""
        refuse_later_fields(worker)
        settings = self.settings(frame)
        surroundings = Surroundings(
            view=self._view(worker, frame),
            env=dict(frame.env),
            web_search=settings.web_search.model_dump() if settings.web_search else None,
            environ=self._environ,
            forbidden=frozenset(rule.name for rule in worker.rules if not rule.allowed),
        )
        limit = settings.memory.limit_tokens
        base: tuple[Tool, ...] = ()
        if worker.definition.base:
            remember = self._remembering.tools(worker, frame, run=run, model=model, limit_tokens=limit)
            base = (*base_toolbox().tools, *remember)
        near = worker.frame(frame)
        base += tree_tools(worker, lambda name: self.find(name, near), lambda: self.everyone(near))
        boxes = await self._toolboxes(worker, frame, surroundings, {toolbox.name: toolbox for toolbox in given})
        tools = tuple(map(self._instead, tools_of(worker, surroundings, system=base, toolboxes=boxes)))
        names = [tool.name for tool in tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ToolUnavailable(f"two tools are named {twice[0]!r}", where=worker.place)
        by_name = {tool.name: tool.capabilities for tool in tools}
        if output_schema is not None and OUTPUT_TOOL in by_name:
            message = f"a tool is named {OUTPUT_TOOL!r}, which is how the model gives its result"
            raise ToolUnavailable(message, where=worker.place)
        others = reached(worker, lambda name: self.find(name, near), lambda: self._active(near))
        callees = {one.worker.identity: declared(one.worker) for one in others if one.worker}
        around = frozenset(above).union(*callees.values())
        guards = rules_against_risk(by_name, accepted=worker.definition.accepts_risk, around=around)
        rules = (*map(_asked_by_itself, worker.rules_for(by_name)), *guards)
        if memory is None:
            memory = await self._remembering.block(worker, frame, rules, limit_tokens=limit)
        patience = settings.approvals.timeout
        rules = tuple(replace(rule, timeout=patience if rule.timeout is None else rule.timeout) for rule in rules)
        return Assembled(
            worker=worker,
            model=model,
            mode=mode,
            system_prompt=f"{worker.instructions.rstrip()}\n\n{memory}" if memory else worker.instructions,
            memory=memory,
            first_message=input,
            tools=tools,
            rules=rules,
            bounds=bounds,
            output_schema=output_schema,
            surroundings=surroundings,
            allow_workers=worker.definition.allow_workers,
            above=frozenset(above),
            callees=callees,
            given=tuple(toolbox for toolbox in given if toolbox.name in worker.definition.toolboxes),
        )

    def _view(self, worker: Worker, frame: Frame) -> View:
        return view_of(worker, worker.folders(frame), frame, self._supply.home, self._supply.locked())

    async def _toolboxes(
        self, worker: Worker, frame: Frame, surroundings: Surroundings, given: Mapping[str, Toolbox]
    ) -> dict[str, Sequence[Tool]]:
        """The tools of each toolbox that the worker declares, by its name."""
        found: dict[str, Sequence[Tool]] = {}
        for name in worker.definition.toolboxes:
            if name in given:  # Python objects of the caller's: their handlers exist in this process and nowhere else
                found[name] = [replace(tool, runs_in="hall") for tool in given[name].tools]
            else:
                code = self._supply.toolbox(worker, name, frame, given)
                file = code.files[0]
                pin = None if code.own else file.digest
                found[name] = (await self._describe(name, file.path, surroundings, pin)).tools
        return found


def _asked_by_itself(rule: Rule) -> Rule:
    """A new worker is always shown whole before it is made: the gate need not ask about its arguments as well."""
    return replace(rule, approval_required=False) if rule.name in RULES else rule
