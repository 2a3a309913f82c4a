"""The process of a hall: its log, and what keeps it from leaving."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import TYPE_CHECKING

from guildhall.core.paths import Home
from guildhall.hall.server.process import RedactingFormatter, main
from tests.hall.served import served

if TYPE_CHECKING:
    from pathlib import Path


def line(log: RedactingFormatter, text: str) -> str:
    return log.format(logging.LogRecord("guildhall.hall", logging.INFO, "", 1, text, (), None))


def test_the_log_holds_no_secret_of_its_own_and_none_that_a_request_brought() -> None:
    log = RedactingFormatter({"OPENAI_API_KEY": "sk-of-the-hall-1", "LANG": "C.UTF-8"})
    assert "sk-of-the-hall-1" not in line(log, "it said sk-of-the-hall-1")
    log.learn({"ANTHROPIC_API_KEY": "sk-of-a-request", "PATH": "/usr/bin"})
    told = line(log, "sk-of-a-request and sk-of-the-hall-1 in /usr/bin, C.UTF-8")
    assert "sk-of" not in told
    assert "/usr/bin, C.UTF-8" in told
    for number in range(1000):  # what it remembers is bounded
        log.learn({"MY_TOKEN": f"a-secret-number-{number}"})
    assert "[MY_TOKEN]" in line(log, "a-secret-number-999")


def test_what_others_add_keeps_it(home: Home) -> None:
    async def go() -> None:
        async with served(home, idle=0.1) as hall:
            schedules = [True]
            hall.hall.keep_alive_checks.append(lambda: bool(schedules))
            await asyncio.sleep(0.2)
            assert not hall.serving.done()
            schedules.clear()
            await asyncio.wait_for(hall.serving, 10)
            assert not home.address.exists()

    asyncio.run(go())


def test_a_connection_keeps_it_and_its_end_lets_it_go(home: Home) -> None:
    async def go() -> None:
        async with served(home, idle=0.1) as hall:
            client = await hall.client()
            await client.hall.hello(home.path)
            await asyncio.sleep(0.2)
            assert not hall.serving.done()
            await client.close()
            await asyncio.wait_for(hall.serving, 10)

    asyncio.run(go())


def test_a_home_that_cannot_be_used_is_told_to_whoever_started_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    reading, writing = os.pipe()
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        assert main(Home(tmp_path / "file"), writing, {}) == 7
    finally:
        root.handlers = before
    told = json.loads(os.read(reading, 10_000))
    os.close(reading)
    assert told["error"]["code"] == "hall_unavailable"
