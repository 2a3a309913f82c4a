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
    earlier: tuple[Place, ...]  # the calls that it waits for
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
        answer_key = call.key.partition("/")[0]
        if (places := self._answers.get(answer_key)) is None:
            places = self._answers[answer_key] = []
            for one in find_answer():
                self._append(places, one)
        place = next((one for one in places if one.key == call.key), None) or self._append(places, call)
        place.arrived.set()
        try:
            yield place
        finally:
            place.ended.set()
            if all(one.ended.is_set() for one in places):
                self._answers.pop(answer_key, None)

    async def wait(self, place: Place, waiting: AbstractContextManager[None]) -> None:
        """Wait until the call may take effect. `waiting` is entered only if the call has to wait."""
        blocking = [one for one in place.earlier if not one.ended.is_set()]
        if not blocking:
            return
        with waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._arrival_timeout_s):
                    await asyncio.gather(*(one.arrived.wait() for one in blocking))
            await asyncio.gather(*(one.ended.wait() for one in blocking if one.arrived.is_set()))

    def _append(self, places: list[Place], call: ToolCall) -> Place:
        """Append a place. A call that the gate refuses has no effect, so it waits for nothing and blocks nothing."""
        tool = self._tools.get(call.tool)
        if tool is None or call.arguments is None or argument_problem(tool, call.arguments):
            return Place(call.key, parallel=True, earlier=())
        parallel = is_parallel(tool, call.arguments)
        earlier = tuple(one for one in places if not (parallel and one.parallel))
        places.append(place := Place(call.key, parallel, earlier))
        return place
