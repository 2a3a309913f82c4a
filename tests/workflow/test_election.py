"""The election of the document owner: every agent votes once, also across a crash, and only if there is a choice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send, stop

if TYPE_CHECKING:
    from tests.conftest import Guild

WORK = {"ann": [[send("@bob begin"), stop()]], "bob": [[call("document_write", content="x"), stop()]]}


def read_votes(team: Team) -> dict[str, str]:
    (proposal,) = team.room.list_proposals()
    return {vote.agent: vote.choice for vote in team.room.list_votes(proposal)}


@pytest.mark.req("AW-9", "AW-14")
def test_agents_elect_the_document_owner_before_the_kickoff(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann bob cid", context={})
    team.write_script(**WORK, election={"ann": "bob", "cid": "bob"})
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    runs = [one["worker"] for one in ran.json["runs"]]
    assert sorted(runs[:3]) == ["election.ann", "election.bob", "election.cid"]
    assert runs[3:] == ["ann", "bob"]

    async def look(team: Team) -> None:
        assert read_votes(team) == {"ann": "bob", "bob": "ann", "cid": "bob"}
        assert team.room.read_record().owner == "bob"
        kinds = [message.kind for message in team.room.list_messages()]
        assert kinds[:3] == ["proposal", "resolved", "message"]

    team.run_in_hall(look)
    assert (team.project / ".workflow/team/main/documents/notes.md").read_text() == "x"


def test_the_run_of_a_voter_can_only_vote(team: Team) -> None:
    team.write_workflow(context={}, agents="ann bob")
    team.write_script(**WORK)

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed"
        assert team.phases() == ["setup", "election", "kickoff", "live"]
        voter = team.runs(run.id, "election.ann")[0]
        frozen = team.hall.history.journal(voter.id).entries[0].data
        assert [tool["name"] for tool in frozen.tools] == ["proposal_vote"]
        assert "Options: ann, bob" in frozen.first_message
        assert len(frozen.system_prompt) < 500
        assert team.room.read_record().owner == "ann"
        assert all(state.run is None for state in team.agents(run.id).values())

    team.run_in_hall(work)


@pytest.mark.parametrize(
    ("agents", "context"),
    [("ann", {}), ("ann bob", {"documentOwner": "none"}), ("ann bob", {"documentOwner": "bob"})],
)
def test_a_workflow_without_a_choice_has_no_election(team: Team, agents: str, context: Any) -> None:
    team.write_workflow(context=context, agents=agents)
    team.write_script(ann=[[stop()]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, team.phases()) == ("completed", ["setup", "kickoff", "live"])
        assert team.room.list_proposals() == []

    team.run_in_hall(work)


def test_the_elected_owner_stays_in_the_next_generation(team: Team) -> None:
    team.write_workflow(context={})
    team.write_script(ann=[[stop()], [stop()]], election={"ann": "bob", "bob": "bob"})

    async def work(team: Team) -> None:
        await team.run()
        await team.run()
        assert team.phases().count("election") == 1
        assert (team.room.read_record().owner, len(team.room.list_proposals())) == ("bob", 1)

    team.run_in_hall(work)


@pytest.mark.req("AW-9")
def test_an_agent_that_fails_to_vote_has_no_vote_and_the_majority_decides(team: Team) -> None:
    team.write_workflow(agents="ann bob cid", context={})
    bad = {"election.ann": [[{"fail": 400}]], "election.bob": [[say("I do not care")]]}
    team.write_script(**bad, ann=[[stop()]], election={"cid": "cid"})

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, team.room.read_record().owner) == ("completed", "cid")
        assert team.runs(run.id, "election.ann")[0].status == "failed"

    team.run_in_hall(work)


@pytest.mark.req("AW-9")
def test_without_any_vote_the_first_agent_of_the_file_becomes_the_owner(team: Team) -> None:
    team.write_workflow(agents="bob ann", context={}, kickoff="@ann begin")
    team.write_script(**{"election.ann": [[say("no")]]}, ann=[[stop()]], election={"bob": "nobody"})

    async def work(team: Team) -> None:
        assert (await team.run()).status == "completed"
        assert team.room.read_record().owner == "bob"
        assert team.room.list_proposals()[0].status == "expired"

    team.run_in_hall(work)


def test_votes_are_neither_lost_nor_repeated_if_the_hall_stops_during_an_election(team: Team) -> None:
    team.write_workflow(context={})
    slow = [call("proposal_vote", proposal="p-1", choice="bob"), {"sleep": 0.1, "say": "voted"}]
    waits = [{"sleep": 30, **call("proposal_vote", proposal="p-1", choice="ann")}]
    team.write_script(**{"election.ann": [slow], "election.bob": [waits]})
    run: list[str] = []

    async def start(team: Team) -> None:
        task = asyncio.create_task(team.run())
        await team.wait_until(lambda: team.events_of("vote"))
        run.append(team.events[0].run)
        task.cancel()

    team.run_in_hall(start)
    team.write_script(**{"election.ann": [slow], "election.bob": [[{**waits[0], "sleep": 0}, stop()]]}, ann=[[stop()]])

    async def resume(team: Team) -> None:
        assert read_votes(team) == {"ann": "bob"}
        assert (await team.resume(run[0])).status == "completed"
        assert read_votes(team) == {"ann": "bob", "bob": "ann"}
        assert len(team.runs(run[0], "election.ann")) == len(team.runs(run[0], "election.bob")) == 1

    team.run_in_hall(resume)
