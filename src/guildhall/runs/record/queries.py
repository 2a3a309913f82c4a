"""Run history: queries recorded runs, their trees and journals, and renders the conversation with the model.

Commands that only read import this module, so it has only light imports.

Does not write: `runs.record.journal` and `runs.record.records` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound
from guildhall.core.text_checks import suggest_or
from guildhall.runs.record import records
from guildhall.runs.record.entries import Assembly, Entry, ModelAnswered, ModelAsked, Payload, Said
from guildhall.runs.record.journal import Journal
from guildhall.runtimes.model import attachment_label

if TYPE_CHECKING:
    from guildhall.core.clock import Clock
    from guildhall.runs.model import ConversationMessage, Run
    from guildhall.runs.purpose import PurposeT
    from guildhall.store.engine import Store


_MAX_SUGGESTED_RUNS = 200  # searched for an id similar to an unknown one


class History:
    """The recorded runs of a database."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, run_id: str) -> Run:
        run = self._store.read(lambda connection: records.find_run(connection, run_id))
        if run is None:
            known = [recent.id for recent in self.recent(_MAX_SUGGESTED_RUNS, children=True)]
            raise NotFound(f"unknown run {run_id!r}", hint=suggest_or(run_id, known, "List all runs: guild ls --all"))
        return run

    def purpose(self, run_id: str, purpose: type[PurposeT]) -> PurposeT:
        """Return the purpose of a run whose kind the caller knows."""
        found = self.get(run_id).purpose_as(purpose)
        assert found is not None, f"{run_id} has another purpose"
        return found

    def workflow_of(self, run_id: str) -> str | None:
        """Return the root run if it is the run of a workflow, or None."""
        root_id = self.get(run_id).root
        root = self._store.read(lambda connection: records.find_run(connection, root_id))
        return root_id if root is not None and root.kind == "workflow" else None

    def recent(self, limit: int | None = None, *, children: bool = False) -> list[Run]:
        """Return the runs, newest first. Child runs are included only if `children` is set."""
        return self._store.read(lambda connection: records.list_runs(connection, limit, children=children))

    def descendants(self, run_id: str) -> list[Run]:
        """Return the child runs of a run, their child runs and so on, in the order of creation."""
        return self._store.read(lambda connection: records.list_descendants(connection, run_id))

    def journals_with_cut_off_calls(self, run_id: str) -> list[Journal]:
        """Return the journals of a stopped run and its descendants that have cut off model calls."""
        ids = self._store.read(lambda connection: records.list_runs_with_cut_off_calls(connection, run_id))
        return [self.journal(id) for id in ids]

    def tree(self, run_id: str) -> list[Run]:
        return [self.get(run_id), *self.descendants(run_id)]

    def journal(self, run_id: str) -> Journal:
        return Journal(run_id, self._store, self._clock, self.entries(run_id))

    def entries(self, run_id: str, after: int = -1) -> list[Entry[Payload]]:
        self.get(run_id)
        return self._store.read(lambda connection: records.list_entries(connection, run_id, after))

    def entries_without_files(self, run_id: str, after: int = -1) -> list[Entry[Payload]]:
        """Return the entries without the bytes of the attachments."""
        return [
            replace(entry, data=replace(entry.data, files=())) if isinstance(entry.data, Assembly) else entry
            for entry in self.entries(run_id, after)
        ]


def conversation(journal: Journal) -> list[ConversationMessage]:
    """Return the recorded messages to and from the model."""
    frozen = journal.assembly
    messages: list[ConversationMessage] = [{"role": "system", "content": frozen.system_prompt}]
    first_message = "\n".join([frozen.first_message, *map(attachment_label, frozen.attachments)])
    for recorded in journal.all(ModelAnswered):
        asked = journal.last(recorded.key or "", ModelAsked)
        if asked is not None:
            messages += [_message_to_model(part, first_message) for part in asked.data.message]
        messages.append(_message_from_model(recorded.data.response))
    unanswered = [] if journal.turns() else journal.all(Said)[-1:]
    messages.extend({"role": "user", "content": entry.data.words} for entry in unanswered)
    return messages


def _message_to_model(part: Mapping[str, Any], first_message: str) -> ConversationMessage:
    if part["part"] != "tool-return":  # only the first message, with its attachments, is not a text
        return {"role": "user", "content": part["content"] if isinstance(part["content"], str) else first_message}
    return {
        "role": "tool",
        "id": part["tool_call_id"],
        "tool": part["tool_name"],
        "content": part["content"],
        "is_error": part["outcome"] != "success",
    }


def _message_from_model(response: Mapping[str, Any]) -> ConversationMessage:
    parts: list[dict[str, Any]] = response["parts"]
    return {
        "role": "assistant",
        "content": "".join(part["content"] for part in parts if part["part_kind"] == "text"),
        "calls": [
            {"id": part["tool_call_id"], "tool": part["tool_name"], "arguments": part.get("args")}
            for part in parts
            if part["part_kind"] == "tool-call"
        ],
    }
