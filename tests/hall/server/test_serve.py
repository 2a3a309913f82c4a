"""The hall process: redaction of its log, and what keeps it alive."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from guildhall.core.paths import Home
from guildhall.hall.server.process import RedactingFormatter, main
from tests.hall.hall_server import serve_hall

if TYPE_CHECKING:
    from pathlib import Path


def format_line(formatter: RedactingFormatter, text: str) -> str:
    return formatter.format(logging.LogRecord("guildhall.hall", logging.INFO, "", 1, text, (), None))


def test_the_log_contains_no_secret_of_the_hall_or_of_a_request() -> None:
    formatter = RedactingFormatter({"OPENAI_API_KEY": "sk-of-the-hall-1", "LANG": "C.UTF-8"})
    assert "sk-of-the-hall-1" not in format_line(formatter, "it said sk-of-the-hall-1")
    formatter.add_secrets({"ANTHROPIC_API_KEY": "sk-of-a-request", "PATH": "/usr/bin"})
    logged = format_line(formatter, "sk-of-a-request and sk-of-the-hall-1 in /usr/bin, C.UTF-8")
    assert "sk-of" not in logged
    assert "/usr/bin, C.UTF-8" in logged
    for number in range(1000):  # the number of remembered secrets is bounded
        formatter.add_secrets({"MY_TOKEN": f"a-secret-number-{number}"})
    assert "[MY_TOKEN]" in format_line(formatter, "a-secret-number-999")


def test_a_keep_alive_check_keeps_the_hall_running(home: Home) -> None:
    async def go() -> None:
        async with serve_hall(home, idle=0.1) as hall:
            schedules = [True]
            hall.hall.keep_alive_checks.append(lambda: bool(schedules))
            await asyncio.sleep(0.2)
            assert not hall.serving.done()
            schedules.clear()
            await asyncio.wait_for(hall.serving, 10)
            assert not home.address.exists()

    asyncio.run(go())


def test_an_open_connection_keeps_the_hall_running(home: Home) -> None:
    async def go() -> None:
        async with serve_hall(home, idle=0.1) as hall:
            client = await hall.client()
            await client.hall.hello(home.path)
            await asyncio.sleep(0.2)
            assert not hall.serving.done()
            await client.close()
            await asyncio.wait_for(hall.serving, 10)

    asyncio.run(go())


def test_short_requests_keep_the_hall_running(home: Home) -> None:
    async def go() -> None:
        async with serve_hall(home, idle=0.5) as hall:
            for _ in range(12):
                client = await hall.client()
                await client.hall.status()
                await client.close()
                await asyncio.sleep(0.1)
            assert not hall.serving.done()
            await asyncio.wait_for(hall.serving, 10)

    asyncio.run(go())


def test_a_client_replaces_a_connection_that_the_hall_has_closed(home: Home) -> None:
    async def go() -> None:
        async with serve_hall(home) as hall:
            client = await hall.client()
            await client.hall.hello(home.path)
            for connection in list(hall.process._listener._state.connections):
                connection.transport.close()  # as after the keep-alive time
            while hall.process._listener.client_count:  # noqa: ASYNC110 - the listener has no event for this
                await asyncio.sleep(0.01)
            assert (await client.hall.status())["state"] == "serving"
            await client.close()

    asyncio.run(go())


@pytest.mark.parametrize("lost", ["home", "database"])
def test_a_hall_stops_if_its_home_or_its_database_is_removed(home: Home, lost: str) -> None:
    async def go() -> None:
        async with serve_hall(home) as hall:
            if lost == "home":
                shutil.rmtree(home.path)
            else:
                home.database.rename(home.path / "moved.db")
            await asyncio.wait_for(hall.serving, 10)

    asyncio.run(go())


def test_an_unusable_home_is_reported_to_the_starting_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    reading, writing = os.pipe()
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        assert main(Home(tmp_path / "file"), writing, {}) == 7
    finally:
        root.handlers = before
    report = json.loads(os.read(reading, 10_000))
    os.close(reading)
    assert report["error"]["code"] == "hall_unavailable"
