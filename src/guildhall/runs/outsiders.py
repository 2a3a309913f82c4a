"""The members that a worker names, as far as a run of it is concerned. Whoever knows members hands this in from above.

Nothing is started for it: a member runs when it is first needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.model import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.errors import GuildError
    from guildhall.runs.record.entries import Assembly
    from guildhall.workers.code import Code
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Outsiders:
    """What a worker has of members: tools of theirs as toolboxes, and those that it may dispatch to."""

    toolboxes: tuple[str, ...] = ()  # of those that it declares, the ones that are the tools of members
    dispatch: Mapping[str, tuple[Tool, ...]] = field(default_factory=dict[str, tuple[Tool, ...]])  # by server
    prompt: str = ""  # how to dispatch; empty: to nobody
    lines: tuple[str, ...] = ()  # what would be started, as a plan says it
    code: tuple[Code, ...] = ()  # what would be executed
    problems: tuple[GuildError, ...] = ()  # what it names and cannot have

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(tool for tools in self.dispatch.values() for tool in tools)

    def as_dict(self) -> dict[str, Any]:
        """As the record keeps it: what a replay must find again."""
        dispatch = {name: [tool.as_described() for tool in tools] for name, tools in self.dispatch.items()}
        return {"toolboxes": list(self.toolboxes), "dispatch": dispatch, "prompt": self.prompt}


NOBODY = Outsiders()


def on_record(frozen: Assembly, then: Worker, today: Worker) -> Outsiders | None:
    """Those of a recorded run, for a replay, which executes nothing. None: the worker names others today."""
    told = frozen.outsiders
    if then.definition.members != today.definition.members:
        return None
    if told is None:
        return NOBODY

    def gone(**_: Any) -> None:
        raise ToolUnavailable("a replay dispatches nothing")

    return Outsiders(
        toolboxes=tuple(name for name in told["toolboxes"] if name in today.definition.toolboxes),
        dispatch={
            name: tuple(Tool.from_described(tool, gone) for tool in tools) for name, tools in told["dispatch"].items()
        },
        prompt=told["prompt"],
    )
