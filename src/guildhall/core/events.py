"""What happens in a run, told as it happens.

Events are for eyes: the terminal, the page, a stream of JSON lines. They are published after the fact they tell is
committed, carry nothing that the journal does not also know (but for the pieces of a text that is still being
written), and nobody may build state on them.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping

EventType = Literal[
    "run_started",  # worker, runtime, model, plan, attachments (as described), resumed; parent: who called it
    "text_delta",  # text
    "tool_use",  # id, tool, arguments; refused: it is not made
    "tool_output",  # id, tool, text: a piece of what a command writes while it runs
    "tool_result",  # id, tool, text, is_error
    "turn_end",  # turn, input_tokens, output_tokens, cost_usd
    # number: of the words that a conversation waits for now, from 1. The n-th are answered when it listens for a later
    # one. Of words that are there already when a turn is over it does not say that it waits for them.
    "listening",
    "workflow",  # phase, reason, steps (of its setup): of the workflow that the run is
    "message",  # id, kind, content, reached: something was said in the room, by the actor
    "held",  # the same, but it has come too far to be delivered
    "proposal",  # proposal: one that was made, or has ended
    "vote",  # id, choice, reason
    "document",  # file, action
    "status",  # task, state
    "no_action",  # reason
    "trouble",  # message: something of the room could not be done
    "ask_opened",  # ask (as `guild show` prints it)
    "ask_closed",  # id, status
    "memory_condensed",  # text, scope, done, reason, sources, archive, before, after, by (the run that did it)
    "error",  # code, message, hint; transient: it is tried again; attempt, attempts, pause: for which time, and when
    "run_ended",  # status, reason
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened in one run."""

    type: EventType
    run: str
    root: str  # the run at the top of its tree
    at: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        return {"type": self.type, "run": self.run, "root": self.root, "at": self.at, **self.data}


class EventBus:
    """Hands each event to whoever listens to the tree that its run belongs to."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[Event], None]]] = {}

    def publish(self, event: Event) -> None:
        for listener in tuple(self._listeners.get(event.root, ())):  # one that leaves meanwhile must not hide the next
            listener(event)

    @contextmanager
    def listening(self, root: str, most: int | None = None) -> Generator[AsyncIterator[Event]]:
        """The events of a tree of runs from now on; they are kept until they are read.

        At `most` so many: beyond that, pieces of text are left out, and a reader that falls behind further is cut off.
        """
        kept = _Kept(most)
        listeners = self._listeners.setdefault(root, [])
        listeners.append(kept.put)
        try:
            yield kept.drain()
        finally:
            listeners.remove(kept.put)
            if not listeners:
                del self._listeners[root]


class _Kept:
    """The events that a listener has yet to read."""

    def __init__(self, most: int | None) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._most = most
        self._behind = False

    def put(self, event: Event) -> None:
        if self._behind:
            return
        waiting = self._queue.qsize()
        if self._most is not None and waiting >= self._most:
            if event.type == "text_delta":
                return
            self._behind = waiting >= 2 * self._most
        self._queue.put_nowait(None if self._behind else event)

    async def drain(self) -> AsyncIterator[Event]:
        while (event := await self._queue.get()) is not None:
            yield event
        raise Conflict(
            "the events were read too slowly, and no more of them are kept",
            hint="The run goes on. `guild log ID -f` shows what it did and what it does.",
        )
