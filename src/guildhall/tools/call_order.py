"""Call order: lets the calls of one model answer take effect in the order of the answer.

Calls that only read and calls of other workers run in parallel. Any other call waits for all calls before it, and all
calls after it wait for it. Calls that no known answer contains are ordered by their arrival.

Does not order calls of different answers: a runtime asks its model again only after all results.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guildhall.tools.definition import argument_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from guildhall.tools.model import Tool, ToolCall

_PARALLEL = frozenset({"fs.read", "memory.read", "artifact.read", "room.read", "worker.call"})
_ARRIVAL_TIMEOUT_S = 30.0  # a program may never make a call that its model has requested


def is_parallel(tool: Tool, arguments: Mapping[str, object]) -> bool:
    """Return True if calls of the tool may run in parallel: it reads, calls a worker, or repeats a request safely."""
    if tool.parallel:
        return True
    capabilities = tool.capabilities_of(arguments)
    safe = _PARALLEL | {"net"} if tool.repeatable else _PARALLEL
    return bool(capabilities) and capabilities <= safe


@dataclass(eq=False)
class Place:
    """The place of a call in its answer."""

    key: str
    parallel: bool
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class CallOrder:
    """The order of the calls of one run."""

    def __init__(self, tools: Mapping[str, Tool], *, arrival_timeout_s: float = _ARRIVAL_TIMEOUT_S) -> None:
        self._tools = tools
        self._arrival_timeout_s = arrival_timeout_s
        self._answers: dict[str, list[Place]] = {}

    @contextmanager
    def place(self, call: ToolCall, find_answer: Callable[[], Sequence[ToolCall]]) -> Generator[Place]:
        """Give a call its place in the answer. Later calls stop waiting for it when the context exits.

        `find_answer` returns the calls of the answer. It is called for the first of them only.
        """
        name = _answer_key(call)
        if (places := self._answers.get(name)) is None:
            places = self._answers[name] = [place for one in find_answer() if (place := self._plan(one)) is not None]
        place = next((one for one in places if one.key == call.key), None)
        if place is None:
            place = self._plan(call) or Place(call.key, parallel=True)
            places.append(place)
        place.arrived.set()
        try:
            yield place
        finally:
            place.ended.set()
            if all(one.ended.is_set() for one in places):
                self._answers.pop(name, None)

    async def wait(self, call: ToolCall, place: Place, waiting: AbstractContextManager[None]) -> None:
        """Wait until the call may take effect. `waiting` is entered only if the call has to wait."""
        places = self._answers[_answer_key(call)]
        before = places[: places.index(place)]
        blocking = [one for one in before if not (place.parallel and one.parallel) and not one.ended.is_set()]
        if not blocking:
            return
        with waiting:
            for one in blocking:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._arrival_timeout_s):
                        await one.arrived.wait()
                if one.arrived.is_set():
                    await one.ended.wait()

    def _plan(self, call: ToolCall) -> Place | None:
        """Return a place for a call, or None if the gate refuses it without any effect."""
        tool = self._tools.get(call.tool)
        if tool is None or call.arguments is None or argument_problem(tool, call.arguments):
            return None
        return Place(call.key, is_parallel(tool, call.arguments))


def _answer_key(call: ToolCall) -> str:
    return call.key.partition("/")[0]
