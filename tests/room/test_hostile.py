"""Hostile arguments to every tool of a room: each call has a result, and touches nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.room import records
from guildhall.room.service import Rooms, RoomSettings
from guildhall.room.tools import TOOLS, RoomTools, room_tools
from guildhall.tools.gate import Gate
from guildhall.tools.model import ToolCall, ToolResult
from tests.room.conftest import TEAM
from tests.test_hostile import TEXTS, WRONG, OpenLedger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from guildhall.room.service import Room
    from guildhall.store.engine import Store
    from guildhall.tools.model import Tool

GOOD: dict[str, Any] = {
    "message": "hello",
    "until": 1,
    "content": "text",
    "file": "a.md",
    "suggestion": "better",
    "type": "decision",
    "title": "Ship it?",
    "options": ["yes", "no"],
    "proposal": "p-1",
    "choice": "yes",
    "id": "res-1",
}


def hostile_arguments(tool: Tool, outside: Path) -> Iterator[Any]:
    properties: dict[str, Any] = dict(tool.input_schema.get("properties", {}))
    required = list(tool.input_schema.get("required", []))
    assert all(name in GOOD for name in required), f"{tool.name}: add valid values for {required} to GOOD"
    good = {name: GOOD[name] for name in required}
    for name in properties:
        for value in [*WRONG, *(text.replace("OUTSIDE", str(outside)) for text in TEXTS)]:
            yield {**good, name: value}
            if isinstance(value, str):
                yield {**good, name: [value, value]}
    yield from ({}, None, {**good, "\ud800": 1}, {**good, "sender": "reviewer"}, {**good, "x" * 100_000: 1})


def read_room(store: Store, room: str) -> list[Any]:
    """Return the number of messages, the agents and the log of a room."""
    return [
        store.read(lambda connection: records.count_messages(connection, room)),
        store.read(lambda connection: records.list_agents(connection, room)),
        store.read(lambda connection: records.log_entries(connection, room)),
    ]


@pytest.mark.req("AW-19")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("provider", ["file", "sqlite"])
@pytest.mark.parametrize("name", sorted(TOOLS))
def test_hostile_arguments_give_results_and_no_effect_outside(
    rooms: Rooms, store: Store, tmp_path: Path, name: str, provider: str
) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "secret").write_text("SECRET")

    async def call_with_hostile_arguments() -> tuple[Room, list[ToolResult]]:
        settings = RoomSettings(documents=inside / "documents") if provider == "file" else RoomSettings()
        other = await rooms.open("/project", "review", "other", TEAM)
        room = await rooms.open("/project", "review", "main", TEAM, settings)
        before = read_room(store, other.id)
        if provider == "file":
            (inside / "documents").mkdir(parents=True)
            (inside / "documents" / "link").symlink_to(outside)
        tools = room_tools((name,))
        gate = Gate(tools, (), "ask", OpenLedger(), RoomTools(room, "coder", "r-1").call)
        calls = [
            ToolCall(key=f"m1/{i}", tool=name, arguments=a) for i, a in enumerate(hostile_arguments(tools[0], outside))
        ]
        results = [await gate.call(call) for call in calls]
        assert read_room(store, other.id) == before
        return room, results

    room, results = asyncio.run(call_with_hostile_arguments())
    assert results
    for result in results:
        assert isinstance(result, ToolResult)
        assert "SECRET" not in result.text
        assert "Traceback" not in result.text
        json.dumps(result.as_dict()).encode()
        result.text.encode()
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "SECRET"
    assert {message.sender for message in room.list_messages()} <= {"coder", "system"}
