"""Script export of workflows: writes the file, setup outputs and order of a recorded workflow as a test.

Reads the order from the room's log, in the notation of `ordering.py`. Notes list the events that a test cannot
reproduce.
Does not export the runs of the agents (`runs/replay/script_export.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.room import records as room_records
from guildhall.room.model import PERSON, LogEntry
from guildhall.room.tools import TOOLS
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record.entries import ModelAnswered, ToolEnded, ToolStarted
from guildhall.runs.replay.script_export import TeamPart
from guildhall.tools.model import ToolResult
from guildhall.workflow import records
from guildhall.workflow.ordering import begins, call_place, ends, who

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.store.engine import Store

    Tree = Sequence[tuple[Run, Journal]]


def team_part(tree: Tree, store: Store) -> TeamPart | None:
    """What the script of a workflow has beyond the runs of its agents; None: the run is no workflow's."""
    root, journal = tree[0]
    instance = store.read(lambda connection: records.find(connection, root.id))
    if instance is None:
        return None
    operations = store.read(lambda connection: room_records.history(connection, instance.room))
    writer = _Writer(tree, operations)
    fields: dict[str, Any] = {"workflow": _inside(instance.path, root), "tag": instance.tag}
    purpose = root.purpose_as(WorkflowPurpose)
    if purpose is not None and purpose.params:
        fields["params"] = dict(purpose.params)
    if setup := list(_setup(journal)):
        fields["setup"] = setup
    fields["order"] = list(writer.order())
    files, tools = writer.files(), frozenset(TOOLS)
    return TeamPart(fields=fields, files=files, notes=writer.notes, tools=tools, untestable=writer.untestable())


def _inside(path: str, root: Run) -> str:
    top = root.frame.root
    return str(Path(path).relative_to(top)) if Path(path).is_relative_to(top) else path


def _setup(journal: Journal) -> Iterator[dict[str, Any]]:
    for started in journal.all(ToolStarted):
        end = journal.last(started.key or "", ToolEnded)
        if end is None:
            continue
        asked = started.data.arguments or {}
        result = ToolResult.from_dict(end.data.result)
        step: dict[str, Any] = {"command": asked["command"]}
        if asked["variables"]:
            step["variables"] = asked["variables"]
        if result.is_error:
            yield {**step, "prints": result.text, "failed": True}
        else:
            yield {**step, "prints": ToolResult(content=result.content[:1]).text}


class _Writer:
    """Reads what a test needs to know from the log of a room."""

    def __init__(self, tree: Tree, operations: Sequence[LogEntry]) -> None:
        self._runs = {run.id: (run, journal) for run, journal in tree}
        own = [one.place for one in operations if one.actor.run in self._runs]
        first, last = min(own, default=0), max(own, default=0)
        self._before = [one for one in operations if one.place < first and one.op != "open"]
        self._own = [one for one in operations if first <= one.place <= last]
        self._opened = [one for one in operations if one.op == "open" and one.place < max(first, 2)]
        self.notes: list[str] = []

    def untestable(self) -> str | None:
        if self._before:
            return "its room was in use before: begin with an empty one (--fresh)"
        return None

    def order(self) -> Iterator[str | dict[str, Any]]:
        for one in self._own:
            if one.op == "send" and one.actor.name == PERSON:
                said = "".join(text for text, _ in one.arguments["said"])
                yield {"person": said, **({"to": one.arguments["to"]} if one.arguments["to"] else {})}
            elif one.op == "send" and (one.actor.key or "").startswith("schedule/"):
                self.notes.append("what a schedule said: a test is over before it is due")
            elif one.op == "expire" and one.result.get("ended"):
                self.notes.append("that the time of a proposal was up: a test is faster")
            elif (place := self._place(one)) is not None:
                yield place

    def _place(self, one: LogEntry) -> str | None:
        found = self._runs.get(one.actor.run or "")
        if found is None:
            return None
        run, journal = found
        mine = who(run.worker, run.ordinal + 1)
        if one.op == "inbox_shown":
            return f"{begins(mine)} {one.result.get('until', 0)}"
        if one.op in ("acknowledged", "buried"):
            return ends(mine)
        if one.op in TOOLS and one.actor.key is not None:
            return f"{mine} {call_place(one.actor.key, _index(journal, one.actor.key))} {one.op}"
        return None

    def files(self) -> dict[str, str | None]:
        """Documents that were there before, as files, as far as somebody read them first."""
        folder = self._opened[-1].arguments["documents"].partition("file:")[2] if self._opened else ""
        held: dict[str, str | None] = {}
        seen: set[str] = set()
        for one in self._own:
            path = one.result.get("path")
            if not folder or path is None or path in seen:
                continue
            seen.add(path)
            if "content" in one.result:
                held[str(Path(folder) / path)] = one.result["content"]
            elif one.result.get("new") is False:
                self.notes.append(f"what the document {path} said before it was changed")
        return held


def _index(journal: Journal, key: str) -> int:
    """The how-manieth call of its answer it is."""
    answer, _, id = key.partition("/")
    entry = journal.last(answer, ModelAnswered)
    parts: list[dict[str, Any]] = entry.data.response["parts"] if entry else []
    calls = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
    return calls.index(id) if id in calls else 0
