"""Call order: lets the calls of one model response take effect in the order of the response.

Calls that only read and calls of other workers run in parallel. Any other call waits for all calls before it, and all
calls after it wait for it. Calls of an unknown response are ordered by their arrival.

Does not order calls of different responses: a runtime calls its model again only after all results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guildhall.tools.definition import argument_problem

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from guildhall.tools.model import Tool, ToolCall

_PARALLEL = frozenset({"fs.read", "memory.read", "artifact.read", "room.read", "worker.call"})
_ARRIVAL_TIMEOUT_S = 30.0  # a program may never make a call that its model has requested


def is_parallel(tool: Tool, arguments: Mapping[str, object]) -> bool:
    """Return True if the call may run in parallel: it only reads, calls a worker, or repeats a request safely."""
    if tool.parallel:
        return True
    capabilities = tool.capabilities_of(arguments)
    safe = _PARALLEL | {"net"} if tool.repeatable else _PARALLEL
    return bool(capabilities) and capabilities <= safe


@dataclass(eq=False)
class OrderedCall:
    """A call with the earlier calls of its response that it must wait for."""

    key: str
    parallel: bool
    earlier: tuple[OrderedCall, ...]
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class CallOrder:
    """The order of the calls of one run."""

    def __init__(self, tools: Mapping[str, Tool], *, arrival_timeout_s: float = _ARRIVAL_TIMEOUT_S) -> None:
        self._tools = tools
        self._arrival_timeout_s = arrival_timeout_s
        # The calls that have not ended, by the key of the model call and the key of the call.
        self._responses: dict[str, dict[str, OrderedCall]] = {}

    @contextmanager
    def enter(self, call: ToolCall, find_calls: Callable[[], Sequence[ToolCall]]) -> Generator[OrderedCall]:
        """Yield the call in the order of its response. Later calls stop waiting for it when the context exits.

        `find_calls` returns all calls of the response. Only the first call of a response uses it.
        """
        model_key = call.key.partition("/")[0]
        if (calls := self._responses.get(model_key)) is None:
            calls = self._responses[model_key] = {}
            for found in find_calls():
                self._append(calls, found)
        entered = calls.get(call.key) or self._append(calls, call)
        entered.arrived.set()
        try:
            yield entered
        finally:
            entered.ended.set()
            calls.pop(call.key, None)
            if not calls:
                self._responses.pop(model_key, None)

    async def wait(self, call: OrderedCall, waiting: AbstractContextManager[None]) -> None:
        """Wait until the call may take effect. `waiting` is entered only if the call has to wait."""
        blocking = [other for other in call.earlier if not other.ended.is_set()]
        if not blocking:
            return
        with waiting:
            absent = [other for other in blocking if not other.arrived.is_set()]
            if absent:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._arrival_timeout_s):
                        for other in absent:
                            await other.arrived.wait()
            for other in blocking:
                if other.arrived.is_set():
                    await other.ended.wait()

    def _append(self, calls: dict[str, OrderedCall], call: ToolCall) -> OrderedCall:
        """Append a call. An invalid call has no effect, so it is not appended and waits for nothing."""
        tool = self._tools.get(call.tool)
        if tool is None or call.arguments is None or argument_problem(tool, call.arguments):
            return OrderedCall(call.key, parallel=True, earlier=())
        parallel = is_parallel(tool, call.arguments)
        earlier = tuple(other for other in calls.values() if not (parallel and other.parallel))
        calls[call.key] = ordered = OrderedCall(call.key, parallel, earlier)
        return ordered
