"""Finds out what a plan needs to know, and makes it. Code that may run is described by a host that can do nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotTrusted
from guildhall.models.keys import joined
from guildhall.runs.arrange import expected_of_member, view_of
from guildhall.runs.delegate import tree_tools
from guildhall.runs.plan import Executes, PlanProblem
from guildhall.runs.planning import Facts, Known, plan
from guildhall.runs.reach import reached
from guildhall.runs.schema import schema_of_model
from guildhall.runs.toolbox import base_toolbox
from guildhall.tools.builtin import Surroundings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.runs.assembly.memory import RunMemory
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan import Plan
    from guildhall.runs.planning import PlannedSeat
    from guildhall.runs.supply import Supply
    from guildhall.tools.model import Tool, Toolbox
    from guildhall.workers.code import Code
    from guildhall.workers.model import Listed, Worker

    Described = Callable[[Code, Surroundings], Awaitable[Toolbox]]


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes the plans of one hall."""

    supply: Supply
    find: Callable[[str, Frame], Worker]
    everyone: Callable[[Frame], Sequence[Listed]]
    active: Callable[[Frame], Sequence[Worker]]  # the workers that `*` stands for
    describe: Described
    memory: RunMemory
    provided: Callable[[Worker, Frame, str, str], Sequence[Tool]]  # as for the assembler
    priced: Callable[[str, Frame], bool | None]

    async def plan(
        self, worker: Worker, frame: Frame, request: RunRequest | None = None, *, seat: PlannedSeat | None = None
    ) -> Plan:
        """The plan of a worker, which need not be saved anywhere, and of all that it may call. `seat`: in a team."""
        boxes: dict[Path, Sequence[Tool]] = {}
        own = "room" if seat is not None else "run"
        everyone = {one.identity: one for one in self._everyone(worker, frame)}
        context = {identity: own if identity == worker.identity else "called" for identity in everyone}
        facts = {id: await self._learned(one, frame, context[id], boxes) for id, one in everyone.items()}
        if seat is not None:
            own = facts[worker.identity]
            facts[worker.identity] = replace(own, system=(*own.system, *seat.tools))
        return plan(worker, frame, self._known(frame, lambda one: facts[one.identity]), request, seat)

    def at_once(self, worker: Worker, frame: Frame, request: RunRequest | None = None) -> Plan:
        """The same without a child process: the tools of toolboxes and the schemas of models stay unknown."""

        def read(one: Worker) -> Facts:
            return self._read(one, frame, "run" if one.identity == worker.identity else "called")

        return plan(worker, frame, self._known(frame, read), request)

    def _everyone(self, worker: Worker, frame: Frame) -> list[Worker]:
        known = self._known(frame, lambda _: Facts())
        return [worker, *(one.worker for one in reached(worker, known.find, known.active) if one.worker)]

    def _known(self, frame: Frame, facts: Callable[[Worker], Facts]) -> Known:
        return Known(
            home=self.supply.home,
            locked=tuple(self.supply.locked()),
            environ=joined(self.supply.environ, frame.keys),
            settings=self.supply.settings(frame),
            find=lambda name: self.find(name, frame),
            active=lambda: self.active(frame),
            facts=facts,
            priced=lambda model: self.priced(model, frame),
        )

    def _read(self, worker: Worker, frame: Frame, context: str) -> Facts:
        """What can be read: nothing of the worker's code is run."""
        trust = self.supply.trust()
        found, _ = self.supply.code_of(worker, frame)
        code = tuple(
            Executes(kind=one.kind, name=one.name, own=one.own, trusted=trust.holds(one), files=trust.seen(one))
            for one in found
        )
        lacking = self.supply.lacking(worker, frame)
        outside = self.supply.outsiders(worker, frame)
        return Facts(
            system=(*self._system(worker, frame, context), *outside.tools),
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
            if code.kind in ("server", "member", "activation") or not trust.holds(code):
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
            boxes[place] = (await self.describe(code, nothing)).tools
        return boxes[place]

    def _system(self, worker: Worker, frame: Frame, context: str) -> tuple[Tool, ...]:
        """What the worker has without declaring it."""
        near = worker.frame(frame)
        calling = tree_tools(worker, lambda name: self.find(name, near), lambda: self.everyone(near))
        if not worker.definition.base:
            return calling
        limit = self.supply.settings(frame).memory.limit_tokens
        memory = self.memory.tools(worker, frame, run="", model="", limit_tokens=limit)
        return (*base_toolbox().tools, *memory, *self.provided(worker, frame, "", context), *calling)
