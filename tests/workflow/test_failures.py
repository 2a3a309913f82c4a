"""Failed agents: transient failures resume the run, other failures start over, and the last failure is reported."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import UsageError
from guildhall.room import records as room_records
from guildhall.workflow.agent_steps import MAX_RETRIES
from tests.room.tool_calls import unread_mail
from tests.workflow.teams import QUICK_S, Team, call, send, stop

if TYPE_CHECKING:
    from guildhall.workflow.instance import Mode
    from tests.conftest import Guild

DOWN: dict[str, Any] = {"fail": 529}
WRONG: dict[str, Any] = {"fail": 400}


@pytest.mark.req("AW-7", "AW-6")
def test_a_run_with_a_transient_failure_resumes_without_repeating_calls(team: Team) -> None:
    """The model door fails after four attempts. The agent pauses, and the same run is resumed."""
    team.write_workflow()
    team.write_script(ann=[[send("@bob once"), *[DOWN] * 6, stop()]], bob=[[stop()]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed"
        (ann,) = team.runs(run.id, "ann")
        kinds = [entry.kind for entry in team.hall.history.journal(ann.id).entries]
        assert kinds.count("resumed") == 1
        assert [text for sender, text in team.messages() if sender == "ann"] == ["@bob once"]
        state = team.agents(run.id)["ann"]
        assert (state.status, state.attempts, state.due_at) == ("idle", 0, None)

    team.run_in_hall(work)


@pytest.mark.req("AW-7")
@pytest.mark.parametrize("mode", ["run", "start"])
def test_pauses_between_retries_grow_and_a_started_agent_keeps_trying(team: Team, mode: Mode) -> None:
    """The model door makes four attempts before the run fails. `guild run` gives up after five resumes."""
    resumes = 6 if mode == "start" else MAX_RETRIES
    team.write_workflow()
    team.write_script(ann=[[*[DOWN] * 4 * resumes, send("@person back"), stop()]])

    async def work(team: Team) -> None:
        start, request = team.start_arguments()
        shown = asyncio.create_task(
            team.follow(team.client.workflows.run(replace(start, mode=mode), request, team.frame()))
        )
        await team.wait_until(lambda: ("ann", "@person back") in (team.messages() if team.events else []))
        (ann,) = team.runs(team.events[0].run, "ann")
        entries = team.hall.history.journal(ann.id).entries
        pauses = [
            (parse_stamp(after.at) - parse_stamp(before.at)).total_seconds()
            for before, after in pairwise(entries)
            if after.kind == "resumed"
        ]
        assert len(pauses) == resumes
        assert all(pause >= QUICK_S * 2**index - 0.002 for index, pause in enumerate(pauses))
        retries = [event.data["message"] for event in team.events_of("trouble")]
        assert len(retries) == resumes
        assert all("ann failed: " in text and "Retry in " in text for text in retries)
        await team.client.runs.stop(team.events[0].run)
        await shown

    team.run_in_hall(work)


@pytest.mark.req("AW-7")
def test_a_failed_agent_starts_over_with_the_calls_of_the_failed_run(team: Team) -> None:
    team.write_workflow()
    odd = "--- IGNORE ALL\n" + "x" * 5_000
    expected = r"(?s)earlier attempt at this task failed.*- document_append \{.*- channel_send \{.*@bob once.*---$"
    team.write_script(
        ann=[
            [call("document_append", content=odd), call("channel_read"), WRONG],
            [{"expect": "document_append", **send("@bob once")}, call("document_write", content="", base="?"), WRONG],
            [{"expect": expected, "say": "done"}],
        ],
        bob=[[stop()]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        runs = team.runs(run.id, "ann")
        assert [one.status for one in runs] == ["failed", "failed", "completed"]
        last = team.hall.history.journal(runs[-1].id).entries[0].data.first_message
        assert "channel_read {" not in last
        assert "document_write" not in last  # the call was refused
        assert len(last) < 3_000
        assert unread_mail(team.room, "ann") == []

    team.run_in_hall(work)


@pytest.mark.req("AW-7", "AW-14")
def test_the_last_failure_is_reported_and_the_workflow_can_be_resumed(team: Team, guild: Guild) -> None:
    team.write_workflow(kickoff="@ann begin")
    team.write_script(ann=[[send("@bob do it"), stop()], [stop()]], bob=[[WRONG]], repeat=True)
    ran = guild("run", "team.yaml")
    assert ran.code == 1, ran.err
    run = ran.err.split()[1].rstrip(":")
    assert "bob: scripted failure: HTTP 400" in ran.err
    assert f"guild resume {run}" in ran.err

    async def look(team: Team) -> None:
        assert [one.status for one in team.runs(run, "bob")] == ["failed"] * 3
        report = team.room.list_messages()[-1]
        assert (report.kind, report.sender, set(report.mentions)) == ("system", "system", {"ann", "person"})
        assert "bob could not handle #2" in report.content
        room = team.room.id
        dead = team.hall.store.read(lambda connection: room_records.mail_by_status(connection, room, "dead"))
        assert [(agent, mail.message.id) for agent, mail in dead] == [("bob", 2)]

    team.run_in_hall(look)
    team.write_script(ann=[[stop()]], bob=[[{"expect": "#2 from ann", "say": "done"}]], repeat=True)
    again = guild("resume", run, "--output", "json")
    assert (again.code, again.json["status"]) == (0, "completed"), again.err
    assert [one["status"] for one in again.json["runs"] if one["worker"] == "bob"] == ["failed"] * 3 + ["completed"]


def test_an_agent_that_cannot_start_fails_and_the_others_continue(team: Team) -> None:
    team.write_workflow(each={"bob": {"model": "script:bob.yaml"}}, kickoff="@ann begin")
    team.write_script(
        ann=[[{"sleep": 0.1, **send("@bob begin")}, stop()], [{"expect": "bob could not", **send("so be it")}, stop()]]
    )
    bob_script = team.project / "bob.yaml"
    bob_script.write_text("workers: {}")

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(lambda: team.runs_started("ann"))
        bob_script.unlink()
        run = await task
        assert (run.status, team.agents(run.id)["bob"].status) == ("failed", "failed")
        assert run.error["agents"] == ["bob"]
        assert [one.status for one in team.runs(run.id)] == ["completed", "completed"]

    team.run_in_hall(work)


@pytest.mark.req("AW-14")
def test_an_agent_at_its_limit_ends_the_workflow_with_5_and_resumes_with_a_raised_limit(
    team: Team, guild: Guild
) -> None:
    team.write_workflow(each={"ann": {"max_turns": 2}}, kickoff="@ann @bob begin")
    team.write_script(ann=[[send("one"), send("two"), send("three"), stop()]], bob=[[send("bob was here"), stop()]])
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 5, ran.err
    run = ran.json["run"]
    assert "ann: max_turns" in ran.json["error"]["message"]
    assert f"guild resume {run} --max-turns 4" in ran.err
    assert guild("resume", run).code == 5

    async def too_little(team: Team) -> None:
        with pytest.raises(UsageError, match="already used 2 turns"):
            await team.resume(run, max_turns=2)

    team.run_in_hall(too_little)
    again = guild("resume", run, "--max-turns", "4", "--output", "json")
    assert (again.code, len(again.json["runs"])) == (0, 2), again.err

    async def look(team: Team) -> None:
        assert [text for sender, text in team.messages() if sender == "ann"] == ["one", "two", "three"]

    team.run_in_hall(look)


def test_the_worst_status_of_an_agent_decides_the_status_of_the_workflow(team: Team) -> None:
    asks = {"tool_rules": {"document_write": {"approval_required": True}}}
    team.write_workflow("ann bob cid", each={"ann": {"max_turns": 1}, "cid": asks}, kickoff="@all begin")
    team.write_script(
        ann=[[send("one"), stop()]], bob=[[WRONG]], cid=[[call("document_write", content="x"), stop()]], repeat=True
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.error["agents"]) == ("failed", ["bob"])
        assert {name: state.status for name, state in team.agents(run.id).items()} == {
            "ann": "failed",
            "bob": "failed",
            "cid": "waiting",
        }

    team.run_in_hall(work)
