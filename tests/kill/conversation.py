"""Holds a conversation in an embedded hall, from wherever it stands, until all of its words are answered.

In the place of the `guild` command in the driver: what is said, is said in this order, each when the one before it is
answered.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.hall.composition.hall import Hall
from tests.conformance.conversation import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    return asyncio.run(_held(words))


async def _held(words: Sequence[str]) -> int:
    hall = Hall(Home(Path(os.environ[HOME_VARIABLE])), environ=os.environ)
    try:
        table = Conversation(hall, Path.cwd())
        if runs := hall.history.recent():
            table.run = runs[0].id
        else:
            await table.start("clerk", "Hi.")
        for _ in range(20):
            answered = table.expects
            if table.state.status == "waiting" and answered is not None and answered > len(table.messages):
                if len(table.messages) == len(words):
                    break
                table.post(words[len(table.messages)])
            await table.resume()
            await table.wait_for_turn()
        shown = {"status": table.state.status, "reason": table.state.reason, "same": await table.is_replayed()}
        print(json.dumps(shown))
        table.close()
    finally:
        await hall.close()
    return 0
