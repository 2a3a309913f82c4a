"""The table of operations: all that can be done in a room, by name.

A tool call, a command of the user, the hall and a replay perform an operation by its name, through `Room.perform` or,
inside a transaction of the workflow, through `perform_in`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.room import channel, documents, inbox, resources, voting
from guildhall.room.operation import REGISTERED, execute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.model import Actor
    from guildhall.room.operation import Operation, Performed

_MODULES = frozenset(module.__name__ for module in (channel, documents, inbox, resources, voting))
OPERATIONS: Mapping[str, Operation] = {
    name: one for name, one in REGISTERED.items() if one.function.__module__ in _MODULES
}


def find_operation(name: str) -> Operation:
    """Return an operation by its name. Raise NotFound if there is none."""
    if (found := OPERATIONS.get(name)) is None:
        raise NotFound(f"unknown room operation {name[:80]!r}", hint=did_you_mean(name, OPERATIONS))
    return found


def perform_in(connection: Connection, room: str, name: str, actor: Actor, at: str, /, **arguments: Any) -> Performed:
    """Perform an operation in a transaction of the caller, who passes the turn to `Room.follow` after the commit."""
    operation = find_operation(name)
    if operation.kind == "document":
        raise UsageError(f"{name} cannot be performed inside a transaction")
    bound = operation.bind(arguments)
    return execute(connection, room, operation, actor, at, bound, partial(operation.function, **bound))
