"""Operations of a room: registers them by name, and executes each one in a transaction with its log entry.

The first parameter of an operation is the turn or, for documents, the call. The log keeps the other parameters. Tool
calls, commands, the hall and replays perform operations by name.
Does not define operations (`channel.py`, `inbox.py`, `documents.py`, `ballots.py`) or announce them (`service.py`).

Invariant: the effect of an operation and its log entry are one transaction. A call of a run that was performed before,
by run and key, returns the recorded result and has no second effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from guildhall.core.errors import Conflict, GuildError, NotFound, Refused, UsageError
from guildhall.room import records
from guildhall.room.model import Actor, RoomEvent, RoomEventType, RoomRecord

if TYPE_CHECKING:
    from sqlalchemy import Connection

    Effect = Callable[["Turn"], Mapping[str, Any] | None]
    ExtraEffect = Callable[[Connection], object]

Function = TypeVar("Function", bound="Callable[..., Any]")
# turn: one transaction in an open room. A refused call is logged, too.
# mail: an update of deliveries, even in a closed room. It is logged only if it changed a delivery.
# document: async, because it accesses files before the transaction. It returns the effect of the transaction.
Kind = Literal["turn", "mail", "document"]
READS = frozenset({"room.read"})
WRITES = frozenset({"room.write"})
REGISTERED: dict[str, Operation] = {}  # by name; complete after `service.py` is imported
_ERRORS = {error.code: error for error in (UsageError, NotFound, Refused, Conflict)}


@dataclass
class Turn:
    """One operation inside its transaction, and the events and wake-ups to announce after the commit."""

    connection: Connection
    room_id: str
    actor: Actor
    at: str
    wakes: set[str] = field(default_factory=set[str])
    events: list[RoomEvent] = field(default_factory=list[RoomEvent])

    room: RoomRecord = field(init=False)  # as it was at the start of the turn

    def __post_init__(self) -> None:
        """Load the room. Raise NotFound if it does not exist."""
        room = records.find_room(self.connection, self.room_id)
        if room is None:
            raise NotFound(f"unknown room {self.room_id!r}")
        self.room = room

    def add_event(self, type: RoomEventType, /, **data: Any) -> None:
        self.events.append(RoomEvent(type=type, room=self.room_id, actor=self.actor.name, at=self.at, data=data))


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """A registered operation. Operations with `capabilities` are tools of agents."""

    function: Callable[..., Any]
    kind: Kind
    capabilities: frozenset[str] | None
    normalise: Callable[[dict[str, Any]], dict[str, Any]] | None  # returns the arguments for the log
    render: Callable[[Mapping[str, Any]], str]  # returns the result as text for the model
    unlogged: tuple[str, ...]  # arguments that the result repeats
    changes_access: bool  # True if it can change permissions to write documents

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in their normal form. Raise UsageError if they do not fit the operation."""
        try:
            bound = self._signature.bind(None, **arguments)
        except TypeError as error:
            raise UsageError(f"{self.name}: {error}") from None
        if self.capabilities is not None:
            bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        return given if self.normalise is None else self.normalise(given)

    def logged_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if name not in self.unlogged}


def operation(
    capabilities: frozenset[str] | None = None,
    *,
    kind: Kind = "turn",
    normalise: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    render: Callable[[Mapping[str, Any]], str] = itemgetter("text"),
    unlogged: tuple[str, ...] = (),
    changes_access: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as the operation of its name. The model reads the docstring of an operation for agents."""

    def register(function: Function) -> Function:
        REGISTERED[function.__name__] = Operation(
            function=function,
            kind=kind,
            capabilities=capabilities,
            normalise=normalise,
            render=render,
            unlogged=unlogged,
            changes_access=changes_access,
        )
        return function

    return register


@dataclass(frozen=True, kw_only=True)
class OperationResult:
    """The result of an operation. `turn` is None for a repeated call, which is not announced again."""

    result: dict[str, Any]
    turn: Turn | None


def execute(
    connection: Connection,
    room: str,
    operation: Operation,
    actor: Actor,
    at: str,
    arguments: Mapping[str, Any],
    effect: Effect,
    extra: ExtraEffect | None = None,
) -> OperationResult:
    """Perform the effect of an operation once, and log it. A refused operation leaves only its log entry.

    `extra` is a further effect in the same savepoint.
    """
    if (recorded := recorded_result(connection, room, operation.name, actor)) is not None:
        return OperationResult(result=recorded, turn=None)
    logged = operation.logged_arguments(arguments)
    if operation.kind == "mail":
        turn = Turn(connection, room, actor, at)
        changed = effect(turn)
        result = dict(changed or {})
        if changed is not None:
            records.add_log_entry(connection, room, operation.name, actor, at, logged, result)
        return OperationResult(result=result, turn=turn)
    turn = begin_turn(connection, room, actor, at)
    try:
        with records.savepoint(connection):
            result = dict(effect(turn) or {})
            if extra is not None:
                extra(connection)
    except GuildError as error:
        result = {"error": error.as_dict()}
        turn = begin_turn(connection, room, actor, at)
    records.add_log_entry(connection, room, operation.name, actor, at, logged, result)
    return OperationResult(result=result, turn=turn)


def recorded_result(connection: Connection, room: str, op: str, actor: Actor) -> dict[str, Any] | None:
    """Return the result of an earlier call with this key, or None. Raise Conflict if it was another operation."""
    if actor.run is None or actor.key is None:
        return None
    if (recorded := records.find_call(connection, room, actor.run, actor.key)) is None:
        return None
    recorded_op, result = recorded
    if recorded_op != op:
        raise Conflict(f"cannot repeat the call {actor.key[:80]!a} of {actor.run}: it was {recorded_op}, not {op}")
    return result


def begin_turn(connection: Connection, room: str, actor: Actor, at: str) -> Turn:
    """Return a turn in a transaction. Raise NotFound for an unknown room, Conflict for a closed one."""
    turn = Turn(connection, room, actor, at)
    if turn.room.closed_at is not None:
        raise Conflict(f"cannot use the room {room} of {turn.room.workflow}:{turn.room.tag}: it is closed")
    return turn


def check_result(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the result of an operation. Raise the recorded error if the operation was refused."""
    if (error := result.get("error")) is None:
        return result
    raise _ERRORS.get(error["code"], Refused)(error["message"], hint=error.get("hint"), where=error.get("where"))
