"""The recipe of a run: what it is assembled from, be it new or on record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.policy.risk import rules_against_risk
from guildhall.runs.activate import on_record
from guildhall.runs.arrange import permitted
from guildhall.runs.assembled import from_snapshot
from guildhall.runs.create import RULES
from guildhall.runs.model import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.policy.model import Mode, Rule
    from guildhall.runs.activate import Activation
    from guildhall.runs.outsiders import Outsiders
    from guildhall.runs.record.entries import Assembly
    from guildhall.runs.seat import Seat
    from guildhall.tools.model import Tool, Toolbox
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run is assembled from, be it new or on record."""

    run: str
    worker: Worker
    frame: Frame
    input: str
    model: str
    mode: Mode
    bounds: Bounds
    output_schema: Mapping[str, Any] | None
    given: Sequence[Toolbox] = ()  # toolboxes of the caller's own process
    memory: str | None = None  # the recorded memory block; None: render it from the current memory
    above: frozenset[str] = frozenset()  # what the runs that have called it, and those around them, can do
    served: Mapping[str, Sequence[Tool]] | None = None  # tools of servers, where they are known; else these are started
    outsiders: Outsiders | None = None  # the members, where they are known; else they are looked up
    seat: Seat | None = None
    called: bool = False  # by another run
    activation: Activation | None = None  # how it begins, where that is known; else its worker's function is called
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what that is told of what the run is for

    @property
    def converses(self) -> bool:
        return self.seat is not None and self.seat.hear is not None

    @property
    def part_of(self) -> str:
        """What it is part of: the name of its seat's tools, `called`, or `run` for one that stands alone."""
        return self.seat.server if self.seat else "called" if self.called else "run"


def recorded(frozen: Assembly, frame: Frame, *, run: str, given: Sequence[Toolbox]) -> Recipe:
    """What a run that is on record was assembled from."""
    return Recipe(
        run=run,
        worker=from_snapshot(frozen.worker),
        frame=frame,
        input=frozen.first_message,
        model=frozen.model,
        mode=frozen.mode,
        bounds=Bounds(**frozen.bounds),
        output_schema=frozen.output_schema,
        given=given,
        memory=frozen.memory,
        above=frozenset(frozen.above),
        called=frozen.called,
        activation=on_record(frozen),
    )


def rules_of(
    recipe: Recipe, tools: Iterable[Tool], forbidden: frozenset[str], around: frozenset[str]
) -> tuple[Rule, ...]:
    """The worker's rules, and those that guard what it could carry out; `around` is what those can do around it."""
    tools = tuple(tools)
    own = recipe.worker.rules_for(tool.name for tool in tools)
    accepted = recipe.worker.definition.accepts_risk
    guards = rules_against_risk(permitted(tools, forbidden), accepted=accepted, around=around)
    return (*map(_asked_by_itself, own), *guards)


def _asked_by_itself(rule: Rule) -> Rule:
    """A new worker is always shown whole before it is made: the gate need not ask about its arguments as well."""
    return replace(rule, approval_required=False) if rule.name in RULES else rule
