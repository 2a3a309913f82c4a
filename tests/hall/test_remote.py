"""The remote client: each verb returns the same result as inside the process, and streams are followed."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from contextlib import aclosing
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from guildhall import Toolbox, Worker
from guildhall.core.errors import (
    Conflict,
    GuildError,
    HallGone,
    HallUnavailable,
    Interrupted,
    NotFound,
    NotTrusted,
    Refused,
    UnknownJob,
    UsageError,
    WorkerLocked,
)
from guildhall.core.events import Event
from guildhall.core.request_frame import Frame
from guildhall.hall.client.codec import encode
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE, Address
from guildhall.hall.client.interface import VERBS
from guildhall.hall.client.remote import RemoteHall
from guildhall.hall.client.transport import BlockingTransport, _Connection
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.jobs.model import Dispatch
from guildhall.projects.commissions.model import Draft
from guildhall.projects.registry import Projects
from guildhall.runs.model import Answer, RunRequest
from guildhall.workflow.instance import Start
from guildhall.workflow.target import parse
from tests.hall.hall_server import ServedHall, serve_hall
from tests.members.member_folders import put_member
from tests.projects.conftest import repository
from tests.projects.meetings.harness import MeetingProject
from tests.runs.places import DONE, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.paths import Home

LATE = {"sleep": 30, "say": "late"}


@pytest.fixture
def frame(project: Path) -> Frame:
    put_worker(project)
    put_script(project, WRITE, DONE)
    return Frame.here(project, {"PATH": "/usr/bin:/bin"})


def run_with_client(home: Home, work: Callable[[RemoteHall, ServedHall], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with serve_hall(home) as hall:
            client = await hall.client()
            try:
                return await work(client, hall)
            finally:
                await client.close()

    return asyncio.run(go())


async def collect_events(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


async def wait_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


class ClientComparison:
    """Calls verbs of the remote and the embedded client, and records which verbs were called."""

    def __init__(self, remote: RemoteHall, own: EmbeddedHall) -> None:
        self._remote = remote
        self._own = own
        self.called_verbs: set[str] = set()

    async def __call__(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Call a verb with both clients, and return the common result."""
        far = await self.call_remote(verb, *arguments, **named)
        near = await attrgetter(verb)(self._own)(*arguments, **named)
        assert far == near, verb
        return far

    async def call_remote(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Call a verb that changes something with the remote client only."""
        self.called_verbs.add(verb)
        return await attrgetter(verb)(self._remote)(*arguments, **named)

    async def stream(self, verb: str, *arguments: Any, **named: Any) -> list[Any]:
        self.called_verbs.add(verb)
        return await collect_events(attrgetter(verb)(self._remote)(*arguments, **named))


def test_every_verb_returns_the_same_remotely_and_embedded(home: Home, frame: Frame, project: Path) -> None:
    (project / "tests").mkdir()
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "desk.py").write_text("from guildhall import tool\n")
    put_worker(project, "teller", toolboxes=["desk"], sandboxes=None, tool_rules=None, allow_workers=["*"])

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        both = ClientComparison(remote, EmbeddedHall(hall.hall))
        request = RunRequest(worker="scribe", input="go")
        events = await both.stream("runs.run", request, frame)
        assert [event.type for event in events][-2:] == ["ask_opened", "run_ended"]
        run = events[0].run
        (ask,) = await both("asks.list")
        await both("asks.get", ask.id)
        answered = await both.call_remote("asks.answer", ask.id, Answer(choice="yes", note="ü"))
        assert answered.answer == Answer(choice="yes", note="ü")
        assert (await both.stream("runs.resume", run, frame))[-1].data["status"] == "completed"
        assert (await both("runs.get", run)).run.output == "done"
        assert [one.id for one in await both("runs.list", everything=True, called=True)] == [run]
        assert (await both("runs.journal", run, 1))[-1].kind == "ended"
        assert (await both("runs.replay", run, frame)).matches
        assert (await both.call_remote("runs.fork", run, 1, frame)).of == run
        script = await both("runs.script", run)
        (project / "tests" / "it.yaml").write_text(script)
        (tested,) = await both.stream("runs.test", [project / "tests" / "it.yaml"])
        assert tested.file == project / "tests" / "it.yaml"
        assert await both.stream("runs.follow", run, frame) == []
        await both("runs.pause", run)
        other = (await both.stream("runs.run", request, frame))[0].run
        assert await both.call_remote("runs.stop", other) == [other]
        await _check_workers(both, frame)
        await _check_trust(both, frame, project)
        await _check_memory(both, frame)
        await _check_workflow(both, frame, project)
        await _check_jobs(both, frame, project)
        await _check_commissions(both, frame, project, home)
        await _check_members(both, frame, home)
        await _check_packages(both, frame)
        await _check_projects(both, project)
        await _check_meetings(both, hall, home, project)
        await both("hall.doctor", frame)
        assert (await both("hall.hello", project)).env == ()
        assert (await both.call_remote("hall.status"))["state"] == "serving"
        assert both.called_verbs == VERBS

    run_with_client(home, work)


async def _check_meetings(both: ClientComparison, hall: ServedHall, home: Home, project: Path) -> None:
    harness = MeetingProject.at(home, project.parent / "shop")
    harness.script([{"say": "one"}, {"say": "two"}])
    meeting = await both.call_remote("meetings.open", "architect", "Which form?", harness.frame, max_turns=7)
    with pytest.raises(UsageError, match="budget: expected US dollars above 0"):
        await both.call_remote("meetings.open", "architect", "Which form?", harness.frame, budget=-1.0)
    joined = await both.stream("meetings.join", meeting.id, harness.frame, messages=["ü"])
    assert (joined[-1].type, joined[-1].data["number"]) == ("listening", 2)
    shown = await both("meetings.get", meeting.id)
    assert shown.meeting.limits == {"max_turns": 7}
    assert [one.user_message for one in shown.exchanges] == ["Which form?", "ü"]
    assert await both("meetings.list", project="shop", status="open") == [shown.meeting]
    await both.call_remote("meetings.interrupt", meeting.id)
    closed = await both.call_remote("meetings.close", meeting.id, harness.frame, summarise=False)
    assert closed.status == "closed"
    await both.call_remote("meetings.delete", meeting.id)
    place, run = hall.hall.projects.get("shop"), meeting.run or shown.meeting.run or ""
    made = [
        await hall.hall.meetings.request(place, "architect", topic, by="worker", made_by=run) for topic in ("a", "b")
    ]
    assert (await both.call_remote("meetings.defer", made[0].id, "2999-01-31")).deferred_to
    assert (await both.call_remote("meetings.accept", made[0].id)).status == "open"
    assert (await both.call_remote("meetings.decline", made[1].id, reason="no")).reason == "no"


async def _check_projects(both: ClientComparison, folder: Path) -> None:
    repository(folder / "shop").commit({}, "Start")
    added = await both.call_remote("projects.add", folder / "shop", branch="main")
    assert added in [shown.project for shown in await both("projects.list")]
    assert await both("projects.check", "shop") == []
    assert (await both.call_remote("projects.remove", "shop")).project == added
    with pytest.raises(NotFound):
        await both("projects.check", "shop")


async def _check_members(both: ClientComparison, frame: Frame, home: Home) -> None:
    put_member(home.path, "ant")
    ant = "home/ant"
    assert [tool["name"] for tool in await both.call_remote("members.tools", ant, frame)] == ["echo", "look", "die"]
    (shown,) = await both.call_remote("members.list", frame)
    assert await both.call_remote("members.get", "ant", frame) == shown
    assert (shown.state, shown.member.display_name) == ("ready", "Ant")
    result = await both.call_remote("members.call", "ant", "echo", {"text": "ü"}, frame)
    assert result["content"][0]["text"] == "echo: ü"
    job = await both.call_remote("jobs.dispatch", "ant", Dispatch(description="a", task="quick"), frame)
    assert job.id == "ant/j-1"
    assert (await both.call_remote("jobs.list", member="ant", frame=frame)).jobs[0].description == "a"
    assert (await both.call_remote("jobs.get", "ant/j-1", frame)).job.status == "completed"
    assert (await both.call_remote("jobs.result", "ant/j-1", frame)).output == "done: quick"
    assert (await both.call_remote("jobs.cancel", "ant/j-1", frame)).status == "completed"
    with pytest.raises(Refused, match="does not support worker/answer"):
        await both.call_remote("jobs.answer", "ant/j-1", "yes", frame)
    with pytest.raises(UsageError, match="frame: required to find the member 'ant'"):
        await both.call_remote("jobs.get", "ant/j-1")
    with pytest.raises(GuildError):
        await both.call_remote("jobs.resume", "ant/j-1", frame=frame)
    assert isinstance(await both.call_remote("members.active_jobs"), list)
    await both.call_remote("jobs.delete", "ant/j-1", frame=frame)
    with pytest.raises(UnknownJob):
        await both.call_remote("jobs.get", "ant/j-1", frame)
    await both.call_remote("members.restart", "ant", frame)
    await both.call_remote("members.stop", "ant", frame)
    path = await both.call_remote("members.create", "bee", frame)
    assert (path / "server.py").is_file()
    shutil.rmtree(path)


async def _check_packages(both: ClientComparison, frame: Frame) -> None:
    path = await both.call_remote("packages.create", "hours", template="timekeeper")
    assert [one.types for one in await both("packages.list")] == [("worker", "toolbox")]
    shown = await both("packages.get", "hours", frame)
    assert [tool.name for tool in shown.tools] == ["days_between", "add_workdays"]
    looked = await both("packages.inspect", path)
    kept = await both.call_remote("packages.remove", "hours")
    assert (await both.call_remote("packages.add", kept, seen=looked.digest)).path == path
    await both.call_remote("packages.remove", "hours")


async def _check_workers(both: ClientComparison, frame: Frame) -> None:
    await both("workers.list", frame)
    await both("workers.get", "scribe", frame)
    await both("workers.check", "scribe", frame)
    path = await both.call_remote("workers.create", "helper", frame)
    path.write_text(path.read_text() + "\nstatus: draft\n")
    assert (await both.call_remote("workers.promote", "helper", frame)).status == "active"
    assert (await both.call_remote("workers.lock", "helper", frame)).is_locked
    with pytest.raises(WorkerLocked):
        await both.call_remote("workers.create", "helper", frame)
    assert not (await both.call_remote("workers.unlock", "helper", frame)).is_locked
    assert (await both.call_remote("workers.retire", "helper", frame)).status == "retired"
    plan = await both("runs.plan", RunRequest(worker="scribe", input=""), frame)
    assert "scribe" in plan.text() or plan.worker == "scribe"


async def _check_trust(both: ClientComparison, frame: Frame, project: Path) -> None:
    looking = await both("trust.inspect", frame, worker="teller")
    assert [seen.path for seen in looking.untrusted_files] == [project / "toolboxes" / "desk.py"]
    assert await both("trust.untrusted_callees", "teller", frame) == []
    with pytest.raises(NotTrusted, match="desk"):
        await both.stream("runs.run", RunRequest(worker="teller", input="go"), frame)
    await both.call_remote("trust.grant", looking.untrusted_files)
    assert (await both("trust.inspect", frame, at=project)).untrusted_files == ()
    assert [pin.path for pin in await both.call_remote("trust.revoke", project)] == [project / "toolboxes" / "desk.py"]


async def _check_memory(both: ClientComparison, frame: Frame) -> None:
    await both.call_remote("memory.write", "build", "make", frame, scope="project")
    await both.call_remote("memory.write", "build", "make test", frame, scope="project")
    assert (await both("memory.get", "build", frame, scope="project")).content == "make test"
    assert len((await both("memory.list", frame)).entries) == 1
    assert len((await both("memory.history", "build", frame, scope="project")).changes) == 2
    assert (await both.call_remote("memory.revert", "build", frame, scope="project")).content == "make"
    await both.call_remote("memory.remove", "build", frame, scope="project")
    with pytest.raises(NotFound):
        await both("memory.get", "build", frame, scope="project")


async def _check_workflow(both: ClientComparison, frame: Frame, project: Path) -> None:
    put_script(project, DONE)
    agents = {"coder": {"system_prompt": "Code.", "model": "script:answers.yaml"}}
    (project / "team.yaml").write_text(json.dumps({"agents": agents, "kickoff": "@coder go"}))
    request = RunRequest(worker="team.yaml", input="")
    assert (await both("workflows.plan", request, frame, tag="main", params={})).workflow == "team"
    events = await both.stream("workflows.run", Start(file="team.yaml", params={}), request, frame)
    assert (events[0].type, events[-1].type) == ("run_started", "run_ended")
    assert (await both("runs.get", events[0].run)).below
    await _check_started_workflow(both, frame)


async def _check_started_workflow(both: ClientComparison, frame: Frame) -> None:
    (before,) = await both("workflows.list")
    assert await both("workflows.find_by_run", before.run) == before
    start = Start(file="team.yaml", tag="b", params={}, mode="start")
    began = await both.call_remote("workflows.start", start, RunRequest(worker="team.yaml", input=""), frame)
    coder, team = parse("coder@team:b"), parse("@team:b")
    async with asyncio.timeout(10):
        while (await both.call_remote("workflows.get", team)).status != "idle":  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    await both.call_remote("workflows.stop_agent", coder)
    assert (await both.call_remote("rooms.send", coder, "hello ü")).stopped == ("coder",)
    shown = await both("workflows.get", coder)
    assert shown.agents[0].unread > 0
    assert (await both("rooms.messages", began.run))[-1].content == "hello ü"
    assert (await both.call_remote("rooms.write_document", team, "one", file="a/b.md")).content == "one"
    assert (await both.call_remote("rooms.append_document", team, "two", file="a/b.md")).content == "one\ntwo"
    assert (await both("rooms.read_document", team, file="a/b.md")).path == "a/b.md"
    assert [one.path for one in await both("rooms.documents", team)] == ["a/b.md"]
    assert await both("rooms.proposals", team) == []
    due = await both.call_remote("workflows.set_schedule", coder, "1h", prompt="look")
    assert await both("workflows.schedules", coder) == [due]
    assert await both.call_remote("workflows.clear_schedule", coder) is True
    assert (await both.call_remote("workflows.start_agent", coder)).run == began.run
    assert began.run in await both.call_remote("runs.stop", began.run)
    alone = await both.call_remote("workflows.start_worker", RunRequest(worker="scribe", input=""), frame)
    assert [str(agent.target) for agent in alone.agents] == ["scribe"]
    await both.call_remote("runs.stop", alone.run)


# streams


def test_closing_a_stream_pauses_the_run_and_a_lost_connection_does_not(
    home: Home, frame: Frame, project: Path
) -> None:
    put_script(project, LATE)

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        stream = remote.runs.run(RunRequest(worker="scribe", input="go"), frame)
        run = (await anext(stream)).run
        await stream.aclose()
        shown = await remote.runs.get(run)
        assert (shown.run.status, shown.run.reason) == ("paused", "by the user")

        request = {"request": encode(RunRequest(worker="scribe", input="go")), "frame": encode(frame)}
        cut = remote._stream("runs.run", request)  # like a killed client
        run = (await anext(cut)).run
        before = hall.process._listener.client_count
        await cut.aclose()
        await wait_until(lambda: hall.process._listener.client_count < before)
        assert hall.hall.runs.is_alive(run)
        await remote.runs.pause(run)

    run_with_client(home, work)


def test_an_interrupt_before_the_first_event_pauses_the_run(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, LATE)

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        stream = remote.runs.run(RunRequest(worker="scribe", input="go"), frame)
        events: list[Event] = []

        async def follow() -> None:
            async for event in stream:
                events.append(event)

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0)  # the request is being sent
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        (run,) = await remote.runs.list()
        assert (run.status, [event.run for event in events]) == ("paused", [run.id]), "the follower knows the run"
        assert not hall.hall.is_busy()

    run_with_client(home, work)


def test_an_interrupt_before_a_lost_response_is_reported_as_unknown(frame: Frame) -> None:
    async def work() -> None:
        is_requested, may_close = asyncio.Event(), asyncio.Event()

        async def accept_without_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            is_requested.set()
            await may_close.wait()
            writer.close()

        async with await asyncio.start_server(accept_without_response, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            remote = RemoteHall(Address(pid=1, boot="b", version="1", url=url, since="", token="t"))
            following = asyncio.ensure_future(
                collect_events(remote.runs.run(RunRequest(worker="scribe", input="go"), frame))
            )
            await is_requested.wait()
            following.cancel()
            may_close.set()
            with pytest.raises(Interrupted, match="before the hall responded") as interrupted:
                await following
            assert interrupted.value.hint == "A run may have started. List the runs: guild ls"

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_later_client_follows_a_running_run(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, {"sleep": 0.3, "say": "soon"})

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        stream = remote.runs.run(RunRequest(worker="scribe", input="go"), frame)
        first = await anext(stream)
        late = asyncio.create_task(collect_events(remote.runs.follow(first.run, frame)))
        # The run is running, so the second client follows it.
        again = asyncio.create_task(collect_events(remote.runs.resume(first.run, frame)))
        with pytest.raises(Conflict, match="is already running"):
            await collect_events(remote.runs.resume(first.run, frame, max_turns=10))
        own = [first, *[event async for event in stream]]
        for events in (await late, await again):
            assert replace(events[0], at="") == replace(first, at="")
            assert events[1:] == own[-len(events) + 1 :]
            assert events[-1].type == "run_ended"

    run_with_client(home, work)


def test_an_ask_does_not_wait_for_a_closed_terminal(home: Home, frame: Frame) -> None:
    """With a terminal attached, an ask keeps the run alive. Without it, the run is paused until the answer."""
    at_terminal = replace(frame, interactive=True)

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        request = {"request": encode(RunRequest(worker="scribe", input="go")), "frame": encode(at_terminal)}
        cut = remote._stream("runs.run", request)
        async for event in cut:
            if event.type == "ask_opened":
                break
        await asyncio.sleep(0.15)
        assert hall.hall.is_busy(), "a terminal is attached"
        await cut.aclose()
        await wait_until(lambda: not hall.hall.is_busy())
        (run,) = await remote.runs.list()
        assert run.status == "waiting"

    run_with_client(home, work)


def test_a_slow_reader_uses_bounded_memory(home: Home, frame: Frame, project: Path) -> None:
    """Text pieces are dropped. The end is sent when the reader reads again."""
    put_script(project, LATE)
    request = {"request": encode(RunRequest(worker="scribe", input="go")), "frame": encode(frame)}

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", hall.address.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        answer = _Connection(reader, writer, hall.address)
        assert await answer.start_stream("/api/runs/run", request) == 200
        began = json.loads(await answer.read_line())["item"]
        (listeners,) = hall.hall.bus._listeners.values()
        for number in range(10_000):
            hall.hall.bus.publish(
                Event(type="text_delta", run=began["run"], root=began["run"], at="", data={"text": "x" * 1000})
            )
            if number % 100 == 0:
                await asyncio.sleep(0)
        await remote.runs.pause(began["run"])
        assert 1_000 <= listeners[0].__self__._queue.qsize() <= 1_100
        lines: list[Any] = [{}]
        while lines[-1] != {"end": True}:
            lines.append(json.loads(await answer.read_line()))
        assert lines[-2]["item"]["type"] == "run_ended"
        assert 1_000 < len(lines) < 9_900
        writer.close()

    run_with_client(home, work)


def test_a_stopping_hall_pauses_runs_and_refuses_new_ones(home: Home, frame: Frame, project: Path) -> None:
    put_script(project, LATE)

    async def work(remote: RemoteHall, hall: ServedHall) -> str:
        await remote.hall.hello(frame.root)
        stream = remote.runs.run(RunRequest(worker="scribe", input="go"), frame)
        run = (await anext(stream)).run
        hall.process.stop()
        rest = [event async for event in stream]
        assert (rest[-1].data["status"], rest[-1].data["reason"]) == ("paused", "shutdown")
        assert (await remote.runs.get(run)).run.status == "paused", "the client can still read"
        with pytest.raises(HallGone, match="stopping"):
            await remote.hall.doctor(frame)
        with pytest.raises(HallGone):
            await collect_events(remote.runs.run(RunRequest(worker="scribe", input="go"), frame))
        with pytest.raises(HallGone):
            await RemoteHall(hall.address).hall.hello(frame.root)
        await remote.close()
        await hall.serving
        with pytest.raises(HallGone, match="exited"):
            await remote.runs.list()
        assert not home.address.exists()
        return run

    run = run_with_client(home, work)
    put_script(project, DONE)

    async def again(remote: RemoteHall, hall: ServedHall) -> None:
        await wait_until(lambda: hall.hall.history.get(run).status == "completed")

    run_with_client(home, again)


def test_a_run_that_cannot_start_leaves_no_run(home: Home, frame: Frame, project: Path) -> None:
    (project / "guildhall.yaml").unlink()

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        with pytest.raises(GuildError):
            await collect_events(remote.runs.run(RunRequest(worker="scribe", input="go"), frame))
        assert await remote.runs.list() == []

    run_with_client(home, work)


# the library


def test_the_library_uses_a_running_hall(home: Home, frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EMBEDDED_VARIABLE)
    worker = Worker.load("scribe")

    async def work(remote: RemoteHall, hall: ServedHall) -> None:
        result = await worker.arun("go", approver=lambda ask: "yes")
        assert result.output == "done"
        assert [run.id for run in await remote.runs.list()] == [result.run]
        waiting = await worker.arun("go")
        assert waiting.status == "waiting"
        await remote.asks.answer(waiting.asks[0]["ask"], Answer(choice="yes"))
        assert (await worker.aresume(waiting.run)).output == "done"
        several = await asyncio.gather(*(worker.arun(str(number), mode="approve_all") for number in range(3)))
        assert [one.output for one in several] == ["done"] * 3
        with pytest.raises(HallUnavailable, match="another thread"):
            await Worker.load("scribe", toolboxes=[Toolbox("desk")]).arun("go")

    run_with_client(home, work)


async def _check_jobs(both: ClientComparison, frame: Frame, project: Path) -> None:
    script = {"workers": {"smith": [[{"call": "submit_result", "with": {"output": "a key"}}, {"say": "done"}]]}}
    (project / "smith.yaml").write_text(json.dumps(script))
    put_worker(project, "smith", model="script:smith.yaml", sandboxes=None, tool_rules=None)
    job = await both.call_remote("jobs.dispatch", "smith", Dispatch(description="a key", task="Forge it."), frame)
    await both.stream("runs.follow", job.run, frame)
    assert (await both("jobs.list", filter="a*", limit=1, worker="smith")).jobs[0].id == job.id
    assert (await both("jobs.get", job.id)).job.status == "completed"
    assert (await both("jobs.result", job.id)).output == "a key"
    assert (await both("jobs.cancel", job.id)).status == "completed"
    await both.call_remote("jobs.delete", job.id)
    with pytest.raises(UnknownJob):
        await both.call_remote("jobs.get", job.id)


async def _check_commissions(both: ClientComparison, frame: Frame, project: Path, home: Home) -> None:
    repository(project).commit({})
    Projects(home).add(project, "till")
    draft = Draft(title="A key", worker="smith", prompt="Forge it.", artifacts=("key.py",), max_turns=9)
    made = await both.call_remote("commissions.create", draft, frame, project="till")
    assert (made.status, made.draft) == ("pending", draft)
    edited = await both.call_remote("commissions.edit", made.id, {"artifacts": []}, frame)
    assert edited.draft.artifacts == ()
    begun = await both.call_remote("commissions.dispatch", made.id, frame)
    assert begun.status == "in_progress", begun.reason
    await both.stream("runs.follow", begun.run, frame)
    assert [one.id for one in await both("commissions.list", project="till", status="completed")] == [made.id]
    assert await both("commissions.wait_idle", made.id, within=0.1) is True
    shown = await both("commissions.get", made.id)
    assert (shown.commission.result, shown.timeline[0].after) == ("a key", "pending")
    other = await both.call_remote("commissions.create", draft, frame)
    assert (await both.call_remote("commissions.cancel", other.id, reason="no")).reason == "no"
    again = await both.call_remote("commissions.redispatch", other.id, frame)
    assert again.attempt == 1
    await both.stream("runs.follow", again.run, frame)
    with pytest.raises(Conflict, match="cannot abandon"):
        await both.call_remote("commissions.abandon", made.id)
    await both.call_remote("commissions.delete", made.id)
    with pytest.raises(NotFound, match="unknown commission"):
        await both("commissions.get", made.id)


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"])
def test_a_truncated_response_raises_hall_gone(response: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(response)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        address = Address(pid=1, boot="b", version="1", url=url, since="", token="t")
        transport = BlockingTransport(address)
        with pytest.raises(HallGone):
            asyncio.run(transport.call("/api/runs/list", {}))
        asyncio.run(transport.close())
        thread.join()
