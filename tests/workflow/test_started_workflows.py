"""Started workflows: they run until they are stopped, also across restarts of the hall."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.hall.composition.recovery import Recovery
from guildhall.runs.model import RunRequest
from guildhall.workflow.instance import Start
from guildhall.workflow.target import Target, parse
from tests.workflow.teams import call, send, stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.workflow.instance import WorkflowSummary
    from tests.workflow.teams import Team


async def start_workflow(team: Team, *, tag: str = "main", **more: Any) -> WorkflowSummary:
    request = Start(file="team.yaml", tag=tag, params={}, mode="start", **more)
    return await team.client.workflows.start(request, RunRequest(worker="team.yaml", input=""), team.frame())


async def run_workflow(team: Team, *, tag: str = "main", **more: Any) -> str:
    request = Start(file="team.yaml", tag=tag, params={}, **more)
    stream = team.client.workflows.run(request, RunRequest(worker="team.yaml", input=""), team.frame())
    return (await team.follow(stream)).id


async def wait_until(condition: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not hold within 10 s")


async def wait_for_status(team: Team, status: str, target: str = "@team") -> WorkflowSummary:
    for _ in range(1_000):
        if (shown := await team.client.workflows.get(parse(target))).status == status:
            return shown
        await asyncio.sleep(0.01)
    raise AssertionError(f"the status is not {status} after 10 s")


async def recover(team: Team) -> None:
    await Recovery(team.hall).resume_runs()


def read_messages(team: Team, tag: str = "main") -> list[tuple[str, str]]:
    room = team.hall.main.rooms.find(str(team.project), "team", tag)
    return [(message.sender, message.content) for message in room.list_messages()]


@pytest.mark.req("AW-15", "AW-17")
def test_a_started_workflow_is_idle_until_a_message_arrives(team: Team) -> None:
    team.write_workflow()
    team.write_script(ann=[[send("@bob your turn"), stop()], [send("again"), stop()]], bob=[[send("thanks"), stop()]])

    async def work(team: Team) -> None:
        began = await start_workflow(team)
        assert began.mode == "start"
        await wait_for_status(team, "idle")
        assert read_messages(team)[-1] == ("bob", "thanks")
        assert team.hall.is_busy()  # no run, but the process stays
        sent = await team.client.rooms.send(parse("ann@team"), "are you there?")
        assert sent.posted.reached == ("ann",)
        await wait_until(lambda: ("ann", "again") in read_messages(team))
        shown = await wait_for_status(team, "idle")
        assert shown.run == began.run
        assert [(agent.name, agent.status, agent.unread, agent.runs) for agent in shown.agents] == [
            ("ann", "idle", 0, 2),
            ("bob", "idle", 0, 1),
        ]

    team.run_in_hall(work)


@pytest.mark.req("AW-16", "AW-24")
def test_a_message_of_the_user_reaches_mentioned_agents_or_all(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[stop()]], bob=[[stop()]], repeat=True)

    async def work(team: Team) -> None:
        await start_workflow(team)
        reached: Callable[[Any], set[str]] = lambda sent: set(sent.posted.reached)  # noqa: E731
        assert reached(await team.client.rooms.send(parse("@team"), "all of you")) == {"ann", "bob"}
        assert reached(await team.client.rooms.send(parse("@team"), "@all sync up")) == {"ann", "bob"}
        assert reached(await team.client.rooms.send(parse("@team"), "@bob and only you")) == {"bob"}
        assert reached(await team.client.rooms.send(parse("bob@team"), "no mention")) == {"bob"}
        with pytest.raises(NotFound, match="no agent named @bop") as caught:
            await team.client.rooms.send(parse("@team"), "@bop fix it")
        assert "bob" in str(caught.value.hint)
        with pytest.raises(NotFound, match="unknown agent bop@team") as caught:
            await team.client.rooms.send(parse("bop@team"), "x")
        assert "bob@team" in str(caught.value.hint)
        with pytest.raises(NotFound, match="unknown workflow @taem") as caught:
            await team.client.rooms.send(parse("@taem"), "x")
        assert "@team" in str(caught.value.hint)
        for text in ("", "  ", "a\0b", "\ud800", "x" * 1_000_001):
            with pytest.raises(UsageError):
                await team.client.rooms.send(parse("ann@team"), text)

    team.run_in_hall(work)


@pytest.mark.req("AW-16")
def test_an_agent_is_stopped_while_the_others_continue(team: Team) -> None:
    team.write_workflow(kickoff="@ann @bob begin")
    slow = {"sleep": 30, "say": "never"}
    team.write_script(ann=[[slow], [send("I am back"), stop()]], bob=[[stop()], [send("still here"), stop()]])

    async def work(team: Team) -> None:
        began = await start_workflow(team)
        await wait_until(lambda: team.agents(began.run)["ann"].status == "running")
        at = team.agents(began.run)["ann"].run
        ended = await team.client.workflows.stop_agent(parse("ann@team"))
        assert ended == [at]
        assert team.hall.history.get(at).status == "cancelled"
        assert team.agents(began.run)["ann"].status == "stopped"
        sent = await team.client.rooms.send(parse("@team"), "who is there?")
        assert sent.stopped == ("ann",)
        await wait_until(lambda: ("bob", "still here") in read_messages(team))
        shown = await wait_for_status(team, "idle")
        assert {agent.name: agent.unread for agent in shown.agents} == {"ann": 2, "bob": 0}
        with pytest.raises(Conflict, match="ann@team is already stopped"):
            await team.client.workflows.stop_agent(parse("ann@team"))
        await team.client.workflows.start_agent(parse("ann@team"))
        await wait_until(lambda: ("ann", "I am back") in read_messages(team))
        with pytest.raises(Conflict, match="is not stopped"):
            await team.client.workflows.start_agent(parse("ann@team"))
        with pytest.raises(UsageError, match="is a workflow, not an agent"):
            await team.client.workflows.stop_agent(parse("@team"))

    team.run_in_hall(work)


def test_a_failed_agent_is_retried_with_its_unhandled_messages(team: Team) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[[{"expect": "never", "say": "x"}]] * 3 + [[send("now it works"), stop()]])

    async def work(team: Team) -> None:
        began = await start_workflow(team)
        await wait_until(lambda: team.agents(began.run)["ann"].status == "failed")
        await wait_for_status(team, "idle")
        await team.client.workflows.start_agent(parse("ann@team"))
        await wait_until(lambda: ("ann", "now it works") in read_messages(team))

    team.run_in_hall(work)


def test_invalid_targets_are_refused_by_every_call(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[stop()]])

    async def work(team: Team) -> None:
        await start_workflow(team)
        for odd in (
            Target("a\n", "team"),
            Target("\x1b[2J", "team"),
            Target("", "team"),
            Target(None, ""),
            Target(None, "team", "x" * 1_000_000),
            Target(None, "../team"),
        ):
            for verb in (
                team.client.workflows.get(odd),
                team.client.rooms.send(odd, "x"),
                team.client.workflows.stop_agent(odd),
                team.client.workflows.start_agent(odd),
                team.client.rooms.documents(odd),
                team.client.rooms.read_document(odd),
                team.client.rooms.write_document(odd, "x"),
                team.client.rooms.append_document(odd, "x"),
                team.client.rooms.proposals(odd),
                team.client.workflows.schedules(odd),
                team.client.workflows.set_schedule(odd, "5m"),
                team.client.workflows.clear_schedule(odd),
            ):
                with pytest.raises(UsageError) as caught:
                    await verb
                assert len(caught.value.message) < 300

    team.run_in_hall(work)


def test_a_stopped_workflow_refuses_calls_and_names_the_command_to_start_it(team: Team) -> None:
    team.write_workflow()
    team.write_script(ann=[[{"sleep": 30, "say": "never"}]])

    async def work(team: Team) -> None:
        began = await start_workflow(team, tag="pr-1")
        await wait_until(lambda: team.agents(began.run)["ann"].status == "running")
        ended = await team.client.runs.stop(began.run)
        assert ended[0] == began.run
        assert len(ended) == 2
        shown = await team.client.workflows.get(parse("@team:pr-1"))
        assert shown.status == "stopped"
        assert {agent.status for agent in shown.agents} == {"stopped"}
        assert not team.hall.is_busy()
        for verb in (
            team.client.rooms.send(parse("ann@team:pr-1"), "x"),
            team.client.workflows.stop_agent(parse("ann@team:pr-1")),
            team.client.workflows.set_schedule(parse("ann@team:pr-1"), "5m"),
        ):
            with pytest.raises(Conflict, match=r"@team:pr-1 has ended \(stopped\)") as caught:
                await verb
            assert "--tag pr-1" in str(caught.value.hint)
        with pytest.raises(Conflict, match="cannot stop"):
            await team.client.runs.stop(began.run)

    team.run_in_hall(work)


@pytest.mark.req("AW-15")
@pytest.mark.parametrize("how", ["drained", "killed"])
def test_a_workflow_resumes_in_the_next_hall_with_its_stored_file(team: Team, how: str) -> None:
    team.write_workflow()
    team.write_script(ann=[[send("first"), {"sleep": 0.2, "say": "x"}], [send("second"), stop()]])

    async def first(team: Team) -> str:
        began = await start_workflow(team)
        await wait_until(lambda: ("ann", "first") in read_messages(team))
        if how == "drained":
            await team.hall.runs.pause_all("shutdown")
        else:
            await wait_for_status(team, "idle")
        return began.run

    began = team.run_in_hall(first)
    if how == "killed":
        _mark_as_killed(team, began)
    team.write_workflow(agents="carl")  # the workflow uses its stored file

    async def second(team: Team) -> None:
        await recover(team)
        await wait_for_status(team, "idle")
        sent = await team.client.rooms.send(parse("ann@team"), "go on")
        assert sent.run == began
        await wait_until(lambda: ("ann", "second") in read_messages(team))
        assert [text for _, text in read_messages(team)].count("first") == 1

    team.run_in_hall(second)


def _mark_as_killed(team: Team, run: str) -> None:
    """Change the database as if the hall had been killed."""
    with sqlite3.connect(team.home.database) as connection:
        connection.execute("UPDATE runs SET status='running', owner='b-gone' WHERE id=?", [run])
        connection.execute("UPDATE workflows SET status='idle', ended_at=NULL WHERE id=?", [run])
        connection.execute(
            "UPDATE runs SET crashes=7 WHERE id=?", [run]
        )  # an idle workflow is resumed after any number of crashes
    connection.close()


def test_of_parallel_starts_only_one_succeeds(team: Team) -> None:
    team.write_workflow()
    team.write_script(ann=[[stop()]], repeat=True)

    async def work(team: Team) -> None:
        results = await asyncio.gather(*(start_workflow(team) for _ in range(4)), return_exceptions=True)
        refused = [one for one in results if isinstance(one, Conflict)]
        assert len(refused) == 3
        assert all("guild stop r-" in str(one.hint) for one in refused)

    team.run_in_hall(work)


@pytest.mark.req("AW-23")
def test_two_tags_share_nothing(team: Team) -> None:
    team.write_workflow()
    write = call("document_write", file="a.md", content="mine")
    team.write_script(ann=[[write, send("done"), stop()], [stop()]])

    async def work(team: Team) -> None:
        one, two = await asyncio.gather(start_workflow(team, tag="one"), start_workflow(team, tag="two"))
        for tag in ("one", "two"):
            await wait_until(lambda tag=tag: ("ann", "done") in read_messages(team, tag))
            await wait_for_status(team, "idle", f"@team:{tag}")
        assert read_messages(team, "one") == read_messages(team, "two")
        await team.client.rooms.send(parse("ann@team:one"), "only one")
        await team.client.rooms.append_document(parse("@team:one"), "more", file="a.md")
        await wait_for_status(team, "idle", "@team:one")
        assert len(read_messages(team, "one")) == len(read_messages(team, "two")) + 1
        contents = [
            (await team.client.rooms.read_document(parse(f"@team:{tag}"), file="a.md")).content
            for tag in ("one", "two")
        ]
        assert contents == ["mine\nmore", "mine"]
        await team.client.runs.stop(one.run)
        assert (await team.client.workflows.get(parse("@team:two"))).status == "idle"
        assert one.run != two.run

    team.run_in_hall(work)


def test_generations_share_a_room_unless_they_start_fresh(team: Team) -> None:
    team.write_workflow()
    write = call("document_write", file="a.md", content="first")
    team.write_script(ann=[[write, send("one"), stop()]], repeat=True)

    async def work(team: Team) -> None:
        first = await run_workflow(team)
        team.write_script(ann=[[stop()]])
        second = await run_workflow(team)
        assert [text for _, text in read_messages(team)] == ["@ann begin", "one", "@ann begin"]
        assert [message.id for message in await team.client.rooms.messages(first)] == [1, 2]
        assert [message.id for message in await team.client.rooms.messages(second)] == [3]
        assert team.hall.history.get(first).output == "one"
        assert team.hall.history.get(second).output == ""  # the second generation sent no message
        assert (await team.client.workflows.get(parse("@team"))).generation == 2
        third = await run_workflow(team, fresh=True)
        assert [text for _, text in read_messages(team)] == ["@ann begin"]
        assert (await team.client.workflows.get(parse("@team"))).generation == 3
        assert await team.client.rooms.documents(parse("@team")) == []
        aside = team.project / ".workflow/team/main/documents~1/a.md"
        assert aside.read_text() == "first"  # nothing is deleted
        assert [message.content for message in await team.client.rooms.messages(first)] == ["@ann begin", "one"]
        assert len({first, second, third}) == 3

    team.run_in_hall(work)


def test_a_folder_that_is_a_link_is_not_moved(team: Team) -> None:
    team.write_workflow()
    team.write_script(ann=[[stop()]], repeat=True)
    other = team.project / "other"

    async def work(team: Team) -> None:
        await run_workflow(team)
        other.mkdir()
        place = team.project / ".workflow/team/main/documents"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(other)
        with pytest.raises(Refused, match="is a symbolic link"):
            await run_workflow(team, fresh=True)
        assert other.is_dir()

    team.run_in_hall(work)


def test_a_workflow_of_the_same_name_in_another_folder_of_the_project_is_refused(team: Team) -> None:
    team.write_workflow()
    (team.project / "guildhall.yaml").write_text("")
    team.write_script(ann=[[stop()]], repeat=True)

    async def work(team: Team) -> None:
        await run_workflow(team)
        other = team.project / "sub"
        other.mkdir()
        for name in ("team.yaml", "script.yaml"):
            (other / name).write_text((team.project / name).read_text())
        request = RunRequest(worker="x", input="")
        start = Start(file="sub/team.yaml", params={})
        with pytest.raises(Conflict, match="was started from another file") as caught:
            await team.follow(team.client.workflows.run(start, request, team.frame()))
        assert "--fresh" in str(caught.value.hint)

    team.run_in_hall(work)


def test_a_failed_generation_is_not_resumed_after_a_later_one(team: Team) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[])

    async def work(team: Team) -> None:
        first = await run_workflow(team)
        assert team.hall.history.get(first).status == "failed"
        team.write_script(ann=[[send("hello"), {"sleep": 30, "say": "late"}]])
        second = await start_workflow(team)
        await wait_until(lambda: ("ann", "hello") in read_messages(team))
        with pytest.raises(Conflict, match=f"started again as {second.run}"):
            await team.resume(first)
        assert team.hall.history.get(first).status == "failed"
        await team.client.runs.stop(second.run)
        with pytest.raises(Conflict, match="stopped"):
            await team.resume(first)

    team.run_in_hall(work)


@pytest.mark.req("AW-14")
def test_a_message_sent_while_a_workflow_ends_is_refused_and_not_lost(team: Team) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[[stop()]])
    is_blocked, may_continue = threading.Event(), threading.Event()

    def block_writer(_: object) -> None:
        is_blocked.set()
        may_continue.wait(10)

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(lambda: len(team.events_of("run_ended")) == 1)
        team.hall.store.submit(block_writer)  # the end of the workflow waits for the database
        await asyncio.to_thread(is_blocked.wait, 10)
        await asyncio.sleep(0.1)
        sending = asyncio.create_task(team.client.rooms.send(parse("ann@team"), "one more thing"))
        await asyncio.sleep(0.05)
        may_continue.set()
        with pytest.raises(Conflict, match=r"@team has ended \(done\)"):
            await sending
        assert (await task).status == "completed"
        assert read_messages(team) == [("system", "@ann begin")]

    team.run_in_hall(work)
