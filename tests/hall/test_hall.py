"""The hall: one owner per home, its verbs, and its checks."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import Conflict, HallInUse, NotFound, WorkerLocked
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.database import lock_home
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall, open_hall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runs.owner_hooks import RunHooks
from guildhall.store.schema import prepare
from tests.runs.places import DONE, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.runs.model import SegmentEnd


@pytest.fixture
def frame(project: Path) -> Frame:
    put_worker(project)
    put_script(project, WRITE, DONE)
    return Frame.here(project, {"PATH": "/usr/bin:/bin"})


def run_in_hall(home: Home, work: Callable[[EmbeddedHall], Awaitable[Any]], **options: Any) -> Any:
    async def go() -> Any:
        hall = await open_hall(home, {}, **options)
        try:
            return await work(hall)
        finally:
            await hall.close()

    return asyncio.run(go())


async def collect_events(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


def test_a_home_is_private_and_has_one_owner(home: Home) -> None:
    first = Hall(home, environ={})
    try:
        assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
        assert stat.S_IMODE(home.database.stat().st_mode) == 0o600
        with pytest.raises(HallInUse, match="in use by another"):
            Hall(home, environ={})
        reader = Hall(home, environ={}, readonly=True)
        assert reader.history.recent() == []
        reader.release()
    finally:
        first.release()
    Hall(home, environ={}).release()


def test_a_reader_waits_for_a_home_that_is_being_created(home: Home) -> None:
    lock = lock_home(home, SystemClock())
    making = threading.Timer(0.1, prepare, [home.database])
    making.start()
    reader = Hall(home, environ={}, readonly=True)
    assert reader.history.recent() == []
    reader.release()
    making.join()
    lock.close()


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_lock_with_invalid_text_is_respected(home: Home, text: str) -> None:
    first = Hall(home, environ={})
    try:
        home.lock.write_text(text)
        with pytest.raises(HallInUse, match="in use by another"):
            Hall(home, environ={})
    finally:
        first.release()


@pytest.mark.req("X-15")
def test_a_run_is_followed_approved_and_resumed(home: Home, frame: Frame) -> None:
    async def work(hall: EmbeddedHall) -> None:
        events = await collect_events(hall.runs.run(RunRequest(worker="scribe", input="go"), frame))
        assert [event.type for event in events][-2:] == ["ask_opened", "run_ended"]
        run = events[0].run
        (ask,) = await hall.asks.list()
        assert (ask.run, ask.status) == (run, "open")
        with pytest.raises(NotFound):
            await hall.asks.get("a-2222222222")
        await hall.asks.answer(ask.id, Answer(choice="y"))
        assert (await hall.asks.get(ask.id)).status == "answered"
        events = await collect_events(hall.runs.resume(run, frame))
        assert events[-1].data["status"] == "completed"
        shown = await hall.runs.get(run)
        assert (shown.run.output, [one.status for one in shown.asks]) == ("done", ["applied"])
        assert (await hall.runs.replay(run, frame)).matches
        assert [one.id for one in await hall.runs.list()] == [run]
        assert (await hall.runs.journal(run))[-1].kind == "ended"
        with pytest.raises(Conflict, match="completed"):
            await collect_events(hall.runs.resume(run, frame))

    run_in_hall(home, work)


def test_a_run_that_is_running_is_not_resumed(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, {"sleep": 30, "say": "late"})

    async def work(hall: EmbeddedHall) -> None:
        stream = hall.runs.run(RunRequest(worker="scribe", input="go"), frame)
        first = await anext(stream)
        with pytest.raises(Conflict, match="is already running"):
            await collect_events(hall.runs.resume(first.run, frame))
        await stream.aclose()
        assert (await hall.runs.get(first.run)).run.status == "paused"

    run_in_hall(home, work)


def test_closing_the_hall_pauses_its_runs(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, {"sleep": 30, "say": "late"})
    runs: list[str] = []

    async def begin(hall: EmbeddedHall) -> None:
        stream = hall.runs.run(RunRequest(worker="scribe", input="go"), frame)
        runs.append((await anext(stream)).run)
        await hall.close()
        await stream.aclose()

    async def go() -> None:
        await begin(await open_hall(home, {}))

    asyncio.run(go())
    assert run_in_hall(home, lambda hall: hall.runs.get(runs[0]), readonly=True).run.status == "paused"


@pytest.mark.req("DO-9", "DO-14")
def test_workers_are_created_promoted_locked_and_retired(home: Home, frame: Frame) -> None:
    async def work(hall: EmbeddedHall) -> None:
        path = await hall.workers.create("helper", frame)
        assert (await hall.workers.get("helper", frame)).status == "active"  # the user wrote it
        path.write_text(path.read_text() + "\nstatus: draft\n")
        assert (await hall.workers.promote("helper", frame)).status == "active"
        assert (await hall.workers.lock("helper", frame)).is_locked
        with pytest.raises(WorkerLocked):
            await hall.workers.create("helper", frame)
        with pytest.raises(WorkerLocked):
            await hall.workers.retire("helper", frame)
        assert not (await hall.workers.unlock("helper", frame)).is_locked
        assert (await hall.workers.retire("helper", frame)).status == "retired"
        listed = {one.name: one.status for one in await hall.workers.list(frame)}
        assert listed["helper"] == "retired"
        assert listed["scribe"] == "active"

    run_in_hall(home, work)


def test_a_recorded_run_can_replace_the_model(home: Home, frame: Frame) -> None:
    async def work(hall: EmbeddedHall) -> None:
        first = await collect_events(hall.runs.run(RunRequest(worker="scribe", input="go", mode="strict"), frame))
        model = f"replay:{first[0].run}"
        again = await collect_events(
            hall.runs.run(RunRequest(worker="scribe", input="go", mode="strict", override_model=model), frame)
        )
        assert again[-1].data["status"] == "completed"
        shown = await hall.runs.get(again[0].run)
        assert (shown.run.output, shown.run.model) == ("done", model)

    run_in_hall(home, work)


def test_doctor_reports_problems(home: Home, frame: Frame, project: Path) -> None:
    healthy = {check.name: check for check in run_in_hall(home, lambda hall: hall.hall.doctor(frame))}
    assert all(check.ok for check in healthy.values()), healthy
    assert healthy["keys"].hint
    (project / "workers" / "bad.yaml").write_text("name: [")
    (project / "guildhall.yaml").write_text("budget: much")
    home.database.chmod(0o644)
    ill = {check.name: check for check in run_in_hall(home, lambda hall: hall.hall.doctor(frame), readonly=True)}
    assert not ill["workers"].ok
    assert "1 with errors" in ill["workers"].detail
    assert not ill["settings"].ok
    assert json.dumps(ill["settings"].detail)


# Background work


def script_compaction(project: Path, sleep: float) -> None:
    """Script a worker whose first write makes compaction due, and a compactor that takes `sleep` seconds."""
    put_worker(project, sandboxes=None, tool_rules=None)
    note = {"call": "memory_write", "with": {"scope": "worker", "key": "note", "content": "x" * 4_000}}
    workers = {"scribe": [[note, DONE]], "memory-compactor": [[{"say": "condensed", "sleep": sleep}]]}
    script = {"workers": workers, "repeat": True, "price": {"input": 3.0, "output": 15.0}}
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\nmemory: {limit_tokens: 400}\n")


def test_slow_compaction_is_cancelled_and_reported(home: Home, frame: Frame, project: Path) -> None:
    script_compaction(project, sleep=60)

    async def work(hall: EmbeddedHall) -> None:
        await collect_events(hall.runs.run(RunRequest(worker="scribe", input="go"), frame))
        (event,) = await hall._hall.memory_compactor.wait(timeout_s=0.1)
        assert event.data["text"] == "worker memory not compacted: timed out"
        assert event.data["done"] is False
        (made,) = [run for run in await hall.runs.list() if run.worker == "memory-compactor"]
        assert (made.status, made.reason) == ("cancelled", event.data["text"])
        assert await hall.wait_background_work() == [], "reported once"
        left = await hall.memory.list(frame, scope="worker", worker="scribe")
        assert [entry.key for entry in left.entries] == ["note"]

    run_in_hall(home, work)


def test_a_closing_hall_waits_for_compaction(home: Home, frame: Frame, project: Path) -> None:
    script_compaction(project, sleep=0.2)
    run_in_hall(home, lambda hall: collect_events(hall.runs.run(RunRequest(worker="scribe", input="go"), frame)))
    left = run_in_hall(home, lambda hall: hall.memory.list(frame, scope="worker", worker="scribe"), readonly=True)
    assert [entry.key for entry in left.entries] == ["compacted"]


def test_a_run_that_completes_while_it_is_stopped_stays_completed(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, DONE)
    held, may_continue = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        may_continue.wait(10)

    async def work(hall: EmbeddedHall) -> None:
        inner = hall._hall
        stopping: asyncio.Task[list[str]] | None = None
        async with aclosing(hall.runs.run(RunRequest(worker="scribe", input="go"), frame)) as events:
            async for event in events:
                if event.type != "turn_end":
                    continue
                token = inner.runs.token(event.run)
                inner.store.submit(hold)  # from now on the end of the run waits to be recorded
                await asyncio.to_thread(held.wait, 10)
                async with asyncio.timeout(10):
                    while inner.runtimes.tokens.find(token) is not None:  # noqa: ASYNC110 - there is no event to wait for
                        await asyncio.sleep(0.01)
                stopping = asyncio.create_task(hall.runs.stop(event.run))
                await asyncio.sleep(0.05)
                may_continue.set()
        assert stopping is not None
        with pytest.raises(Conflict, match="it is completed"):
            await stopping
        run = inner.history.get(event.run)
        assert (run.status, run.output) == ("completed", "done")
        assert [entry.kind for entry in inner.history.journal(run.id).entries].count("ended") == 1

    run_in_hall(home, work)


def test_an_answer_during_the_pause_of_a_run_finds_it_waiting(home: Home, frame: Frame) -> None:
    async def work(hall: EmbeddedHall) -> None:
        inner, may_continue = hall._hall, asyncio.Event()

        async def judge(run: str, end: SegmentEnd) -> SegmentEnd:
            await may_continue.wait()  # delays the end of the segment
            return end

        def do_nothing(*_: Any) -> Any: ...

        hooks = RunHooks(executor=do_nothing, record_start=do_nothing, record_stop=do_nothing, judge=judge)
        request = RunRequest(worker="scribe", input="go")
        prepared = await inner.runs.prepare(request, frame, hooks=hooks)
        inner.runs.launch(prepared)
        token = inner.runs.token(prepared.run_id)
        async with asyncio.timeout(10):
            while inner.runtimes.tokens.find(token) is not None:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        (ask,) = await hall.asks.list()
        answering = asyncio.create_task(hall.asks.answer(ask.id, Answer(choice="yes")))
        await asyncio.sleep(0.05)
        assert inner.history.get(prepared.run_id).status == "running"
        assert not answering.done()  # the status would still be `running`
        may_continue.set()
        await answering
        assert inner.history.get(prepared.run_id).status == "waiting"

    run_in_hall(home, work)
