"""What a team keeps closed until it has voted, votes that end in time, and the three that are dangerous together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from tests.conftest import Guild

WRITE = call("Write", file_path="a.txt", content="x")
APPROVAL: dict[str, Any] = {"type": "approval", "title": "Write it", "guards": ["Write", "plan.md"]}


def vote(choice: str) -> dict[str, Any]:
    return call("proposal_vote", proposal="p-1", choice=choice)


@pytest.mark.req("AW-10")
def test_an_approval_closes_a_tool_and_a_document_for_all_until_it_passes(team: Team, guild: Guild) -> None:
    (team.project / "w").mkdir()
    tools = {"tools": ["Write"], "workdir": "w"}
    team.file(each={"ann": tools, "bob": tools})
    closed = {"expect": "closed until p-1 'Write it' passes"}
    plan = call("document_write", file="plan.md", content="x")
    team.script(
        ann=[
            [WRITE, call("proposal_create", **APPROVAL, quorum=1), WRITE, {**closed, **plan}, {**closed, **say()}],
            [{"expect": "tried", **vote("approve")}, call("Write", file_path="b.txt", content="y"), plan, say()],
            [say()],
        ],
        bob=[[WRITE, {**closed, **send("@ann I have tried")}, say()], [say()]],
        repeat=True,
    )
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (team.project / "w").iterdir()) == ["a.txt", "b.txt"]
    assert (team.project / ".workflow/team/main/documents/plan.md").read_text() == "x"
    bob = next(one["run"] for one in ran.json["runs"] if one["worker"] == "bob")
    entries = [json.loads(line) for line in guild("log", bob, "--json").out.splitlines()]
    refused = [entry for entry in entries if entry["kind"] == "tool_refused"]
    assert [(entry["data"]["tool"], entry["data"]["rule"]) for entry in refused] == [("Write", "closed")]


def test_what_was_refused_stays_closed(team: Team) -> None:
    (team.project / "w").mkdir()
    team.file(each={"ann": {"tools": ["Write"], "workdir": "w"}})
    create = call("proposal_create", **APPROVAL, resolution="unanimous")
    team.script(
        ann=[[create, vote("approve"), say()], [WRITE, {"expect": "closed until p-1", "say": "a pity"}]],
        bob=[[vote("reject"), say()]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        assert team.room.list_proposals()[0].status == "rejected"
        assert not (team.project / "w/a.txt").exists()

    team.inside(work)


@pytest.mark.req("AW-10")
def test_a_vote_ends_when_its_time_is_up_also_while_somebody_works(team: Team) -> None:
    team.file("ann bob cid")
    create = call("proposal_create", type="decision", title="Tabs", options=["yes", "no"], timeout=0.2)
    team.script(
        ann=[[create, send("@cid work"), say()], [{"expect": r"\[EXPIRED\] p-1", "say": "so be it"}]],
        bob=[[say("no vote")]],
        cid=[[say()], [{"sleep": 3, "say": "slow"}]],
    )

    async def work(team: Team) -> None:
        task = team.begun()
        await team.until(lambda: [one for one in team.heard("run_ended") if one.root == one.run] or _expired(team))
        assert team.agents(team.events[0].run)["cid"].status in ("idle", "running")
        await team.until(lambda: len(team.runs_started("ann")) == 2)
        run = team.events[0].run
        assert task.done() is False or team.hall.history.get(run).status == "completed"
        await team.client.runs.stop(run)
        await task
        assert team.room.list_proposals()[0].status == "expired"

    team.inside(work)


def _expired(team: Team) -> bool:
    return any(event.data["proposal"]["status"] == "expired" for event in team.heard("proposal"))


@pytest.mark.req("AW-10", "AW-14")
def test_open_votes_are_settled_when_nobody_can_move(team: Team) -> None:
    team.file("ann bob cid")
    create = call("proposal_create", type="decision", title="Tabs", options=["yes", "no"])
    team.script(
        ann=[[create, vote("no"), say()], [{"expect": "RESOLVED(?s:.*)no", "say": "ok"}]],
        bob=[[say("no vote")]],
        cid=[[say("no vote")]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed"
        proposal = team.room.list_proposals()[0]
        assert (proposal.status, proposal.result) == ("resolved", "no")
        assert "Tabs" in (team.project / ".workflow/team/main/documents/decisions.md").read_text()

    team.inside(work)


# SECURITY 8 over a team


@pytest.mark.parametrize("context", [{"documentOwner": "none"}, False])
def test_one_reads_and_another_can_reach_out_so_that_one_is_asked(team: Team, guild: Guild, context: Any) -> None:
    team.file(each={"ann": {"tools": ["Read"]}, "bob": {"tools": ["WebFetch"]}}, context=context, kickoff="@bob begin")
    team.script(bob=[[call("WebFetch", url="http://127.0.0.1:9/"), say()]])
    shared = context is not False
    said = guild("plan", "team.yaml")
    assert said.code == 0, said.err
    assert ("before each call of WebFetch" in said.out) == shared
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == (4 if shared else 0), ran.err
    assert [ask["title"] for ask in ran.json["asks"]] == (["bob wants to call WebFetch"] if shared else [])
