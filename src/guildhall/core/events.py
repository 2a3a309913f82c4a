"""Events: define the types of live notifications about a run, and a bus that delivers them to listeners.

Events are for display: the terminal, a web page, a stream of JSON lines. A listener receives the events of a root run
and its child runs. A listener with a limit loses text deltas first and is disconnected if it falls further behind.

Does not store events (see `runs.record.journal`).

Invariant: an event is published after its fact is committed. Except for pieces of unfinished text, an event has no
fact that the journal lacks. No code may build state on events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, cast

from guildhall.core.errors import Conflict, ErrorInfo

EventType = Literal[
    "run_started",
    "text_delta",
    "tool_use",
    "tool_output",
    "tool_result",
    "turn_end",
    "listening",
    "workflow",
    "message",
    "held",
    "proposal",
    "vote",
    "document",
    "status",
    "no_action",
    "trouble",
    "ask_opened",
    "ask_closed",
    "memory_condensed",
    "error",
    "run_ended",
]

# The data of each type of event. TypedDicts, because events are made for every piece of text, and because every command
# imports this module: a dataclass costs half a millisecond to define.


class RunStartedData(TypedDict):
    """A run was started or resumed."""

    worker: str
    runtime: str
    model: str
    plan: str
    attachments: list[dict[str, Any]]  # name, type and size of each file
    resumed: bool
    parent: str | None  # id of the calling run


class TextDeltaData(TypedDict):
    """A part of a model response."""

    text: str


class ToolUseData(TypedDict):
    """A tool call, before it is made."""

    id: str
    tool: str
    arguments: Mapping[str, Any] | None
    refused: NotRequired[bool]  # True if the call is not made


class ToolOutputData(TypedDict):
    """A part of the output of a running command."""

    id: str
    tool: str
    text: str


class ToolResultData(TypedDict):
    """The result of a tool call."""

    id: str  # id of the call
    tool: str
    text: str
    is_error: bool


class TurnEndData(TypedDict):
    """A turn ended."""

    turn: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: NotRequired[int]
    cache_write_tokens: NotRequired[int]
    cost_usd: float | None


class ListeningData(TypedDict):
    """A conversation waits for the user's message with this number, from 1.

    Message n is answered when the conversation listens for a later one. The event is not published for messages that
    exist when the turn ends.
    """

    number: int


class WorkflowData(TypedDict):
    """A workflow entered a phase."""

    phase: str
    reason: str | None
    steps: int  # number of setup commands


class MessageData(TypedDict):
    """A message was sent in the room and delivered, or held back (`held`)."""

    actor: str
    id: int
    kind: str
    content: str
    reached: list[str]
    missed: list[str]
    overlooked: list[str]
    held: bool
    resource: str | None


class ProposalData(TypedDict):
    """A proposal was made or has ended."""

    actor: str
    proposal: Mapping[str, Any]


class VoteData(TypedDict):
    """An agent has voted."""

    actor: str
    id: str
    choice: str
    reason: str | None


class DocumentData(TypedDict):
    """A document was created or changed."""

    actor: str
    path: str
    new: bool
    size: int  # bytes


class StatusData(TypedDict):
    """An agent has set its status."""

    actor: str
    task: NotRequired[str | None]
    state: NotRequired[str | None]


class NoActionData(TypedDict):
    """An agent reported that no action is needed."""

    actor: str
    reason: str | None


class TroubleData(TypedDict):
    """An operation of the room failed."""

    actor: NotRequired[str]
    message: str


class AskOpenedData(TypedDict):
    """An ask was created."""

    ask: dict[str, Any]  # as `guild show` prints it


class AskClosedData(TypedDict):
    """An ask was answered, has expired or was withdrawn."""

    id: str
    status: str


class MemoryCondensedData(TypedDict):
    """A memory folder was compacted, or could not be."""

    text: str
    scope: str
    done: bool
    reason: str | None
    sources: list[str]
    archive: str | None
    before: int  # characters
    after: int  # characters
    by: str | None  # id of the run of the compactor


class ErrorData(ErrorInfo):
    """An error. If it is `transient`, attempt number `attempt` of `attempts` follows after `pause` seconds."""

    transient: NotRequired[bool]
    attempt: NotRequired[int]
    attempts: NotRequired[int]
    pause: NotRequired[float]
    renewed: NotRequired[bool]  # True if the session of a meeting was renewed


class RunEndedData(TypedDict):
    """A run segment ended."""

    status: str
    reason: str | None


EVENT_DATA: Mapping[EventType, Any] = {
    "run_started": RunStartedData,
    "text_delta": TextDeltaData,
    "tool_use": ToolUseData,
    "tool_output": ToolOutputData,
    "tool_result": ToolResultData,
    "turn_end": TurnEndData,
    "listening": ListeningData,
    "workflow": WorkflowData,
    "message": MessageData,
    "held": MessageData,
    "proposal": ProposalData,
    "vote": VoteData,
    "document": DocumentData,
    "status": StatusData,
    "no_action": NoActionData,
    "trouble": TroubleData,
    "ask_opened": AskOpenedData,
    "ask_closed": AskClosedData,
    "memory_condensed": MemoryCondensedData,
    "error": ErrorData,
    "run_ended": RunEndedData,
}
_TYPES: Mapping[Any, EventType] = {data: type for type, data in EVENT_DATA.items() if type != "held"}
DataT = TypeVar("DataT")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A notification about a run."""

    type: EventType
    run: str
    root: str  # id of the root run
    at: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @staticmethod
    def of(kind: type[DataT], data: DataT, *, run: str, root: str, at: str) -> Event:
        """Return an event with data of this type, as in `Event.of(TextDeltaData, {"text": "x"}, ...)`."""
        return Event(type=_TYPES[kind], run=run, root=root, at=at, data=cast("Mapping[str, Any]", data))

    def read(self, data: type[DataT]) -> DataT | None:
        """Return the data of the event, or None if the data has another type."""
        return cast("DataT", self.data) if EVENT_DATA[self.type] is data else None

    def as_dict(self) -> dict[str, Any]:
        return {"type": self.type, "run": self.run, "root": self.root, "at": self.at, **self.data}


class EventBus:
    """Delivers each event to the listeners of its root run."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[Event], None]]] = {}

    def publish(self, event: Event) -> None:
        for listener in tuple(self._listeners.get(event.root, ())):  # a listener may be removed meanwhile
            listener(event)

    @contextmanager
    def listening(self, root: str, limit: int | None = None) -> Generator[AsyncIterator[Event]]:
        """Yield an iterator over new events of a root run and its child runs.

        If more than `limit` events are unread, text deltas are dropped. Beyond twice the limit the iterator raises
        Conflict.
        """
        queue = _Queue(root, limit)
        listeners = self._listeners.setdefault(root, [])
        listeners.append(queue.put)
        try:
            yield queue.drain()
        finally:
            listeners.remove(queue.put)
            if not listeners:
                del self._listeners[root]


class _Queue:
    """The unread events of a listener."""

    def __init__(self, root: str, limit: int | None) -> None:
        self._root = root
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._limit = limit
        self._is_behind = False

    def put(self, event: Event) -> None:
        if self._is_behind:
            return
        unread = self._queue.qsize()
        if self._limit is not None and unread >= self._limit:
            if event.type == "text_delta":
                return
            self._is_behind = unread >= 2 * self._limit
        self._queue.put_nowait(None if self._is_behind else event)

    async def drain(self) -> AsyncIterator[Event]:
        while (event := await self._queue.get()) is not None:
            yield event
        raise Conflict(
            "the client read its events too slowly and was disconnected",
            hint=f"The run continues. Follow it again: guild log {self._root} -f",
        )
