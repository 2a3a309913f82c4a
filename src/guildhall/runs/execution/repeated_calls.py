"""Repeated calls: count equal tool calls in a row, and add a note to their results.

Calls are equal if the tool, the arguments and the results are equal. Equal calls of one model response do not count,
because they may run in parallel. A user message and the resume of a failed run start a new count. Does not end the
run: `runs.execution.call_ledger` does, at the limit `max_repeats`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.runs.record import entries
from guildhall.tools.model import Text, ToolResult

if TYPE_CHECKING:
    from guildhall.runs.record.journal import Journal
    from guildhall.tools.model import ToolCall


def count_repeats(journal: Journal, call: ToolCall, result: ToolResult) -> int:
    """Return the number of equal calls directly before this call, in earlier model responses.

    `result`: of this call, without a note.
    """
    count = 0
    response = call.key.partition("/")[0]
    for entry in reversed(journal.entries):
        data = entry.data
        if isinstance(data, entries.Said) or (isinstance(data, entries.Resumed) and data.was == "failed"):
            break
        if not isinstance(data, entries.ToolEnded | entries.ToolRefused):
            continue
        if (entry.key or "").partition("/")[0] == response:
            continue
        began = journal.last(entry.key or "", entries.ToolStarted, entries.ToolRefused)
        if began is None or (began.data.tool, began.data.arguments) != (call.tool, call.arguments):
            break
        if without_repeat_note(data) != result:
            break
        count += 1
    return count


def with_repeat_note(result: ToolResult, repeats: int) -> ToolResult:
    if not repeats:
        return result
    note = (
        f"[Call {repeats + 1} in a row with the same arguments and the same result. Do not repeat it: use the result, "
        "call something else, or finish.]"
    )
    return replace(result, content=(*result.content, Text(note)))


def without_repeat_note(data: entries.ToolEnded | entries.ToolRefused) -> ToolResult:
    """Return the recorded result as the tool returned it."""
    result = ToolResult.from_dict(data.result)
    return replace(result, content=result.content[:-1]) if data.repeats else result
