"""Does the same with a job again and again, and each time is killed at the next step.

A program of the tests (tests/warm.py): `FOLDER STRIDE SCENE`. A step is a commit of the database, or whatever touches
the disk below `jobs/`, counted by the interpreter's audit events; with a stride of 1 none is left out. After each death
another process puts right what is there, as a hall that starts does, and one line of JSON says what was heard of the
job before, and what there is now.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.core.ids import JOB, is_id
from guildhall.core.paths import Home
from guildhall.hall.composition.recovery import Recovery
from guildhall.runs.model import Answer
from guildhall.store import engine
from guildhall.store.schema import prepare
from tests.jobs.job_hall import JobHall, call, say, submit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Hear = Callable[[str], None]
    Life = Callable[[JobHall, Hear], Awaitable[None]]
    Answered = dict[str, Any]

STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"}
FOUR = [
    call("update_summary", summary="half of it"),
    call("record_decision", question="metal?", decision="iron", reasoning="there"),
    call("log_question", question="Which door?"),
    call("write_artifact", path="report.md", content="# Report"),
]


async def whole_life(job_hall: JobHall, hear: Hear) -> None:
    job = await job_hall.dispatch()
    hear(job.id)
    await job_hall.ended(job.id)
    hear("ended")
    await job_hall.jobs.delete(job.id)
    hear("deleted")


async def on_a_full_disk(job_hall: JobHall, hear: Hear) -> None:
    """Let one step fail and the rest continue."""
    try:
        job = await job_hall.dispatch()
    except GuildError:
        hear("refused")
        return
    hear(job.id)
    await job_hall.until(lambda: job_hall.jobs.status(job.id).job.status != "running")
    hear("ended")


async def answered(job_hall: JobHall, hear: Hear) -> None:
    """Ask a question that waits, and answer it."""
    job = await job_hall.dispatch()
    hear(job.id)
    await job_hall.until(job_hall.hall.asks.list_open)
    await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
    await answer_all(job_hall)
    hear("answered")
    await job_hall.ended(job.id)
    hear("ended")


async def answer_all(job_hall: JobHall) -> None:
    for ask in job_hall.hall.asks.list_open():
        await job_hall.client.asks.answer(ask.id, Answer(choice="the front one"))


async def cancelled(job_hall: JobHall, hear: Hear) -> None:
    job = await job_hall.dispatch()
    hear(job.id)
    await job_hall.until(lambda: job_hall.jobs.get(job.id).summary)
    hear((await job_hall.jobs.cancel(job.id)).status)


SCENES: dict[str, tuple[list[Answered], Life]] = {
    "life": ([{"calls": FOUR}, submit("a key"), say()], whole_life),
    "full": ([{"calls": FOUR}, submit("a key"), say()], on_a_full_disk),
    "question": ([call("log_question", question="Which door?", wait=True), submit("a key"), say()], answered),
    "cancel": ([FOUR[0], {"sleep": 0.3, **submit("a key")}, say()], cancelled),
}


def main(folder: Path, stride: int, scene: str) -> None:
    clean = JobHall.anywhere(folder)
    clean.worker()
    clean.script(SCENES[scene][0])
    prepare(clean.home.database)
    number = 0
    while True:
        job_hall = JobHall(home=Home(folder / f"home-{number}"), project=clean.project)
        shutil.copytree(clean.home.path, job_hall.home.path)
        heard = folder / f"heard-{number}"
        code = forked(lambda: done(job_hall, heard, number, scene))  # noqa: B023
        now = folder / f"now-{number}"
        forked(lambda: put_right(job_hall, now))  # noqa: B023
        told = heard.read_text().split() if heard.exists() else []
        print(json.dumps({"number": number, "code": code, "heard": told, **json.loads(now.read_text())}))
        shutil.rmtree(job_hall.home.path)
        if code == 0:
            return
        number += stride


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            work()
            code = 0
        except SystemExit:
            code = 1
        except BaseException:
            import traceback

            traceback.print_exc()
            raise
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def done(job_hall: JobHall, heard: Path, number: int, scene: str) -> None:
    """Return the outcome of a job that is killed at this step, or whose step finds the disk full."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == number + 1 and scene != "full":
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    below = str(job_hall.home.jobs)

    def looks(event: str, args: tuple[Any, ...]) -> None:
        reads = event == "os.scandir" or (event == "open" and not args[2] & os.O_CREAT)
        if event in STEPS and str(args[0]).startswith(below) and not (reads and scene == "full"):
            step()

    commit = engine._commit

    def commits(connection: Any, batch: list[Any]) -> list[Any]:
        outcomes = commit(connection, batch)
        if scene != "full":
            step()
        return outcomes

    engine._commit = commits
    sys.addaudithook(looks)

    def hear(word: str) -> None:
        with heard.open("a") as file:
            file.write(f"{word} ")

    job_hall.run(lambda job_hall: SCENES[scene][1](job_hall, hear))
    if steps > number:
        raise SystemExit


def put_right(job_hall: JobHall, now: Path) -> None:
    """Start a hall and return the resulting state."""

    async def work(job_hall: JobHall) -> dict[str, Any]:
        await Recovery(job_hall.hall).resume_runs()

        def over() -> bool:
            return not any(job.status == "running" for job in job_hall.jobs.page().jobs)

        def held() -> bool:
            return any(job_hall.jobs.status(job.id).waiting_asks for job in job_hall.jobs.page().jobs)

        await job_hall.until(lambda: over() or held())
        if not over():
            await answer_all(job_hall)
        await job_hall.until(over)
        runs = [run.status for run in job_hall.hall.history.recent()]
        jobs = [
            {
                **job_hall.jobs.status(job.id).as_dict(),
                "told": _told(job_hall, job.run),
                "files": job_hall.files(job.id),
                "output": _output(job_hall, job.id),
            }
            for job in job_hall.jobs.page().jobs
        ]
        names = os.listdir(job_hall.home.jobs) if job_hall.home.jobs.exists() else []  # noqa: PTH208
        asks = [ask.question.body for ask in job_hall.hall.asks.list_open()]
        return {"jobs": jobs, "runs": runs, "stray": [name for name in names if not is_id(name, JOB)], "asks": asks}

    now.write_text(json.dumps(job_hall.run(work)))


def _told(job_hall: JobHall, run: str | None) -> list[str]:
    """Return the tool results that the model received."""
    ends = [entry.data.result for entry in job_hall.hall.history.entries(run) if entry.kind == "tool_ended"]
    return [end["content"][0]["text"] for end in ends]


def _output(job_hall: JobHall, job: str) -> str | None:
    return job_hall.jobs.result(job).output if job_hall.jobs.get(job).status == "completed" else None


def entry() -> None:
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
