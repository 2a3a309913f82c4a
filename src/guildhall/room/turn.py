"""One operation on a room, inside the transaction that makes it: whose it is, when, and what is to be told afterwards.

Every operation takes its place in the room's log together with its effect. A call of a run that was made before has the
recorded result, and does nothing a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, NotFound, Refused, UsageError
from guildhall.room import records
from guildhall.room.model import Happened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from guildhall.room.model import Actor, HappenedType, RoomRecord

_ERRORS = {error.code: error for error in (UsageError, NotFound, Refused, Conflict)}


@dataclass
class Turn:
    """Somebody's turn to change the room. What it gathers is told once it is committed."""

    connection: Connection
    room: RoomRecord
    actor: Actor
    at: str
    wakes: set[str] = field(default_factory=set[str])
    happened: list[Happened] = field(default_factory=list[Happened])

    def tell(self, type: HappenedType, /, **data: Any) -> None:
        self.happened.append(Happened(type=type, room=self.room.id, actor=self.actor.name, at=self.at, data=data))


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What came of an operation; `turn` is None where it had been made before."""

    result: dict[str, Any]
    turn: Turn | None


def take(
    connection: Connection,
    room: str,
    op: str,
    actor: Actor,
    at: str,
    arguments: Mapping[str, Any],
    do: Callable[[Turn], Mapping[str, Any]],
) -> Taken:
    """Makes an operation once. One that is refused leaves nothing behind but its place in the log."""
    if (before := recorded(connection, room, op, actor)) is not None:
        return Taken(result=before, turn=None)
    turn = begin(connection, room, actor, at)
    try:
        with records.all_or_nothing(connection):
            result = dict(do(turn))
    except GuildError as error:
        result = refusal(error)
        turn = begin(connection, room, actor, at)
    records.log(connection, room, op, actor, at, arguments, result)
    return Taken(result=result, turn=turn)


def recorded(connection: Connection, room: str, op: str, actor: Actor) -> dict[str, Any] | None:
    """The result of a call that was made before."""
    if actor.run is None or actor.key is None:
        return None
    before = records.recorded(connection, room, actor.run, actor.key)
    if before is None:
        return None
    if before[0] != op:
        raise Conflict(f"the call {actor.key[:80]!a} of {actor.run} was {before[0]}, and not {op}")
    return before[1]


def begin(connection: Connection, room: str, actor: Actor, at: str) -> Turn:
    """A turn in a transaction. NotFound where there is no such room, Conflict where it is closed."""
    found = records.room(connection, room)
    if found is None:
        raise NotFound(f"there is no room {room!r}")
    if found.closed_at is not None:
        raise Conflict(f"the room {room} of {found.workflow}:{found.tag} is closed")
    return Turn(connection, found, actor, at)


def refusal(error: GuildError) -> dict[str, Any]:
    """An error as the log has it."""
    return {"error": error.as_dict()}


def settled(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of an operation; one that was refused raises what it was refused with."""
    if (error := result.get("error")) is None:
        return result
    kind = _ERRORS.get(error["code"], Refused)
    raise kind(error["message"], hint=error.get("hint"), where=error.get("where"))
