"""Interrupts a compaction at every step that touches the disk, one step after the other.

Run as a program: `crash_steps.py FOLDER kill|fail`. For each step it forks a child that counts its file operations with
an audit hook. At the given step the child is killed, or gets an error as if the disk were full. Prints a line of JSON
per step: the files before, after, and after one more compaction without interruption.
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
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.paths import Home
from guildhall.memory.service import Memory
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from tests.memory.conftest import TickingClock, edit_by_hand, global_folder, read_files

if TYPE_CHECKING:
    from guildhall.memory.folder import MemoryFolder

    Interruption = Literal["kill", "fail", "none"]

FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.scandir"}
LIMIT_TOKENS = 400
ENTRIES = {"compacted": "earlier " * 100, "a": "alpha " * 300, "b": "beta " * 300, "c": "gamma " * 300}

COMPLETED, COMPLETED_DESPITE_ERROR, NOT_COMPACTED, RAISED, CRASHED = 0, 1, 2, 3, 9  # exit codes of a child


def main(scratch: Path, interruption: Interruption) -> None:
    template = Home(scratch / "template")
    prepare(template.database)
    step = 0
    while True:
        home = Home(scratch / f"{interruption}-{step}")
        shutil.copytree(template.path, home.path)
        folder = global_folder(home)
        for age, (key, content) in enumerate(ENTRIES.items()):
            edit_by_hand(folder, key, content, age)
        before = read_texts(folder)
        code = compact_in_child(home, folder, interruption, step)
        after = read_texts(folder)
        compact_in_child(home, folder, "none", -1)
        print(json.dumps({"step": step, "code": code, "before": before, "after": after, "final": read_texts(folder)}))
        if code == COMPLETED:
            return
        step += 1


def read_texts(folder: MemoryFolder) -> dict[str, str]:
    return {name: content.decode() for name, content in read_files(folder).items()}


def compact_in_child(home: Home, folder: MemoryFolder, interruption: Interruption, step: int) -> int:
    child = os.fork()
    if child == 0:
        code = CRASHED
        try:
            code = compact(home, folder, interruption, step)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def compact(home: Home, folder: MemoryFolder, interruption: Interruption, step: int) -> int:
    store = Store(home.database)
    memory = Memory(home, store, TickingClock())
    steps_taken = 0

    def interrupt(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps_taken
        if event not in FILE_EVENTS or not str(args[0]).startswith(str(folder.path)):
            return
        steps_taken += 1
        if steps_taken == step + 1 and interruption == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps_taken == step + 1 and interruption == "fail":
            raise OSError(errno.ENOSPC, "No space left on device")

    async def ask_model(prompt: str) -> str:
        if interruption != "none":
            edit_by_hand(folder, "late", "written meanwhile")
        return "condensed"

    sys.addaudithook(interrupt)
    try:
        result = asyncio.run(memory.compact(folder, ask_model, limit_tokens=LIMIT_TOKENS))
    except Exception:  # noqa: BLE001 - the test examines the files, whatever the error was
        return RAISED
    store.close()
    if result.status != "compacted":
        return NOT_COMPACTED
    return COMPLETED_DESPITE_ERROR if interruption == "fail" and steps_taken > step else COMPLETED


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]
