"""What a new hall does with what an earlier one has left behind."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.frame import Frame
from guildhall.hall.composition.recovery import MAX_CRASHES
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.runs.record.entries import ToolEnded
from tests.hall.served import Served, served
from tests.runs.places import DONE, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.paths import Home

LATE = {"sleep": 30, "say": "late"}


@pytest.fixture
def frame(project: Path) -> Frame:
    put_worker(project, tool_rules=None)
    put_script(project, LATE)
    return Frame.here(project, {})


def inside(home: Home, work: Callable[[Served], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with served(home) as hall:
            return await work(hall)

    return asyncio.run(go())


def begun(home: Home, frame: Frame) -> str:
    """A run that a hall has begun and paused when it left."""

    async def work(hall: Served) -> str:
        stream = EmbeddedHall(hall.hall).runs.run(RunRequest(worker="scribe", input="go"), frame)
        run = (await anext(stream)).run
        await stream.aclose()
        return run

    return inside(home, work)


def crash(home: Home, run: str) -> None:
    """The record as a hall leaves it that dies while the run is running."""
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute(
            "UPDATE runs SET status='running', pause=NULL, reason=NULL, owner='b-dead' WHERE id=?", [run]
        )
        connection.execute(
            "DELETE FROM journal WHERE run=? AND kind='paused' AND seq=(SELECT max(seq) FROM journal WHERE run=?)",
            [run, run],
        )
        connection.commit()


def row(home: Home, run: str) -> tuple[str, str | None, int]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT status, reason, crashes FROM runs WHERE id=?", [run]).fetchone()


async def settled(hall: Served, run: str) -> str:
    """How the run stands once it is not running any more, or goes on."""
    async with asyncio.timeout(10):
        while hall.process._recovery.is_active:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.01)
    return hall.hall.history.get(run).status


def test_what_was_paused_by_a_hall_that_left_goes_on_and_counts_as_no_crash(home: Home, frame: Frame) -> None:
    run = begun(home, frame)
    assert row(home, run) == ("paused", "shutdown", 0)
    assert inside(home, lambda hall: settled(hall, run)) == "running"
    assert row(home, run) == ("paused", "shutdown", 0)


@pytest.mark.parametrize(
    ("pause", "reason", "status"), [("shutdown", "reworded", "running"), ("user", "shutdown", "paused")]
)
def test_the_cause_of_a_pause_decides_and_not_its_reason(
    home: Home, frame: Frame, pause: str, reason: str, status: str
) -> None:
    run = begun(home, frame)
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE runs SET pause=?, reason=? WHERE id=?", [pause, reason, run])
    assert inside(home, lambda hall: settled(hall, run)) == status


def test_what_was_lost_again_and_again_without_getting_further_is_given_up(
    home: Home, frame: Frame, project: Path
) -> None:
    run = begun(home, frame)
    for number in range(1, MAX_CRASHES):
        crash(home, run)
        assert inside(home, lambda hall: settled(hall, run)) == "running"
        assert row(home, run)[2] == number
    crash(home, run)

    async def given_up(hall: Served) -> None:
        assert await settled(hall, run) == "failed"
        found = hall.hall.history.get(run)
        assert found.error is not None
        assert found.error["code"] == "runtime_failed"
        assert f"guild resume {run}" in found.error["hint"]
        assert hall.hall.history.journal(run).entries[-1].kind == "ended"

    inside(home, given_up)
    assert inside(home, lambda hall: settled(hall, run)) == "failed", "and stays so"
    put_script(project, DONE)

    async def resumed(hall: Served) -> None:
        events = [event async for event in EmbeddedHall(hall.hall).runs.resume(run, frame)]
        assert events[-1].data["status"] == "completed"

    inside(home, resumed)


def test_progress_between_two_crashes_makes_it_count_anew(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, LATE)
    run = begun(home, frame)
    for _ in range(2):
        crash(home, run)
        inside(home, lambda hall: settled(hall, run))
    assert row(home, run)[2] == 2
    put_script(project, WRITE, LATE)

    async def further(hall: Served) -> None:
        await settled(hall, run)
        async with asyncio.timeout(10):
            while not hall.hall.history.journal(run).all(ToolEnded):  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.01)

    inside(home, further)
    crash(home, run)
    assert inside(home, lambda hall: settled(hall, run)) == "running"
    assert row(home, run)[2] == 1


def test_what_cannot_go_on_waits_for_a_person_and_keeps_no_other_from_it(
    home: Home, frame: Frame, project: Path
) -> None:
    put_worker(project, "other", tool_rules=None)

    async def both(hall: Served) -> list[str]:
        client, runs = EmbeddedHall(hall.hall), list[str]()
        for worker in ("scribe", "other"):
            stream = client.runs.run(
                RunRequest(worker=worker, input="go", override_model=f"script:{worker}.yaml"), frame
            )
            runs.append((await anext(stream)).run)
            await stream.aclose()
        return runs

    for worker in ("scribe", "other"):
        (project / f"{worker}.yaml").write_text((project / "answers.yaml").read_text())
    runs = inside(home, both)
    for run in runs:
        crash(home, run)
    (project / "scribe.yaml").unlink()

    async def after(hall: Served) -> list[str]:
        return [await settled(hall, run) for run in runs]

    assert inside(home, after) == ["interrupted", "running"]


def test_what_a_person_paused_stays_paused(home: Home, frame: Frame) -> None:
    run = begun(home, frame)

    async def pause(hall: Served) -> None:
        await settled(hall, run)
        await EmbeddedHall(hall.hall).runs.pause(run)

    inside(home, pause)
    assert row(home, run)[:2] == ("paused", "by the user")
    assert inside(home, lambda hall: settled(hall, run)) == "paused"
