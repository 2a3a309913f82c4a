"""Resources: large content that is kept once, under a hash of it, and referred to by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.room import shared_records
from guildhall.room.model import check_line, check_text, pin

if TYPE_CHECKING:
    from guildhall.room.turn import Turn

PLAIN = "text/plain"


def keep(turn: Turn, content: str, type: str = PLAIN) -> str:
    """Keeps a content; its id. The same content again is the same resource."""
    check_text(content, "the content")
    if not content:
        raise UsageError("the content is empty", hint="A resource holds something.")
    kind = check_line(type, "the type")
    id = pin(content)
    if shared_records.resource(turn.connection, turn.room.id, id) is None:
        shared_records.add_resource(turn.connection, turn.room.id, id, content, kind, turn.actor, turn.at)
    return id


def fetch(turn: Turn, id: str) -> tuple[str, str]:
    """The content and the type of a resource."""
    id = check_line(id, "the id")
    found = shared_records.resource(turn.connection, turn.room.id, id)
    if found is None:
        known = shared_records.resource_ids(turn.connection, turn.room.id)
        raise NotFound(f"there is no resource {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return found
