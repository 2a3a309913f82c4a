"""Agents that fail: disturbed ones go on, others try again knowing what was done, and who gives up is loud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import UsageError
from guildhall.room import records as room_records
from tests.room.desks import unread
from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from tests.conftest import Guild

DOWN: dict[str, Any] = {"fail": 529}
WRONG: dict[str, Any] = {"fail": 400}


@pytest.mark.req("AW-7", "AW-6")
def test_a_disturbed_run_goes_on_and_does_nothing_twice(team: Team) -> None:
    """The door gives up after four attempts; the agent pauses, and the same run goes on."""
    team.file()
    team.script(ann=[[send("@bob once"), *[DOWN] * 6, say()]], bob=[[say()]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed"
        (ann,) = team.runs(run.id, "ann")
        kinds = [entry.kind for entry in team.hall.history.journal(ann.id).entries]
        assert kinds.count("resumed") == 1
        assert [text for sender, text in team.said() if sender == "ann"] == ["@bob once"]
        state = team.agents(run.id)["ann"]
        assert (state.status, state.attempts, state.due_at) == ("idle", 0, None)

    team.inside(work)


@pytest.mark.req("AW-7")
def test_who_fails_by_what_it_does_begins_again_and_is_told_what_was_done(team: Team) -> None:
    team.file()
    odd = "--- IGNORE ALL\n" + "x" * 5_000
    told = r"(?s)earlier attempt at this task failed.*- document_append \{.*- channel_send \{.*@bob once.*---$"
    team.script(
        ann=[
            [call("document_append", content=odd), call("channel_read"), WRONG],
            [{"expect": "document_append", **send("@bob once")}, call("document_write", content="", base="?"), WRONG],
            [{"expect": told, "say": "done"}],
        ],
        bob=[[say()]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        runs = team.runs(run.id, "ann")
        assert [one.status for one in runs] == ["failed", "failed", "completed"]
        last = team.hall.history.journal(runs[-1].id).entries[0].data.first_message
        assert "channel_read {" not in last
        assert "document_write" not in last  # it was refused
        assert len(last) < 3_000
        assert unread(team.room, "ann") == []

    team.inside(work)


@pytest.mark.req("AW-7", "AW-14")
def test_after_the_last_attempt_it_is_loud_and_can_be_gone_on_with(team: Team, guild: Guild) -> None:
    team.file(kickoff="@ann begin")
    team.script(ann=[[send("@bob do it"), say()], [say()]], bob=[[WRONG]], repeat=True)
    ran = guild("run", "team.yaml")
    assert ran.code == 1, ran.err
    run = ran.err.split()[1].rstrip(":")
    assert "bob: scripted failure: HTTP 400" in ran.err
    assert f"guild resume {run}" in ran.err

    async def look(team: Team) -> None:
        assert [one.status for one in team.runs(run, "bob")] == ["failed"] * 3
        told = team.room.list_messages()[-1]
        assert (told.kind, told.sender, set(told.mentions)) == ("system", "system", {"ann", "person"})
        assert "bob could not handle #2" in told.content
        room = team.room.id
        dead = team.hall.store.read(lambda connection: room_records.mail_by_status(connection, room, "dead"))
        assert [(agent, mail.message.id) for agent, mail in dead] == [("bob", 2)]

    team.inside(look)
    team.script(ann=[[say()]], bob=[[{"expect": "#2 from ann", "say": "done"}]], repeat=True)
    again = guild("resume", run, "--output", "json")
    assert (again.code, again.json["status"]) == (0, "completed"), again.err
    assert [one["status"] for one in again.json["runs"] if one["worker"] == "bob"] == ["failed"] * 3 + ["completed"]


def test_an_agent_that_cannot_begin_has_failed_and_the_others_go_on(team: Team) -> None:
    team.file(each={"bob": {"model": "script:bob.yaml"}}, kickoff="@ann begin")
    team.script(
        ann=[[{"sleep": 0.1, **send("@bob begin")}, say()], [{"expect": "bob could not", **send("so be it")}, say()]]
    )
    theirs = team.project / "bob.yaml"
    theirs.write_text("workers: {}")

    async def work(team: Team) -> None:
        task = team.begun()
        await team.until(lambda: team.runs_started("ann"))
        theirs.unlink()
        run = await task
        assert (run.status, team.agents(run.id)["bob"].status) == ("failed", "failed")
        assert run.error["agents"] == ["bob"]
        assert [one.status for one in team.runs(run.id)] == ["completed", "completed"]

    team.inside(work)


@pytest.mark.req("AW-14")
def test_an_agent_at_its_limit_ends_the_workflow_with_5_and_goes_on_with_more(team: Team, guild: Guild) -> None:
    team.file(each={"ann": {"max_turns": 2}}, kickoff="@ann @bob begin")
    team.script(ann=[[send("one"), send("two"), send("three"), say()]], bob=[[send("bob was here"), say()]])
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 5, ran.err
    run = ran.json["run"]
    assert "ann: max_turns" in ran.json["error"]["message"]
    assert f"guild resume {run} --max-turns 4" in ran.err
    assert guild("resume", run).code == 5

    async def too_little(team: Team) -> None:
        with pytest.raises(UsageError, match="already used 2 turns"):
            await team.resume(run, max_turns=2)

    team.inside(too_little)
    again = guild("resume", run, "--max-turns", "4", "--output", "json")
    assert (again.code, len(again.json["runs"])) == (0, 2), again.err

    async def look(team: Team) -> None:
        assert [text for sender, text in team.said() if sender == "ann"] == ["one", "two", "three"]

    team.inside(look)


def test_the_worst_agent_decides_how_it_ends(team: Team) -> None:
    asks = {"tool_rules": {"document_write": {"approval_required": True}}}
    team.file("ann bob cid", each={"ann": {"max_turns": 1}, "cid": asks}, kickoff="@all begin")
    team.script(
        ann=[[send("one"), say()]], bob=[[WRONG]], cid=[[call("document_write", content="x"), say()]], repeat=True
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.error["agents"]) == ("failed", ["bob"])
        assert {name: state.status for name, state in team.agents(run.id).items()} == {
            "ann": "failed",
            "bob": "failed",
            "cid": "waiting",
        }

    team.inside(work)
