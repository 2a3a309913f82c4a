"""Workflows that were started: they stay until they are stopped, whatever becomes of the hall that has them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.hall.composition.recovery import Recovery
from guildhall.runs.model import RunRequest
from guildhall.workflow.target import Start, Target, parse
from tests.workflow.teams import call, say, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.workflow.target import WorkflowSummary
    from tests.workflow.teams import Team


async def start(team: Team, *, tag: str = "main", **more: Any) -> WorkflowSummary:
    asked = Start(file="team.yaml", tag=tag, params={}, mode="start", **more)
    return await team.client.workflows.start(asked, RunRequest(worker="team.yaml", input=""), team.frame())


async def run(team: Team, *, tag: str = "main", **more: Any) -> str:
    asked = Start(file="team.yaml", tag=tag, params={}, **more)
    stream = team.client.workflows.run(asked, RunRequest(worker="team.yaml", input=""), team.frame())
    return (await team.followed(stream)).id


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it has not come to that within 10 s")


async def until_stands(team: Team, status: str, target: str = "@team") -> WorkflowSummary:
    for _ in range(1_000):
        if (shown := await team.client.workflows.get(parse(target))).status == status:
            return shown
        await asyncio.sleep(0.01)
    raise AssertionError(f"it is not {status} within 10 s")


async def recovered(team: Team) -> None:
    await Recovery(team.hall).resume_runs()


def said(team: Team, tag: str = "main") -> list[tuple[str, str]]:
    room = team.hall.main.rooms.find("team", tag)
    return [(message.sender, message.content) for message in room.list_messages()]


@pytest.mark.req("AW-15", "AW-17")
def test_a_started_workflow_is_idle_until_a_message_arrives(team: Team) -> None:
    team.file()
    team.script(ann=[[send("@bob your turn"), say()], [send("again"), say()]], bob=[[send("thanks"), say()]])

    async def work(team: Team) -> None:
        began = await start(team)
        assert began.mode == "start"
        await until_stands(team, "idle")
        assert said(team)[-1] == ("bob", "thanks")
        assert team.hall.is_busy()  # nothing runs, and still the process stays
        sent = await team.client.rooms.send(parse("ann@team"), "are you there?")
        assert sent.posted.reached == ("ann",)
        await until(lambda: ("ann", "again") in said(team))
        shown = await until_stands(team, "idle")
        assert shown.run == began.run
        assert [(agent.name, agent.status, agent.unread, agent.runs) for agent in shown.agents] == [
            ("ann", "idle", 0, 2),
            ("bob", "idle", 0, 1),
        ]

    team.inside(work)


@pytest.mark.req("AW-16", "AW-24")
def test_whom_a_person_reaches(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[say()]], bob=[[say()]], repeat=True)

    async def work(team: Team) -> None:
        await start(team)
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

    team.inside(work)


@pytest.mark.req("AW-16")
def test_one_agent_is_stopped_and_the_others_go_on(team: Team) -> None:
    team.file(kickoff="@ann @bob begin")
    slow = {"sleep": 30, "say": "never"}
    team.script(ann=[[slow], [send("I am back"), say()]], bob=[[say()], [send("still here"), say()]])

    async def work(team: Team) -> None:
        began = await start(team)
        await until(lambda: team.agents(began.run)["ann"].status == "running")
        at = team.agents(began.run)["ann"].run
        ended = await team.client.workflows.stop_agent(parse("ann@team"))
        assert ended == [at]
        assert team.hall.history.get(at).status == "cancelled"
        assert team.agents(began.run)["ann"].status == "stopped"
        sent = await team.client.rooms.send(parse("@team"), "who is there?")
        assert sent.stopped == ("ann",)
        await until(lambda: ("bob", "still here") in said(team))
        shown = await until_stands(team, "idle")
        assert {agent.name: agent.unread for agent in shown.agents} == {"ann": 2, "bob": 0}
        with pytest.raises(Conflict, match="ann@team is already stopped"):
            await team.client.workflows.stop_agent(parse("ann@team"))
        await team.client.workflows.start_agent(parse("ann@team"))
        await until(lambda: ("ann", "I am back") in said(team))
        with pytest.raises(Conflict, match="is already running"):
            await team.client.workflows.start_agent(parse("ann@team"))
        with pytest.raises(UsageError, match="missing agent"):
            await team.client.workflows.stop_agent(parse("@team"))

    team.inside(work)


def test_an_agent_that_failed_is_tried_again_with_its_dead_letters(team: Team) -> None:
    team.file(agents="ann")
    team.script(ann=[[{"expect": "never", "say": "x"}]] * 3 + [[send("now it works"), say()]])

    async def work(team: Team) -> None:
        began = await start(team)
        await until(lambda: team.agents(began.run)["ann"].status == "failed")
        await until_stands(team, "idle")
        await team.client.workflows.start_agent(parse("ann@team"))
        await until(lambda: ("ann", "now it works") in said(team))

    team.inside(work)


def test_targets_from_elsewhere_are_held_to_the_form(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[say()]])

    async def work(team: Team) -> None:
        await start(team)
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

    team.inside(work)


def test_a_stopped_workflow_is_over_and_says_how_to_begin_again(team: Team) -> None:
    team.file()
    team.script(ann=[[{"sleep": 30, "say": "never"}]])

    async def work(team: Team) -> None:
        began = await start(team, tag="pr-1")
        await until(lambda: team.agents(began.run)["ann"].status == "running")
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
        with pytest.raises(Conflict, match="nothing to stop"):
            await team.client.runs.stop(began.run)

    team.inside(work)


@pytest.mark.req("AW-15")
@pytest.mark.parametrize("how", ["drained", "killed"])
def test_it_goes_on_in_the_next_hall_with_the_file_of_then(team: Team, how: str) -> None:
    team.file()
    team.script(ann=[[send("first"), {"sleep": 0.2, "say": "x"}], [send("second"), say()]])

    async def first(team: Team) -> str:
        began = await start(team)
        await until(lambda: ("ann", "first") in said(team))
        if how == "drained":
            await team.hall.runs.pause_all("shutdown")
        else:
            await until_stands(team, "idle")
        return began.run

    began = team.inside(first)
    if how == "killed":
        _as_if_killed(team, began)
    team.file(agents="carl")  # the file has changed: it is the stored one that counts

    async def second(team: Team) -> None:
        await recovered(team)
        await until_stands(team, "idle")
        sent = await team.client.rooms.send(parse("ann@team"), "go on")
        assert sent.run == began
        await until(lambda: ("ann", "second") in said(team))
        assert [text for _, text in said(team)].count("first") == 1

    team.inside(second)


def _as_if_killed(team: Team, run: str) -> None:
    """What the database of a hall says that had no time to say anything."""
    with sqlite3.connect(team.home.database) as connection:
        connection.execute("UPDATE runs SET status='running', owner='b-gone' WHERE id=?", [run])
        connection.execute("UPDATE workflows SET status='idle', ended_at=NULL WHERE id=?", [run])
        connection.execute("UPDATE runs SET crashes=7 WHERE id=?", [run])  # an idle one is never given up
    connection.close()


def test_two_starts_at_once_are_one_start_and_one_refusal(team: Team) -> None:
    team.file()
    team.script(ann=[[say()]], repeat=True)

    async def work(team: Team) -> None:
        came = await asyncio.gather(*(start(team) for _ in range(4)), return_exceptions=True)
        refused = [one for one in came if isinstance(one, Conflict)]
        assert len(refused) == 3
        assert all("guild stop @team" in str(one.hint) for one in refused)

    team.inside(work)


@pytest.mark.req("AW-23")
def test_two_tags_share_nothing(team: Team) -> None:
    team.file()
    write = call("document_write", file="a.md", content="mine")
    team.script(ann=[[write, send("done"), say()], [say()]])

    async def work(team: Team) -> None:
        one, two = await asyncio.gather(start(team, tag="one"), start(team, tag="two"))
        for tag in ("one", "two"):
            await until(lambda tag=tag: ("ann", "done") in said(team, tag))
            await until_stands(team, "idle", f"@team:{tag}")
        assert said(team, "one") == said(team, "two")
        await team.client.rooms.send(parse("ann@team:one"), "only one")
        await team.client.rooms.append_document(parse("@team:one"), "more", file="a.md")
        await until_stands(team, "idle", "@team:one")
        assert len(said(team, "one")) == len(said(team, "two")) + 1
        contents = [
            (await team.client.rooms.read_document(parse(f"@team:{tag}"), file="a.md")).content
            for tag in ("one", "two")
        ]
        assert contents == ["mine\nmore", "mine"]
        await team.client.runs.stop(one.run)
        assert (await team.client.workflows.get(parse("@team:two"))).status == "idle"
        assert one.run != two.run

    team.inside(work)


def test_generations_share_a_room_and_a_fresh_one_does_not(team: Team) -> None:
    team.file()
    write = call("document_write", file="a.md", content="first")
    team.script(ann=[[write, send("one"), say()]], repeat=True)

    async def work(team: Team) -> None:
        first = await run(team)
        team.script(ann=[[say("nothing")]])
        second = await run(team)
        assert [text for _, text in said(team)] == ["@ann begin", "one", "@ann begin"]
        assert [message.id for message in await team.client.rooms.messages(first)] == [1, 2]
        assert [message.id for message in await team.client.rooms.messages(second)] == [3]
        assert team.hall.history.get(first).output == "one"
        assert team.hall.history.get(second).output == ""  # nothing was said this time
        assert (await team.client.workflows.get(parse("@team"))).generation == 2
        third = await run(team, fresh=True)
        assert [text for _, text in said(team)] == ["@ann begin"]
        assert (await team.client.workflows.get(parse("@team"))).generation == 3
        assert await team.client.rooms.documents(parse("@team")) == []
        aside = team.project / ".workflow/team/main/documents~1/a.md"
        assert aside.read_text() == "first"  # nothing is deleted
        assert [message.content for message in await team.client.rooms.messages(first)] == ["@ann begin", "one"]
        assert len({first, second, third}) == 3

    team.inside(work)


def test_a_folder_that_is_a_link_is_not_moved(team: Team) -> None:
    team.file()
    team.script(ann=[[say()]], repeat=True)
    other = team.project / "other"

    async def work(team: Team) -> None:
        await run(team)
        other.mkdir()
        place = team.project / ".workflow/team/main/documents"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(other)
        with pytest.raises(Refused, match="is a symbolic link"):
            await run(team, fresh=True)
        assert other.is_dir()

    team.inside(work)


def test_a_workflow_of_the_same_name_elsewhere_is_not_taken_for_it(team: Team) -> None:
    team.file()
    team.script(ann=[[say()]], repeat=True)

    async def work(team: Team) -> None:
        await run(team)
        other = team.project / "sub"
        other.mkdir()
        for name in ("team.yaml", "script.yaml"):
            (other / name).write_text((team.project / name).read_text())
        asked = RunRequest(worker="x", input="")
        start = Start(file="sub/team.yaml", params={})
        with pytest.raises(Conflict, match="belongs to") as caught:
            await team.followed(team.client.workflows.run(start, asked, team.frame()))
        assert "--fresh" in str(caught.value.hint)

    team.inside(work)


def test_a_generation_that_failed_is_not_resumed_beside_a_later_one(team: Team) -> None:
    team.file(agents="ann")
    team.script(ann=[])

    async def work(team: Team) -> None:
        first = await run(team)
        assert team.hall.history.get(first).status == "failed"
        team.script(ann=[[send("hello"), {"sleep": 30, "say": "late"}]])
        second = await start(team)
        await until(lambda: ("ann", "hello") in said(team))
        with pytest.raises(Conflict, match=f"started again as {second.run}"):
            await team.resume(first)
        assert team.hall.history.get(first).status == "failed"
        await team.client.runs.stop(second.run)
        with pytest.raises(Conflict, match="stopped"):
            await team.resume(first)

    team.inside(work)


@pytest.mark.req("AW-14")
def test_what_a_person_says_as_it_ends_is_read_or_refused_and_never_lost(team: Team) -> None:
    team.file(agents="ann")
    team.script(ann=[[say()]])
    held, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        go_on.wait(10)

    async def work(team: Team) -> None:
        task = team.begun()
        await team.until(lambda: len(team.heard("run_ended")) == 1)
        team.hall.store.submit(hold)  # its end waits to be put on record
        await asyncio.to_thread(held.wait, 10)
        await asyncio.sleep(0.1)
        sending = asyncio.create_task(team.client.rooms.send(parse("ann@team"), "one more thing"))
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(Conflict, match=r"@team has ended \(done\)"):
            await sending
        assert (await task).status == "completed"
        assert said(team) == [("system", "@ann begin")]

    team.inside(work)
