"""The turn order of a recorded team: makes the agents of a test take their turns in the recorded order.

A place in the order is a line such as `coder/2 begins 7` (its second run, whose inbox ends with message 7), `coder/2
m1.1 channel_send` (the first call of its first model response) or `coder/2 ends`.
The order is read from a recording in `replay.py`. It has no effect outside of tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.models.scripted.test_section import UserMessage
    from guildhall.runs.model import Run
    from guildhall.tools.model import Execute, Tool, ToolCall, ToolResult
    from guildhall.workflow.agent_steps import Step
    from guildhall.workflow.model import Agent

    TakeTurn = Callable[[Agent, Step], Awaitable[Run | None]]

_TIMEOUT_S = 6.0  # without a move, before the next place is skipped
_SHORT_TIMEOUT_S = 0.1  # after the first skipped place, because the test already differs


class TurnOrder:
    """Delays agents until their turn in the recording. A place that is not in the recording is not delayed."""

    def __init__(self, order: Sequence[str | UserMessage]) -> None:
        self.post: Callable[[UserMessage], Awaitable[object]] | None = None
        self.active_calls: set[str] = set()  # calls in progress
        self.loop_answers = 0  # recorded answers about loops that are still to be given
        self.leaves_loop = False  # True if the recorded team ended while a question about a loop was open
        self._order = [place if isinstance(place, str) else None for place in order]
        self._user_messages = {number: place for number, place in enumerate(order) if not isinstance(place, str)}
        self._last_messages: dict[str, int] = {}  # by run
        self._numbers: dict[str, int] = {}
        for number, place in enumerate(self._order):
            if place is None:
                continue
            run, _, last = place.partition(" begins ")
            if last.isdigit():
                self._last_messages[run] = int(last)
                place = begin_label(run)
            self._numbers[place] = number
        self._finished: set[int] = set()
        self._next = 0
        self._waiting: list[int] = []
        self._moved = asyncio.Event()
        self._timeout_s = _TIMEOUT_S
        self._posts: set[asyncio.Task[None]] = set()

    def delay_turns(self, take_turn: TakeTurn, next_step: Callable[[str, int | None], Step]) -> TakeTurn:
        """Return `take_turn`, delayed until the turn of the run. `next_step`: gets the mail up to a message."""

        async def take_in_order(agent: Agent, step: Step) -> Run | None:
            label = run_label(agent.name, step.number)
            if step.run is None:
                await self.wait_for(begin_label(label))
                if label in self._last_messages:
                    step = next_step(agent.name, self._last_messages[label])
                    label = run_label(agent.name, step.number)
            resumes = False
            try:
                run = await take_turn(agent, step)
                resumes = next_step(agent.name, None).resumes
                return run
            finally:
                self.finish(begin_label(label))
                if not resumes:
                    self.finish(end_label(label))

        return take_in_order

    def delay_calls(self, run: str, execute: Execute, final_tools: frozenset[str] = frozenset()) -> Execute:
        """Return `execute`, delayed until it is the turn of a call. A final tool returns when the run may end."""

        async def execute_in_order(tool: Tool, call: ToolCall) -> ToolResult:
            place = f"{run} {call_label(call.key)} {tool.name}"
            await self.wait_for(place)
            try:
                result = await execute(tool, call)
            finally:
                self.finish(place)
            if tool.name in final_tools and not result.is_error:
                await self.wait_for(end_label(run))
            return result

        return execute_in_order

    @property
    def is_unattended(self) -> bool:
        """Return True if the team ends without an answer to the next question about a loop."""
        return self.leaves_loop and self.loop_answers <= 0

    async def wait_for(self, place: str) -> None:
        """Return when a place is next in the order. `finish` ends its turn."""
        number = self._numbers.get(place)
        if number is None:
            return
        self._waiting.append(number)
        try:
            self._advance()
            while self._next < number:
                await self._wait_for_move()
        finally:
            self._waiting.remove(number)

    def finish(self, place: str) -> None:
        """End the turn of a place."""
        number = self._numbers.get(place)
        if number is not None and number not in self._finished:
            self._finished.add(number)
            self._advance()

    async def _wait_for_move(self) -> None:
        """Return when an agent has moved, or skip to the next awaited place after a timeout."""
        moved = self._moved
        try:
            async with asyncio.timeout(self._timeout_s):
                await moved.wait()
        except TimeoutError:
            if moved is self._moved and not self.active_calls and not self._posts:
                self._timeout_s = _SHORT_TIMEOUT_S
                self._next = min(self._waiting)
                self._notify()

    def _advance(self) -> None:
        before = self._next
        while self._next < len(self._order) and self._next in self._finished:
            self._next += 1
        if (message := self._user_messages.pop(self._next, None)) is not None:
            task = asyncio.ensure_future(self._post(self._next, message))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)
        if self._next != before:
            self._notify()

    async def _post(self, number: int, message: UserMessage) -> None:
        try:
            if self.post is not None:
                await self.post(message)
        finally:
            self._finished.add(number)
            self._advance()

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def begin_label(run: str) -> str:
    return f"{run} begins"


def end_label(run: str) -> str:
    return f"{run} ends"


def run_label(agent: str, number: int) -> str:
    """Return the label of an agent's n-th run, such as `coder/2`."""
    return f"{agent}/{number}"


def call_label(key: str, index: int | None = None) -> str:
    """Return the label of a call by its key, such as `m2.1`. The ids of a script's calls end with their index."""
    response, _, call = key.partition("/")
    if index is None:
        last = call.rpartition("_")[2]
        index = int(last) if last.isdigit() and len(last) < 6 else 0
    return f"{response}.{index + 1}"
