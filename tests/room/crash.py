"""Kill a process at every step of work in a room, and repeat the work in a new process.

A program of the tests (tests/warm.py) with the arguments `FOLDER file|sqlite FIRST STRIDE`. A step is the start of a
commit or an operation on a file below the folder. Prints the content of the room after each step as a line of JSON. The
last line is of the process that was not killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guildhall.core.clock import SystemClock
from guildhall.room import records
from guildhall.room.service import Rooms, RoomSettings
from guildhall.store import engine
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from tests.room.tool_calls import ToolCaller, unread_mail

FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.remove"}
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("coder", "channel_send", {"message": "@reviewer one " + "x" * 4_100}),
    ("coder", "document_append", {"content": "one"}),
    ("coder", "document_append", {"content": "two"}),
    ("coder", "document_create", {"file": "plan/a.md", "content": "plan"}),
    ("coder", "proposal_create", {"type": "assignment", "title": "fix it", "quorum": 1}),
    ("reviewer", "inbox_read", {}),
    ("reviewer", "proposal_vote", {"proposal": "p-1", "choice": "reviewer"}),
    ("reviewer", "document_read", {}),
    ("reviewer", "document_write", {"content": "three"}),
    ("reviewer", "inbox_ack", {"until": 1}),
    ("reviewer", "channel_send", {"message": "@coder done"}),
)


class FixedClock(SystemClock):
    """A clock that stands still, so that repeated work writes the same bytes."""

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


def main(folder: Path, kind: str, first: int, stride: int) -> None:
    clean = folder / "clean.db"
    prepare(clean)
    number = first
    while True:
        place = folder / f"{kind}-{number}"
        place.mkdir()
        shutil.copy(clean, place / "hall.db")
        code = run_forked(lambda at=place, last=number: work_until_step(at, kind, last))
        if code != 0:
            again = run_forked(lambda at=place: work_until_step(at, kind, -1))
            assert again == 0, f"step {number}: the repeated work ended with {again}"
        print(json.dumps({"step": number, "code": code, **read_room(place, kind)}), flush=True)
        if code == 0:
            return
        number += stride


def run_forked(work_in_child: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            work_in_child()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def work_until_step(place: Path, kind: str, number: int) -> None:
    steps = 0

    def count_step() -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_file_step(event: str, args: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and ".workflow" in str(args[0]) + str(args[1] if len(args) > 1 else ""):
            count_step()

    commit = engine._commit

    def count_commit_step(connection: Any, batch: list[Any]) -> Any:
        count_step()
        return commit(connection, batch)

    engine._commit = count_commit_step
    sys.addaudithook(count_file_step)
    asyncio.run(make_calls(place, kind))


def open_rooms(place: Path) -> Rooms:
    return Rooms(Store(place / "hall.db"), FixedClock())


async def make_calls(place: Path, kind: str) -> None:
    room = await open_rooms(place).open("/project", "review", "main", ("coder", "reviewer"), room_settings(place, kind))
    for number, (agent, tool, arguments) in enumerate(CALLS):
        result = await ToolCaller(room, agent, run=f"r-{agent}").call_async(tool, f"m{number}", **arguments)
        assert not result.is_error, result.text


def room_settings(place: Path, kind: str) -> RoomSettings:
    folder = place / ".workflow" / "review" / "main"
    return RoomSettings(documents=folder / "documents", export_folder=folder) if kind == "file" else RoomSettings()


def read_room(place: Path, kind: str) -> dict[str, Any]:
    """Return the content of the room, without the entries of its openings."""
    store = Store(place / "hall.db", readonly=True)
    found = store.read(lambda connection: records.current_room(connection, "/project", "review", "main"))
    assert found is not None
    log = store.read(lambda connection: records.log_entries(connection, found.id))
    room = Rooms(store, FixedClock()).room(found.id)
    content = {
        "log": [[one.op, one.actor.name, one.actor.key, one.result] for one in log if one.op != "open"],
        "messages": [message.as_dict() for message in room.list_messages()],
        "unread": [[mail.message.id for mail in unread_mail(room, name)] for name in ("coder", "reviewer")],
        "proposals": [{**one.as_dict(), "archived": one.archived} for one in room.list_proposals()],
        "files": {
            str(path.relative_to(place)): path.read_text()
            for path in sorted(place.rglob("*"))
            if path.is_file() and ".workflow" in path.parts and not path.name.startswith(".")
        },
    }
    if kind == "sqlite":
        contents = room.documents.contents
        content["documents"] = {one.path: asyncio.run(contents.read(one.path)) for one in asyncio.run(contents.list())}
    store.close()
    return content


def entry() -> None:
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
