"""What a hall does with runs is the same whether they are executed in it or in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict
from guildhall.core.frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall, open_hall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runtimes.forked.runtime import ForkedRuntime
from tests.children import Killing, Watched, children_of
from tests.runs.places import DONE, OTHER, WRITE, journal, kinds, put_script, put_worker, wait_until
from tests.runs.trees import list_notes, put_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.hall.client.model import RunDetails
    from tests.children import Place
    from tests.conftest import GuildWithHall

SLOW = {"sleep": 30, "say": "too late"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class House:
    """A hall, and whether its runs have processes."""

    def __init__(self, hall: Hall, frame: Frame, place: Place | None) -> None:
        self.face = EmbeddedHall(hall)
        self.frame = frame
        self._place = place

    def processes(self) -> int:
        return 0 if self._place is None else len(self._place.nursery.pids) - 1

    async def is_empty(self) -> None:
        """No process outlives its run; one that was just being born finds nobody there, and goes."""
        for _ in range(500):
            if self.processes() == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.processes())

    @property
    def has_processes(self) -> bool:
        return self._place is not None

    async def run(self, worker: str = "scribe", **options: Any) -> list[Event]:
        request = RunRequest(worker=worker, input="go", **options)
        return await followed(self.face.runs.run(request, self.frame))

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await followed(self.face.runs.resume(run, self.frame, **options))

    async def answer_all(self) -> None:
        for ask in await self.face.asks.list():
            await self.face.asks.answer(ask.id, Answer(choice="yes"))

    async def shown(self, run: str) -> RunDetails:
        return await self.face.runs.get(run)


async def followed(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.fixture(params=["here", "in children"])
def inside(request: pytest.FixtureRequest, place: Place, home: Home, project: Path) -> Callable[[Any], Any]:
    """Does something with a hall whose runs are executed here, or in children."""

    def work_inside(work: Callable[[House], Any]) -> Any:
        async def go() -> Any:
            hall = Hall(home, environ={})
            if request.param == "in children":
                hall.runtimes.runtime_for_run = lambda *_: ForkedRuntime(place.nursery)
            house = House(hall, Frame.here(project, {}), place if request.param == "in children" else None)
            try:
                return await work(house)
            finally:
                await hall.close()
                await house.is_empty()

        return place.runs(go())

    return work_inside


@pytest.mark.req("AW-21")
def test_a_run_waits_without_a_process_and_goes_on_when_it_is_answered(
    inside: Callable[[Any], Any], project: Path
) -> None:
    put_worker(project)
    put_script(project, WRITE, OTHER, DONE)

    async def work(house: House) -> None:
        events = await house.run()
        assert events[-1].data["status"] == "waiting"
        assert house.processes() == 0
        await house.answer_all()
        assert (await house.resume(events[0].run))[-1].data["status"] == "waiting"
        await house.answer_all()
        assert (await house.resume(events[0].run))[-1].data["status"] == "completed"
        shown = await house.shown(events[0].run)
        assert (shown.run.output, [ask.status for ask in shown.asks]) == ("done", ["applied"] * 2)
        assert (await house.face.runs.replay(shown.run.id, house.frame)).matches

    inside(work)
    assert list_notes(project) == ["a.md", "b.md"]


def test_a_run_is_paused_and_its_process_is_gone(inside: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, SLOW)

    async def work(house: House) -> None:
        stream = house.face.runs.run(RunRequest(worker="scribe", input="go"), house.frame)
        async for event in stream:
            if event.type == "tool_result":
                break
        run = event.run
        assert house.processes() == house.has_processes
        with pytest.raises(Conflict, match="is running"):
            await house.resume(run)
        await stream.aclose()
        assert house.processes() == 0
        assert (await house.shown(run)).run.status == "paused"
        put_script(project, WRITE, DONE)
        assert (await house.resume(run))[-1].data["status"] == "completed"
        kinds = [entry.kind for entry in await house.face.runs.journal(run)]
        assert kinds.count("tool_started") == 1

    inside(work)


def test_a_run_is_stopped_for_good(inside: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, SLOW)

    async def work(house: House) -> None:
        stream = house.face.runs.run(RunRequest(worker="scribe", input="go"), house.frame)
        run = (await anext(stream)).run
        assert await house.face.runs.stop(run) == [run]
        await house.is_empty()
        assert (await house.shown(run)).run.status == "cancelled"
        await stream.aclose()

    inside(work)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_turns": 1}, "max_turns"), ({"max_budget_usd": 0.0001}, "max_budget_usd"), ({"timeout": "0.1s"}, "timeout")],
)
def test_a_limit_ends_it(inside: Callable[[Any], Any], project: Path, fields: dict[str, Any], limit: str) -> None:
    put_worker(project, tool_rules=None, limits=fields)
    put_script(project, WRITE, SLOW if limit == "timeout" else DONE)

    async def work(house: House) -> None:
        events = await house.run()
        assert (events[-1].data["status"], events[-1].data["reason"]) == ("failed", "limit")
        error = (await house.shown(events[0].run)).run.error
        assert error is not None
        assert error["limit"] == limit

    inside(work)


def test_a_tree_of_runs_waits_as_one_and_ends_as_one(inside: Callable[[Any], Any], project: Path) -> None:
    put_tree(project, asking=True)

    async def work(house: House) -> None:
        events = await house.run("boss")
        assert events[-1].data["status"] == "waiting"
        assert len(await house.face.asks.list()) == 2
        await house.answer_all()
        assert (await house.resume(events[0].run))[-1].data["status"] == "completed"
        shown = await house.shown(events[0].run)
        assert [one.status for one in shown.below] == ["completed"] * 2
        assert shown.run.output == "both are written"
        assert (await house.face.runs.replay(shown.run.id, house.frame)).matches

    inside(work)
    assert list_notes(project) == ["a.md", "b.md"]


def test_a_typed_result_and_a_file_that_is_attached(inside: Callable[[Any], Any], project: Path) -> None:
    (project / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (project / "schema.json").write_text(json.dumps(SCHEMA))
    put_worker(project, sandboxes=None, tool_rules=None, output_schema_ref="schema.json")
    put_script(project, {"output": {"n": "x"}}, {"output": {"n": 5}})

    async def work(house: House) -> None:
        events = await house.run(attachments=("picture.png",))
        shown = await house.shown(events[0].run)
        assert (shown.run.status, shown.run.output) == ("completed", {"n": 5})
        assert (await house.face.runs.replay(shown.run.id, house.frame)).matches

    inside(work)


def test_a_model_that_fails_fails_the_run(inside: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, sandboxes=None, tool_rules=None)
    put_script(project, {"say": ""}, {"say": ""}, {"say": ""})

    async def work(house: House) -> None:
        run = (await house.shown((await house.run())[0].run)).run
        assert run.error is not None
        assert (run.status, run.error["code"]) == ("failed", "runtime_failed")
        assert "3 unusable model answers in a row" in run.error["message"]

    inside(work)


@pytest.mark.req("AW-21")
def test_the_third_crash_is_the_end_and_a_person_may_go_on(place: Place, home: Home, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, DONE)

    async def work() -> None:
        hall = Hall(home, environ={})
        killing = Killing(place.nursery, 5, 10, 15)
        hall.runtimes.runtime_for_run = lambda *_: killing
        house = House(hall, Frame.here(project, {}), place)
        seen = await house.run()
        run = (await house.shown(seen[0].run)).run
        assert run.error is not None
        assert (run.status, run.error["code"]) == ("failed", "runtime_crashed")
        told = [event.data.get("transient") for event in seen if event.type == "error"]
        assert told == [True, True, None]
        told = [event.data.get("attempt") for event in seen if event.type == "error"]
        assert told == [2, 3, None]
        assert run.error["hint"] == f"Continue from the last recorded step: guild resume {run.id}"
        kinds = [entry.kind for entry in await house.face.runs.journal(run.id)]
        assert (kinds.count("crashed"), kinds.count("tool_started"), kinds[-1]) == (2, 1, "ended")
        assert (await house.face.runs.replay(run.id, house.frame)).matches
        assert (await house.resume(run.id))[-1].data["status"] == "completed"
        await hall.close()

    place.runs(work())
    assert list_notes(project) == ["a.md"]


def test_a_hall_with_children_of_its_own_ends_them_when_it_closes(home: Home, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, SLOW)

    async def go() -> tuple[list[int], str]:
        face = await open_hall(home, {}, forks_runs=True)
        stream = face.runs.run(RunRequest(worker="scribe", input="go"), Frame.here(project, {}))
        run = (await anext(stream)).run
        nursery = face._hall.runtimes.fork_server
        assert nursery is not None
        while len(nursery.pids) < 2:  # noqa: ASYNC110 - it comes up
            await asyncio.sleep(0.02)
        pids = [os.pidfd_open(pid) for pid in nursery.pids]
        await face.close()
        await stream.aclose()
        return pids, run

    pidfds, run = asyncio.run(go())
    for pidfd in pidfds:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, 0)
        os.close(pidfd)
    reader = Hall(home, environ={}, readonly=True)
    assert reader.history.get(run).status == "paused"
    reader.release()


# The command, with a hall that is a process


def process_of_run(guild_hall: GuildWithHall) -> int:
    """The only child of the warm parent, which is beside the hosts of tools."""
    below = children_of(guild_hall.hall().pid)
    (parent,) = (pid for pid in below if b"runtimes.forked.server" in Path(f"/proc/{pid}/cmdline").read_bytes())
    wait_until(lambda: len(children_of(parent)) == 1)
    return children_of(parent)[0]


@pytest.mark.req("AW-21")
def test_a_run_whose_process_is_killed_goes_on_and_a_killed_hall_leaves_nobody(
    guild_hall: GuildWithHall, project: Path
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, *[{"sleep": 1, **OTHER}] * 3, {"sleep": 120, "say": "too late"})
    process = guild_hall.start("run", "scribe", "go", "--output", "stream-json", installed=True)
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    wait_until(lambda: list_notes(project) == ["a.md"])
    os.kill(process_of_run(guild_hall), signal.SIGKILL)
    wait_until(lambda: "crashed" in kinds(journal(guild_hall, run)))
    (crashed,) = (entry for entry in journal(guild_hall, run) if entry["kind"] == "crashed")
    assert "was killed by SIGKILL" in crashed["data"]["message"]
    wait_until(lambda: kinds(journal(guild_hall, run)).count("tool_ended") == 4)
    assert kinds(journal(guild_hall, run)).count("tool_started") == 4
    another = process_of_run(guild_hall)
    everyone = [Watched(pid) for pid in (another, *children_of(guild_hall.hall().pid))]
    guild_hall.kill_hall()
    assert all(one.gone() for one in everyone)
