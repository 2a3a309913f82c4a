"""Proposals that close tools and documents, votes that time out, and the exfiltration check of a team."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send, stop

if TYPE_CHECKING:
    from tests.conftest import Guild

WRITE = call("Write", file_path="a.txt", content="x")
APPROVAL: dict[str, Any] = {"type": "approval", "title": "Write it", "guards": ["Write", "plan.md"]}


def vote(choice: str) -> dict[str, Any]:
    return call("proposal_vote", proposal="p-1", choice=choice)


@pytest.mark.req("AW-10")
def test_a_proposal_closes_a_tool_and_a_document_for_all_until_it_passes(team: Team, guild: Guild) -> None:
    (team.project / "w").mkdir()
    tools = {"tools": ["Write"], "workdir": "w"}
    team.write_workflow(each={"ann": tools, "bob": tools})
    closed = {"expect": "closed until p-1 'Write it' passes"}
    plan = call("document_write", file="plan.md", content="x")
    team.write_script(
        ann=[
            [WRITE, call("proposal_create", **APPROVAL, quorum=1), WRITE, {**closed, **plan}, {**closed, **stop()}],
            [{"expect": "tried", **vote("approve")}, call("Write", file_path="b.txt", content="y"), plan, stop()],
            [stop()],
        ],
        bob=[[WRITE, {**closed, **send("@ann I have tried")}, stop()], [stop()]],
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


def test_a_tool_stays_closed_if_its_proposal_is_rejected(team: Team) -> None:
    (team.project / "w").mkdir()
    team.write_workflow(each={"ann": {"tools": ["Write"], "workdir": "w"}})
    create = call("proposal_create", **APPROVAL, resolution="unanimous")
    team.write_script(
        ann=[[create, vote("approve"), stop()], [WRITE, {"expect": "closed until p-1", "say": "a pity"}]],
        bob=[[vote("reject"), stop()]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        assert team.room.list_proposals()[0].status == "rejected"
        assert not (team.project / "w/a.txt").exists()

    team.run_in_hall(work)


@pytest.mark.req("AW-10")
def test_a_vote_times_out_also_while_an_agent_works(team: Team) -> None:
    team.write_workflow("ann bob cid")
    create = call("proposal_create", type="decision", title="Tabs", options=["yes", "no"], timeout=0.2)
    team.write_script(
        ann=[[create, send("@cid work"), stop()], [{"expect": r"\[EXPIRED\] p-1", "say": "so be it"}]],
        bob=[[say("no vote")]],
        cid=[[stop()], [{"sleep": 3, "say": "slow"}]],
    )

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(
            lambda: [one for one in team.events_of("run_ended") if one.root == one.run] or _has_expired(team)
        )
        assert team.agents(team.events[0].run)["cid"].status in ("idle", "running")
        await team.wait_until(lambda: len(team.runs_started("ann")) == 2)
        run = team.events[0].run
        assert task.done() is False or team.hall.history.get(run).status == "completed"
        await team.client.runs.stop(run)
        await task
        assert team.room.list_proposals()[0].status == "expired"

    team.run_in_hall(work)


def _has_expired(team: Team) -> bool:
    return any(event.data["proposal"]["status"] == "expired" for event in team.events_of("proposal"))


@pytest.mark.req("AW-10", "AW-14")
def test_open_votes_are_resolved_if_no_agent_can_continue(team: Team) -> None:
    team.write_workflow("ann bob cid")
    create = call("proposal_create", type="decision", title="Tabs", options=["yes", "no"])
    team.write_script(
        ann=[[create, vote("no"), stop()], [{"expect": "RESOLVED(?s:.*)no", "say": "ok"}]],
        bob=[[say("no vote")]],
        cid=[[say("no vote")]],
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed"
        proposal = team.room.list_proposals()[0]
        assert (proposal.status, proposal.result) == ("resolved", "no")
        assert "Tabs" in (team.project / ".workflow/team/main/documents/decisions.md").read_text()

    team.run_in_hall(work)


# The exfiltration check of a team


@pytest.mark.parametrize("context", [{"documentOwner": "none"}, False])
def test_a_network_call_needs_approval_if_another_agent_reads_private_files(
    team: Team, guild: Guild, context: Any
) -> None:
    team.write_workflow(
        each={"ann": {"tools": ["Read"]}, "bob": {"tools": ["WebFetch"]}}, context=context, kickoff="@bob begin"
    )
    team.write_script(bob=[[call("WebFetch", url="http://127.0.0.1:9/"), say("done")]])
    shared = context is not False
    plan = guild("plan", "team.yaml")
    assert plan.code == 0, plan.err
    assert ("before each call of WebFetch" in plan.out) == shared
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == (4 if shared else 0), ran.err
    assert [ask["title"] for ask in ran.json["asks"]] == (["bob wants to call WebFetch"] if shared else [])
