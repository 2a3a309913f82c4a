"""Works in a room again and again, and each time the process is killed a step later; then the same calls come again.

A program of the tests (tests/warm.py): `FOLDER file|sqlite FIRST STRIDE`. A step is the beginning of a commit, or
something done to a file below the folder. Prints, as lines of JSON, what there is after each, in the order of the
steps; the last line is of the process that nobody killed.
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
from tests.room.desks import At, unread

STEPS = {"open", "os.rename", "os.mkdir", "os.remove"}
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


class Still(SystemClock):
    """Always the same moment, so that what is made again is made of the same bytes."""

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
        code = forked(lambda at=place, step=number: work(at, kind, step))
        if code != 0:
            again = forked(lambda at=place: work(at, kind, -1))
            assert again == 0, f"step {number}: the second time ended with {again}"
        print(json.dumps({"step": number, "code": code, **left(place, kind)}), flush=True)
        if code == 0:
            return
        number += stride


def forked(do: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def work(place: Path, kind: str, number: int) -> None:
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event in STEPS and ".workflow" in str(args[0]) + str(args[1] if len(args) > 1 else ""):
            step()

    commit = engine._commit

    def commits(connection: Any, batch: list[Any]) -> Any:
        step()
        return commit(connection, batch)

    engine._commit = commits
    sys.addaudithook(heard)
    asyncio.run(calls(place, kind))


def rooms_of(place: Path) -> Rooms:
    return Rooms(Store(place / "hall.db"), Still())


async def calls(place: Path, kind: str) -> None:
    room = await rooms_of(place).open("review", "main", ("coder", "reviewer"), furnishing(place, kind))
    for number, (agent, tool, arguments) in enumerate(CALLS):
        result = await At(room, agent, run=f"r-{agent}").calling(tool, f"m{number}", **arguments)
        assert not result.is_error, result.text


def furnishing(place: Path, kind: str) -> RoomSettings:
    folder = place / ".workflow" / "review" / "main"
    return RoomSettings(documents=folder / "documents", export_folder=folder) if kind == "file" else RoomSettings()


def left(place: Path, kind: str) -> dict[str, Any]:
    """All that there is in the room, but for how often it was opened."""
    store = Store(place / "hall.db", readonly=True)
    found = store.read(lambda connection: records.current_room(connection, "review", "main"))
    assert found is not None
    log = store.read(lambda connection: records.log_entries(connection, found.id))
    room = Rooms(store, Still()).room(found.id)
    told = {
        "log": [[one.op, one.actor.name, one.actor.key, one.result] for one in log if one.op != "open"],
        "messages": [message.as_dict() for message in room.list_messages()],
        "unread": [[mail.message.id for mail in unread(room, name)] for name in ("coder", "reviewer")],
        "proposals": [{**one.as_dict(), "archived": one.archived} for one in room.list_proposals()],
        "files": {
            str(path.relative_to(place)): path.read_text()
            for path in sorted(place.rglob("*"))
            if path.is_file() and ".workflow" in path.parts and not path.name.startswith(".")
        },
    }
    if kind == "sqlite":
        shelf = room.documents.contents
        told["documents"] = {one.path: asyncio.run(shelf.read(one.path)) for one in asyncio.run(shelf.list())}
    store.close()
    return told


def entry() -> None:
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
