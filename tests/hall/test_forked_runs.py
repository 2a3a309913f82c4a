"""Runs in forked processes behave like runs inside the hall."""

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
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall, open_hall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runtimes.forked.runtime import ForkedRuntime
from tests.run_processes import KillingRuntime, WatchedProcess, child_pids
from tests.runs.places import DONE, OTHER, WRITE, journal, kinds, put_script, put_worker, wait_until
from tests.runs.trees import list_notes, put_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.hall.client.model import RunDetails
    from tests.conftest import GuildWithHall
    from tests.run_processes import ForkServerLoop

SLOW = {"sleep": 30, "say": "too late"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class HallUnderTest:
    """A hall whose runs are executed in the hall or in forked processes."""

    def __init__(self, hall: Hall, frame: Frame, fork_loop: ForkServerLoop | None) -> None:
        self.client = EmbeddedHall(hall)
        self.frame = frame
        self._fork_loop = fork_loop

    def count_processes(self) -> int:
        return 0 if self._fork_loop is None else len(self._fork_loop.fork_server.pids) - 1

    async def wait_for_no_processes(self) -> None:
        """Wait until no process of a run is left. A process that was just forked exits by itself."""
        for _ in range(500):
            if self.count_processes() == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.count_processes())

    @property
    def has_processes(self) -> bool:
        return self._fork_loop is not None

    async def run(self, worker: str = "scribe", **options: Any) -> list[Event]:
        request = RunRequest(worker=worker, input="go", **options)
        return await collect_events(self.client.runs.run(request, self.frame))

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await collect_events(self.client.runs.resume(run, self.frame, **options))

    async def answer_all(self) -> None:
        for ask in await self.client.asks.list():
            await self.client.asks.answer(ask.id, Answer(choice="yes"))

    async def get_details(self, run: str) -> RunDetails:
        return await self.client.runs.get(run)


async def collect_events(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.fixture(params=["here", "in children"])
def run_in_hall(
    request: pytest.FixtureRequest, fork_loop: ForkServerLoop, home: Home, project: Path
) -> Callable[[Any], Any]:
    """Return a function that calls a coroutine function with a hall, once for each way to execute runs."""

    def run(work: Callable[[HallUnderTest], Any]) -> Any:
        async def go() -> Any:
            hall = Hall(home, environ={})
            if request.param == "in children":
                hall.runtimes.runtime_for_run = lambda *_: ForkedRuntime(fork_loop.fork_server)
            tested = HallUnderTest(hall, Frame.here(project, {}), fork_loop if request.param == "in children" else None)
            try:
                return await work(tested)
            finally:
                await hall.close()
                await tested.wait_for_no_processes()

        return fork_loop.run(go())

    return run


@pytest.mark.req("AW-21")
def test_a_run_waits_without_a_process_and_resumes_after_the_answer(
    run_in_hall: Callable[[Any], Any], project: Path
) -> None:
    put_worker(project)
    put_script(project, WRITE, OTHER, DONE)

    async def work(tested: HallUnderTest) -> None:
        events = await tested.run()
        assert events[-1].data["status"] == "waiting"
        assert tested.count_processes() == 0
        await tested.answer_all()
        assert (await tested.resume(events[0].run))[-1].data["status"] == "waiting"
        await tested.answer_all()
        assert (await tested.resume(events[0].run))[-1].data["status"] == "completed"
        details = await tested.get_details(events[0].run)
        assert (details.run.output, [ask.status for ask in details.asks]) == ("done", ["applied"] * 2)
        assert (await tested.client.runs.replay(details.run.id, tested.frame)).matches

    run_in_hall(work)
    assert list_notes(project) == ["a.md", "b.md"]


def test_a_paused_run_has_no_process(run_in_hall: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, SLOW)

    async def work(tested: HallUnderTest) -> None:
        stream = tested.client.runs.run(RunRequest(worker="scribe", input="go"), tested.frame)
        async for event in stream:
            if event.type == "tool_result":
                break
        run = event.run
        assert tested.count_processes() == tested.has_processes
        with pytest.raises(Conflict, match="is already running"):
            await tested.resume(run)
        await stream.aclose()
        assert tested.count_processes() == 0
        assert (await tested.get_details(run)).run.status == "paused"
        put_script(project, WRITE, DONE)
        assert (await tested.resume(run))[-1].data["status"] == "completed"
        kinds = [entry.kind for entry in await tested.client.runs.journal(run)]
        assert kinds.count("tool_started") == 1

    run_in_hall(work)


def test_a_stopped_run_is_cancelled(run_in_hall: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, SLOW)

    async def work(tested: HallUnderTest) -> None:
        stream = tested.client.runs.run(RunRequest(worker="scribe", input="go"), tested.frame)
        run = (await anext(stream)).run
        assert await tested.client.runs.stop(run) == [run]
        await tested.wait_for_no_processes()
        assert (await tested.get_details(run)).run.status == "cancelled"
        await stream.aclose()

    run_in_hall(work)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_turns": 1}, "max_turns"), ({"max_budget_usd": 0.0001}, "max_budget_usd"), ({"timeout": "0.1s"}, "timeout")],
)
def test_a_limit_fails_the_run(
    run_in_hall: Callable[[Any], Any], project: Path, fields: dict[str, Any], limit: str
) -> None:
    put_worker(project, tool_rules=None, limits=fields)
    put_script(project, WRITE, SLOW if limit == "timeout" else DONE)

    async def work(tested: HallUnderTest) -> None:
        events = await tested.run()
        assert (events[-1].data["status"], events[-1].data["reason"]) == ("failed", "limit")
        error = (await tested.get_details(events[0].run)).run.error
        assert error is not None
        assert error["limit"] == limit

    run_in_hall(work)


def test_a_run_and_its_child_runs_wait_and_complete_together(run_in_hall: Callable[[Any], Any], project: Path) -> None:
    put_tree(project, asking=True)

    async def work(tested: HallUnderTest) -> None:
        events = await tested.run("boss")
        assert events[-1].data["status"] == "waiting"
        assert len(await tested.client.asks.list()) == 2
        await tested.answer_all()
        assert (await tested.resume(events[0].run))[-1].data["status"] == "completed"
        details = await tested.get_details(events[0].run)
        assert [one.status for one in details.below] == ["completed"] * 2
        assert details.run.output == "both are written"
        assert (await tested.client.runs.replay(details.run.id, tested.frame)).matches

    run_in_hall(work)
    assert list_notes(project) == ["a.md", "b.md"]


def test_a_run_accepts_attachments_and_returns_a_typed_result(run_in_hall: Callable[[Any], Any], project: Path) -> None:
    (project / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (project / "schema.json").write_text(json.dumps(SCHEMA))
    put_worker(project, sandboxes=None, tool_rules=None, output_schema_ref="schema.json")
    put_script(project, {"output": {"n": "x"}}, {"output": {"n": 5}})

    async def work(tested: HallUnderTest) -> None:
        events = await tested.run(attachments=("picture.png",))
        details = await tested.get_details(events[0].run)
        assert (details.run.status, details.run.output) == ("completed", {"n": 5})
        assert (await tested.client.runs.replay(details.run.id, tested.frame)).matches

    run_in_hall(work)


def test_unusable_model_answers_fail_the_run(run_in_hall: Callable[[Any], Any], project: Path) -> None:
    put_worker(project, sandboxes=None, tool_rules=None)
    put_script(project, {"say": ""}, {"say": ""}, {"say": ""})

    async def work(tested: HallUnderTest) -> None:
        run = (await tested.get_details((await tested.run())[0].run)).run
        assert run.error is not None
        assert (run.status, run.error["code"]) == ("failed", "runtime_failed")
        assert "3 unusable model responses in a row" in run.error["message"]

    run_in_hall(work)


@pytest.mark.req("AW-21")
def test_the_third_crash_fails_the_run_and_it_can_be_resumed(
    fork_loop: ForkServerLoop, home: Home, project: Path
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, DONE)

    async def work() -> None:
        hall = Hall(home, environ={})
        killing_runtime = KillingRuntime(fork_loop.fork_server, 5, 10, 15)
        hall.runtimes.runtime_for_run = lambda *_: killing_runtime
        tested = HallUnderTest(hall, Frame.here(project, {}), fork_loop)
        seen = await tested.run()
        run = (await tested.get_details(seen[0].run)).run
        assert run.error is not None
        assert (run.status, run.error["code"]) == ("failed", "runtime_crashed")
        values = [event.data.get("transient") for event in seen if event.type == "error"]
        assert values == [True, True, None]
        values = [event.data.get("attempt") for event in seen if event.type == "error"]
        assert values == [2, 3, None]
        assert run.error["hint"] == f"Continue from the last recorded step: guild resume {run.id}"
        kinds = [entry.kind for entry in await tested.client.runs.journal(run.id)]
        assert (kinds.count("crashed"), kinds.count("tool_started"), kinds[-1]) == (2, 1, "ended")
        assert (await tested.client.runs.replay(run.id, tested.frame)).matches
        assert (await tested.resume(run.id))[-1].data["status"] == "completed"
        await hall.close()

    fork_loop.run(work())
    assert list_notes(project) == ["a.md"]


def test_a_hall_ends_its_run_processes_when_it_closes(home: Home, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, SLOW)

    async def go() -> tuple[list[int], str]:
        client = await open_hall(home, {}, forks_runs=True)
        stream = client.runs.run(RunRequest(worker="scribe", input="go"), Frame.here(project, {}))
        run = (await anext(stream)).run
        fork_server = client._hall.runtimes.fork_server
        assert fork_server is not None
        while len(fork_server.pids) < 2:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
        pids = [os.pidfd_open(pid) for pid in fork_server.pids]
        await client.close()
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


# The command, with a hall in its own process


def find_run_process(guild_hall: GuildWithHall) -> int:
    """Return the pid of the only child of the fork server."""
    below = child_pids(guild_hall.hall().pid)
    (parent,) = (pid for pid in below if b"runtimes.forked.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes())
    wait_until(lambda: len(child_pids(parent)) == 1)
    return child_pids(parent)[0]


@pytest.mark.req("AW-21")
def test_a_run_survives_its_process_and_a_killed_hall_leaves_no_processes(
    guild_hall: GuildWithHall, project: Path
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, *[{"sleep": 1, **OTHER}] * 3, {"sleep": 120, "say": "too late"})
    process = guild_hall.start("run", "scribe", "go", "--output", "stream-json", installed=True)
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    wait_until(lambda: list_notes(project) == ["a.md"])
    os.kill(find_run_process(guild_hall), signal.SIGKILL)
    wait_until(lambda: "crashed" in kinds(journal(guild_hall, run)))
    (crashed,) = (entry for entry in journal(guild_hall, run) if entry["kind"] == "crashed")
    assert "was killed by SIGKILL" in crashed["data"]["message"]
    wait_until(lambda: kinds(journal(guild_hall, run)).count("tool_ended") == 4)
    assert kinds(journal(guild_hall, run)).count("tool_started") == 4
    run_process = find_run_process(guild_hall)
    processes = [WatchedProcess(pid) for pid in (run_process, *child_pids(guild_hall.hall().pid))]
    guild_hall.kill_hall()
    assert all(one.wait_exit() for one in processes)
