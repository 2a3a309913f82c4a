"""Resources: large texts, stored once under their hash, which is their id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.room import shared_records
from guildhall.room.model import check_line, check_text, pin
from guildhall.room.operation import READS, WRITES, operation

if TYPE_CHECKING:
    from guildhall.room.operation import Turn

PLAIN = "text/plain"


def keep(turn: Turn, content: str, type: str = PLAIN) -> str:
    """Store a text and return its id. Equal texts are one resource."""
    check_text(content, "the content")
    if not content:
        raise UsageError("the content is empty", hint="A resource holds something.")
    kind = check_line(type, "the type")
    id = pin(content)
    if shared_records.resource(turn.connection, turn.room.id, id) is None:
        shared_records.add_resource(turn.connection, turn.room.id, id, content, kind, turn.actor, turn.at)
    return id


@operation(WRITES)
def resource_create(turn: Turn, content: str, type: str = PLAIN) -> dict[str, Any]:
    """Keep a large text for the team under an id, to refer to it instead of repeating it.

    Args:
        content: The text.
        type: What it is, such as text/plain or text/x-diff.
    """
    id = keep(turn, content, type)
    return {"text": f"Kept as resource {id}.", "id": id}


@operation(READS)
def resource_read(turn: Turn, id: str) -> dict[str, Any]:
    """Read a resource, whole.

    Args:
        id: Its id, as a message or resource_create named it.
    """
    id = check_line(id, "the id")
    found = shared_records.resource(turn.connection, turn.room.id, id)
    if found is None:
        known = shared_records.resource_ids(turn.connection, turn.room.id)
        raise NotFound(f"there is no resource {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return {"text": found[0]}
