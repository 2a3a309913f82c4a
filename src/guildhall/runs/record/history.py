"""Run history: queries recorded runs, their trees and journals, and renders the conversation with the model.

Commands that only read import this module, so its imports should stay light.

Does not write: `runs.record.journal` and `runs.record.records` do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound
from guildhall.core.text import nearest_or
from guildhall.runs.record import records
from guildhall.runs.record.entries import Assembly, Entry, ModelAnswered, ModelAsked, Payload, Said
from guildhall.runs.record.journal import Journal
from guildhall.runtimes.model import labelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.clock import Clock
    from guildhall.runs.model import ConversationMessage, Run
    from guildhall.runs.purpose import PurposeT
    from guildhall.store.engine import Store


_NEAR = 200  # runs among which the nearest name is looked for


class History:
    """The runs of a home, as they stand."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, run: str) -> Run:
        found = self._store.read(lambda connection: records.find_run(connection, run))
        if found is None:
            known = [near.id for near in self.recent(_NEAR, called=True)]
            raise NotFound(f"there is no run {run!r}", hint=nearest_or(run, known, "`guild ls --all` shows them."))
        return found

    def purpose(self, run: str, purpose: type[PurposeT]) -> PurposeT:
        """Return the purpose of a run whose kind the caller knows."""
        found = self.get(run).purpose_as(purpose)
        assert found is not None, f"{run} has another purpose"
        return found

    def workflow_of(self, run: str) -> str | None:
        top = self.get(run).root
        root = self._store.read(lambda connection: records.find_run(connection, top))
        return top if root is not None and root.kind == "workflow" else None

    def recent(self, limit: int | None = None, *, called: bool = False) -> list[Run]:
        """The newest runs; with those that another one has `called` only if they are wanted."""
        return self._store.read(lambda connection: records.list_runs(connection, limit, called=called))

    def below(self, run: str) -> list[Run]:
        """The runs that a run has called, and those that these have called."""
        return self._store.read(lambda connection: records.below(connection, run))

    def tree(self, run: str) -> list[Run]:
        """A run, and all below it in the order in which they were made."""
        return [self.get(run), *self.below(run)]

    def journal(self, run: str) -> Journal:
        return Journal(run, self._store, self._clock, self.entries(run))

    def entries(self, run: str, after: int = -1) -> list[Entry[Payload]]:
        self.get(run)
        return self._store.read(lambda connection: records.entries(connection, run, after))

    def shown(self, run: str, after: int = -1) -> list[Entry[Payload]]:
        """Return the entries without the bytes of the attachments."""
        return [
            replace(entry, data=replace(entry.data, files=())) if isinstance(entry.data, Assembly) else entry
            for entry in self.entries(run, after)
        ]


def conversation(journal: Journal) -> list[ConversationMessage]:
    """Return the recorded messages to the model and of the model."""
    frozen = journal.assembly
    messages: list[ConversationMessage] = [{"role": "system", "content": frozen.system_prompt}]
    asked_first = "\n".join([frozen.first_message, *map(labelled, frozen.attachments)])
    for answer in journal.all(ModelAnswered):
        asked = journal.last(answer.key or "", ModelAsked)
        if asked is not None:
            messages += [_said_to_model(part, asked_first) for part in asked.data.message]
        messages.append(_said_by_model(answer.data.response))
    unanswered = [] if journal.turns() else journal.all(Said)[-1:]
    messages.extend({"role": "user", "content": said.data.words} for said in unanswered)
    return messages


def _said_to_model(part: Mapping[str, Any], asked_first: str) -> ConversationMessage:
    if part["part"] != "tool-return":  # in more than one piece it is the first message with what is attached
        return {"role": "user", "content": part["content"] if isinstance(part["content"], str) else asked_first}
    return {
        "role": "tool",
        "id": part["tool_call_id"],
        "tool": part["tool_name"],
        "content": part["content"],
        "is_error": part["outcome"] != "success",
    }


def _said_by_model(response: Mapping[str, Any]) -> ConversationMessage:
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
