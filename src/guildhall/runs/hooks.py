"""Run hooks: connect a run to its owner, which adds tools, judges the end of a run segment and hears of it.

The owner is a job, a commission, a meeting or a workflow. It passes the hooks in when it starts or resumes the run. A
replay uses hooks that execute nothing. Does not implement an owner (`activities.owner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.runs.model import Stretch
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.model import Worker


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The hooks of an owner. A run with hooks that waits for the user does not make the run above it wait."""

    tools: tuple[Tool, ...] = ()  # beyond those that its worker has, `runs_in` the run
    execute: Callable[[str], Execute]  # for the run of this id: carries out the calls of these tools
    began: Callable[[Connection, str], None] = _nothing  # in the transaction in which the run is made
    ended: Callable[[Connection, str, Stretch], None] = _nothing  # in the transaction in which a stretch of it ends
    closed: Callable[[ToolCall], str | None] | None = None  # why those around keep a call from being made, for now
    around: frozenset[str] = frozenset()  # what the others at the table can do to the world
    server: str = "room"  # the name under which the tools are shown at the tool door
    seated: Callable[[Worker], Worker] | None = None  # its worker as it is in this seat; None: as it is everywhere
    judge: Callable[[str, Stretch], Awaitable[Stretch]] | None = None  # the last word on how a stretch of it ended
    settled: Callable[[str, Stretch], Awaitable[None]] | None = None  # hears of it once that is on record
    # The run is a conversation: what the person says for the how-manieth time after the first message, from 1, once it
    # is said. It does not end by itself then: whoever gives the seat ends it. It may be put away while it is
    # waited for, also at the very moment at which it is said: whoever gives the seat looks in `settled` for words that
    # are not answered, and lets the run go on. None: it ends with its first answer.
    hear: Callable[[int], Awaitable[str]] | None = None
    withheld: frozenset[str] = frozenset()  # what no tool can do here that comes without its worker's declaring it
    plan: str | None = None  # what could happen, in a line, where more could than the run's own tools say

    def beside(self, base: Sequence[Tool]) -> tuple[Tool, ...]:
        """Those of the tools that come without being declared which there are in this seat."""
        own = {tool.name for tool in self.tools}
        return tuple(one for one in base if one.name not in own and one.capabilities.isdisjoint(self.withheld))


def seat_on_record(
    tools: Sequence[Tool],
    seated: Callable[[Worker], Worker] | None = None,
    *,
    converses: bool = False,
    server: str = "room",
    withheld: frozenset[str] = frozenset(),
) -> Seat:
    """A seat as a replay sees it: with its tools, and nothing is carried out; `converses`: it is a conversation's."""

    def never(*_: object) -> NoReturn:
        raise AssertionError

    return Seat(
        tools=tuple(tools),
        execute=never,
        began=never,
        ended=never,
        seated=seated,
        hear=never if converses else None,
        server=server,
        withheld=withheld,
    )
