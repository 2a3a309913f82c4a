"""What a program is handed that takes a message of text: attachments of text stand in it, others it has to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.pydantic import asked

if TYPE_CHECKING:
    from collections.abc import Collection

    from guildhall.runtimes.catalog import Row
    from guildhall.runtimes.model import Assignment


def words_of(assignment: Assignment) -> str:
    """The first message and its attachments as our own runtime tells them: as data, fenced. Pictures go beside it."""
    first = asked(assignment)
    items = [first] if isinstance(first, str) else first
    return "\n\n".join(text for item in items if isinstance(text := getattr(item, "content", item), str))


def refuse_unseen(row: Row, assignment: Assignment, takes: Collection[str] = ()) -> None:
    """Says no to what the program could not show to its model."""
    unseen = [one.label for one in assignment.attachments if not one.is_text and one.media_type not in takes]
    if unseen:
        raise RuntimeFailed(
            f"runtime {row.name}: {row.title} cannot hand this over to its model: {', '.join(unseen)}",
            hint="Attach text, or let a worker with `runtime: pydantic` or `runtime: claude` look at it.",
        )
