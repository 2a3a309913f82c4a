"""What a program is handed that takes a message of text: attachments of text stand in it, others it has to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeFailed

if TYPE_CHECKING:
    from collections.abc import Collection

    from guildhall.runtimes.catalog import Row
    from guildhall.runtimes.model import Assignment


def words_of(assignment: Assignment) -> str:
    """The first message, and after it each attachment with a line that says what it is."""
    texts = [assignment.first_message]
    for one in assignment.attachments:
        texts += [one.label, one.data.decode()] if one.is_text else [one.label]
    return "\n\n".join(texts)


def refuse_unseen(row: Row, assignment: Assignment, takes: Collection[str] = ()) -> None:
    """Says no to what the program could not show to its model."""
    unseen = [one.label for one in assignment.attachments if not one.is_text and one.media_type not in takes]
    if unseen:
        raise RuntimeFailed(
            f"runtime {row.name}: {row.title} cannot hand this over to its model: {', '.join(unseen)}",
            hint="Attach text, or let a worker with `runtime: pydantic` or `runtime: claude` look at it.",
        )
