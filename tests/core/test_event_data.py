"""Event data: one type for each event, which real events match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from guildhall.core.events import EVENT_DATA, Event, EventType, MessageData, TextDeltaData, ToolUseData
from tests.cli.places import ASKING, WORKER, make_project

if TYPE_CHECKING:
    from tests.conftest import Guild

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_every_type_of_event_has_data_and_a_row_in_the_docs() -> None:
    assert set(EVENT_DATA) == set(get_args(EventType))
    assert all(data.__doc__ for data in EVENT_DATA.values())
    assert [type for type in EVENT_DATA if f"`{type}`" not in PAGE] == []


def test_an_event_is_read_by_the_type_of_its_data() -> None:
    event = Event.of(TextDeltaData, {"text": "hello"}, run="r-1", root="r-1", at="now")
    assert event.as_dict() == {"type": "text_delta", "run": "r-1", "root": "r-1", "at": "now", "text": "hello"}
    assert event.read(TextDeltaData) == {"text": "hello"}
    assert event.read(ToolUseData) is None


def test_a_held_message_has_the_data_of_a_message() -> None:
    event = Event(type="held", run="r-1", root="r-1", at="now", data={"content": "hello"})
    assert event.read(MessageData) == {"content": "hello"}


def test_the_events_of_a_run_have_the_fields_of_their_type(guild: Guild, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING)
    ran = guild("run", "scribe", "hello", "--output", "stream-json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    events = [event for event in lines if event["type"] != "result"]
    assert {"run_started", "turn_end", "ask_opened", "run_ended"} <= {event["type"] for event in events}
    for event in events:
        known = {"type", "run", "root", "at", *EVENT_DATA[event["type"]].__annotations__}
        assert set(event) <= known, event["type"]
