"""Recovery: a new hall resumes the runs that an earlier hall left unfinished."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.request_frame import Frame
from guildhall.hall.composition.recovery import MAX_CRASHES
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.runs.record.entries import ToolEnded
from tests.hall.hall_server import ServedHall, serve_hall
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


def run_in_hall(home: Home, work: Callable[[ServedHall], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with serve_hall(home) as hall:
            return await work(hall)

    return asyncio.run(go())


def start_run_and_stop_hall(home: Home, frame: Frame) -> str:
    """Start a run in a hall, stop the hall, and return the id of the paused run."""

    async def work(hall: ServedHall) -> str:
        stream = EmbeddedHall(hall.hall).runs.run(RunRequest(worker="scribe", input="go"), frame)
        run = (await anext(stream)).run
        await stream.aclose()
        return run

    return run_in_hall(home, work)


def crash(home: Home, run: str) -> None:
    """Change the database as if the hall had crashed during the run."""
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute(
            "UPDATE runs SET status='running', pause=NULL, reason=NULL, owner='b-dead' WHERE id=?", [run]
        )
        connection.execute(
            "DELETE FROM journal WHERE run=? AND kind='paused' AND seq=(SELECT max(seq) FROM journal WHERE run=?)",
            [run, run],
        )
        connection.commit()


def read_row(home: Home, run: str) -> tuple[str, str | None, int]:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT status, reason, crashes FROM runs WHERE id=?", [run]).fetchone()


async def wait_recovered(hall: ServedHall, run: str) -> str:
    """Wait for the end of the recovery, and return the status of the run."""
    async with asyncio.timeout(10):
        while hall.process._recovery.is_active:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    return hall.hall.history.get(run).status


def test_a_run_paused_by_shutdown_is_resumed_and_is_not_a_crash(home: Home, frame: Frame) -> None:
    run = start_run_and_stop_hall(home, frame)
    assert read_row(home, run) == ("paused", "shutdown", 0)
    assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "running"
    assert read_row(home, run) == ("paused", "shutdown", 0)


@pytest.mark.parametrize(
    ("pause", "reason", "status"), [("shutdown", "reworded", "running"), ("user", "shutdown", "paused")]
)
def test_the_cause_of_a_pause_decides_and_not_its_reason(
    home: Home, frame: Frame, pause: str, reason: str, status: str
) -> None:
    run = start_run_and_stop_hall(home, frame)
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE runs SET pause=?, reason=? WHERE id=?", [pause, reason, run])
    assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == status


def test_a_run_during_which_the_hall_dies_too_often_is_left_to_the_user(
    home: Home, frame: Frame, project: Path
) -> None:
    run = start_run_and_stop_hall(home, frame)
    for number in (1, 2):
        crash(home, run)
        assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "running"
        assert read_row(home, run)[2] == number
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE runs SET crashes=? WHERE id=?", [MAX_CRASHES - 1, run])
    assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "running", "a shutdown is not a crash"
    crash(home, run)
    for _ in range(2):
        assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "interrupted"
        reason = f"the hall died {MAX_CRASHES} times during this run without progress"
        assert read_row(home, run) == ("interrupted", reason, MAX_CRASHES)
    put_script(project, DONE)

    async def check_resumable(hall: ServedHall) -> None:
        events = [event async for event in EmbeddedHall(hall.hall).runs.resume(run, frame)]
        assert events[-1].data["status"] == "completed"

    run_in_hall(home, check_resumable)


def test_progress_between_two_crashes_resets_the_crash_count(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, LATE)
    run = start_run_and_stop_hall(home, frame)
    for _ in range(2):
        crash(home, run)
        run_in_hall(home, lambda hall: wait_recovered(hall, run))
    assert read_row(home, run)[2] == 2
    put_script(project, WRITE, LATE)

    async def wait_for_progress(hall: ServedHall) -> None:
        await wait_recovered(hall, run)
        async with asyncio.timeout(10):
            while not hall.hall.history.journal(run).all(ToolEnded):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

    run_in_hall(home, wait_for_progress)
    crash(home, run)
    assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "running"
    assert read_row(home, run)[2] == 1


def test_a_run_that_cannot_resume_is_interrupted_and_does_not_block_others(
    home: Home, frame: Frame, project: Path
) -> None:
    put_worker(project, "other", tool_rules=None)

    async def start_both(hall: ServedHall) -> list[str]:
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
    runs = run_in_hall(home, start_both)
    for run in runs:
        crash(home, run)
    (project / "scribe.yaml").unlink()

    async def read_statuses(hall: ServedHall) -> list[str]:
        return [await wait_recovered(hall, run) for run in runs]

    assert run_in_hall(home, read_statuses) == ["interrupted", "running"]


def test_a_run_paused_by_the_user_stays_paused(home: Home, frame: Frame) -> None:
    run = start_run_and_stop_hall(home, frame)

    async def pause(hall: ServedHall) -> None:
        await wait_recovered(hall, run)
        await EmbeddedHall(hall.hall).runs.pause(run)

    run_in_hall(home, pause)
    assert read_row(home, run)[:2] == ("paused", "by the user")
    assert run_in_hall(home, lambda hall: wait_recovered(hall, run)) == "paused"
