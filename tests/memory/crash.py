"""Compacts a scope again and again, and each time something happens at the next step that touches the disk.

Run as a program: `crash.py FOLDER kill|fail`. Each time a child is forked that counts, by the interpreter's audit
events, its steps below the scope's folder, and at the one with its number is killed or told that the disk is full.
Prints a line of JSON for each: what lay there before and after, and after one more compaction that nobody disturbs.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from guildhall.core.paths import Home
from guildhall.memory.memory import Memory
from guildhall.memory.model import Place
from guildhall.store.engine import Store
from guildhall.store.migrate import prepare
from tests.memory.conftest import Moments, everything, put

STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.scandir"}
LIMIT = 400  # tokens
ENTRIES = {"compacted": "earlier " * 100, "a": "alpha " * 300, "b": "beta " * 300, "c": "gamma " * 300}


def main(folder: Path, how: str) -> None:
    clean = Home(folder / "clean")
    prepare(clean.database)
    number = 0
    while True:
        home = Home(folder / f"{how}-{number}")
        shutil.copytree(clean.path, home.path)
        place = Place(scope="global", folder=home.path / "memory" / "global", name="global")
        for age, (key, content) in enumerate(ENTRIES.items()):
            put(place, key, content, age)
        before = told(place)
        code = forked(home, place, how, number)
        after = told(place)
        forked(home, place, "none", -1)
        print(json.dumps({"number": number, "code": code, "before": before, "after": after, "again": told(place)}))
        if code == 0:
            return
        number += 1


def told(place: Place) -> dict[str, str]:
    return {name: content.decode() for name, content in everything(place).items()}


def forked(home: Home, place: Place, how: str, number: int) -> int:
    """0: done, and nothing happened; 1: done all the same; 2: not done, and told why; 3: failed; -9: killed."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = compacted(home, place, how, number)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def compacted(home: Home, place: Place, how: str, number: int) -> int:
    store = Store(home.database)
    memory = Memory(home, store, Moments())
    steps = 0

    def disturb(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps
        if event not in STEPS or not str(args[0]).startswith(str(place.folder)):
            return
        steps += 1
        if steps == number + 1 and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == number + 1 and how == "fail":
            raise OSError(errno.ENOSPC, "No space left on device")

    async def ask(text: str) -> str:
        if how != "none":
            put(place, "late", "written meanwhile")
        return "condensed"

    sys.addaudithook(disturb)
    try:
        done = asyncio.run(memory.compact(place, ask, limit_tokens=LIMIT))
    except Exception:  # noqa: BLE001 - whatever it was, the test looks at the disk
        return 3
    store.close()
    if not done.done:
        return 2
    return 1 if how == "fail" and steps > number else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
