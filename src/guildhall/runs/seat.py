"""A run's place in something larger than itself: what it is given there, and what changes with its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.runs.model import Stretch
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What whoever seats a run hands in from above.

    The run waits for people by itself: one that waits does not make the run wait that it is below of.
    """

    tools: tuple[Tool, ...] = ()  # beyond those that its worker has, `runs_in` the run
    execute: Callable[[str], Execute]  # for the run of this id: carries out the calls of these tools
    began: Callable[[Connection, str], None]  # in the transaction in which the run is made
    ended: Callable[[Connection, str, Stretch], None]  # in the transaction in which a stretch of it ends
    closed: Callable[[ToolCall], str | None] | None = None  # why those around keep a call from being made, for now
    around: frozenset[str] = frozenset()  # what the others at the table can do to the world
    server: str = "room"  # the name under which the tools are shown at the tool door
    seated: Callable[[Worker], Worker] | None = None  # its worker as it is in this seat; None: as it is everywhere
    judge: Callable[[str, Stretch], Awaitable[Stretch]] | None = None  # the last word on how a stretch of it ended
    settled: Callable[[str, Stretch], Awaitable[None]] | None = None  # hears of it once that is on record
    plan: str | None = None  # what could happen, in a line, where more could than the run's own tools say


def seat_on_record(tools: Sequence[Tool], seated: Callable[[Worker], Worker] | None = None) -> Seat:
    """A seat as a replay sees it: with its tools, and nothing is carried out."""

    def never(*_: object) -> NoReturn:
        raise AssertionError

    return Seat(tools=tuple(tools), execute=never, began=never, ended=never, seated=seated)
