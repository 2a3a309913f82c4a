"""Who of a team moves when: whenever they can; in a test in the order of the record.

What agents do in their room side by side comes in another order each time. A place in the order is a line of text, the
same in the record and in a test of it: `coder/2 begins 7` (its second run, shown its inbox up to message 7),
`coder/2 m1.1 channel_send` (the first call of that run's first answer), `coder/2 ends`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from guildhall.models.case import Spoken
    from guildhall.tools.model import Execute, Tool, ToolCall, ToolResult

_PATIENCE = 6.0  # seconds in which nobody moves, after which the one that is next in the record is not waited for
_LESS = 0.1  # once that has happened: what is compared differs already


class Pace:
    """Everybody moves when they can."""

    async def begins(self, who: str) -> int | None:
        """Returns when a run may begin; up to which message it is shown its inbox, where that is settled."""
        return None

    @asynccontextmanager
    async def turn(self, place: str) -> AsyncGenerator[None]:
        """Something is done in the room, when it is its turn."""
        yield

    async def comes_to(self, place: str) -> None:
        """Returns when it is a place's turn; `done` says when it is over."""

    def done(self, place: str) -> None:
        """A place is over, if it is one."""

    def calls(self, who: str, execute: Execute) -> Execute:
        """Carries out the calls of a run in their turn."""

        async def in_turn(tool: Tool, call: ToolCall) -> ToolResult:
            async with self.turn(f"{who} {call_place(call.key)} {tool.name}"):
                return await execute(tool, call)

        return in_turn


class InOrder(Pace):
    """Everybody moves in the order of the record; who is not in it moves when they can."""

    def __init__(self, order: Sequence[str | Spoken]) -> None:
        self.speak: Callable[[Spoken], Awaitable[object]] | None = None
        self.under_way: set[str] = set()  # calls that take their time
        self._order = [place if isinstance(place, str) else None for place in order]
        self._spoken = {number: place for number, place in enumerate(order) if not isinstance(place, str)}
        self._until: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        for number, place in enumerate(self._order):
            if place is None:
                continue
            who, _, until = place.partition(" begins ")
            if until.isdigit():
                self._until[who] = int(until)
                place = begins(who)
            self._numbers[place] = number
        self._over: set[int] = set()
        self._next = 0
        self._waiting: list[int] = []
        self._moved = asyncio.Event()
        self._patience = _PATIENCE
        self._speaking: set[asyncio.Task[None]] = set()

    async def begins(self, who: str) -> int | None:
        await self.comes_to(begins(who))
        return self._until.get(who)

    @asynccontextmanager
    async def turn(self, place: str) -> AsyncGenerator[None]:
        await self.comes_to(place)
        try:
            yield
        finally:
            self.done(place)

    async def comes_to(self, place: str) -> None:
        number = self._numbers.get(place)
        if number is None:
            return
        self._waiting.append(number)
        try:
            self._advance()
            while self._next < number:
                await self._a_move()
        finally:
            self._waiting.remove(number)

    def done(self, place: str) -> None:
        number = self._numbers.get(place)
        if number is not None and number not in self._over:
            self._over.add(number)
            self._advance()

    async def _a_move(self) -> None:
        """Returns when somebody has moved; after a while without that the next one is left out."""
        moved = self._moved
        try:
            async with asyncio.timeout(self._patience):
                await moved.wait()
        except TimeoutError:
            if moved is self._moved and not self.under_way and not self._speaking:
                self._patience = _LESS
                self._next = min(self._waiting)
                self._tell()

    def _advance(self) -> None:
        before = self._next
        while self._next < len(self._order) and self._next in self._over:
            self._next += 1
        if (spoken := self._spoken.get(self._next)) is not None:
            del self._spoken[self._next]
            task = asyncio.ensure_future(self._say(self._next, spoken))
            self._speaking.add(task)
            task.add_done_callback(self._speaking.discard)
        if self._next != before:
            self._tell()

    async def _say(self, number: int, spoken: Spoken) -> None:
        try:
            if self.speak is not None:
                await self.speak(spoken)
        finally:
            self._over.add(number)
            self._advance()

    def _tell(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def begins(who: str) -> str:
    return f"{who} begins"


def ends(who: str) -> str:
    return f"{who} ends"


def who(agent: str, number: int) -> str:
    """The how-manieth run of an agent, or of the one that votes for it."""
    return f"{agent}/{number}"


def call_place(key: str, index: int | None = None) -> str:
    """Which call of which answer a key names: `m2.1`. A script's calls are numbered in their ids."""
    answer, _, call = key.partition("/")
    if index is None:
        last = call.rpartition("_")[2]
        index = int(last) if last.isdigit() and len(last) < 6 else 0
    return f"{answer}.{index + 1}"
