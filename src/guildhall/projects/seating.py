"""A worker in a project: it has the files of a checkout of its own, and is told how it works there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.activities.model import READING, WRITING

if TYPE_CHECKING:
    from guildhall.workers.model import Worker

FILES = (*READING, *WRITING)  # that it has without declaring them


def in_checkout(worker: Worker, how_to: str) -> Worker:
    """The worker as it is there. No schema is its own: where a result has a form, the seat tells it."""
    definition = worker.definition
    declared = [name for name in definition.tools if name not in FILES]
    changed = {"tools": (*FILES, *declared), "output_schema_ref": None}
    told = f"{worker.instructions.rstrip()}\n\n{how_to}\n"
    return replace(worker, definition=definition.model_copy(update=changed), instructions=told)
