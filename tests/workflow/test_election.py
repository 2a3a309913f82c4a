"""The election of who writes the documents: each agent is asked, a crash loses no vote, and where none is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from tests.conftest import Guild

WORK = {"ann": [[send("@bob begin"), say()]], "bob": [[call("document_write", content="x"), say()]]}


def votes(team: Team) -> dict[str, str]:
    (proposal,) = team.room.list_proposals()
    return {vote.agent: vote.choice for vote in team.room.list_votes(proposal)}


@pytest.mark.req("AW-9", "AW-14")
def test_agents_elect_who_writes_before_the_kickoff(team: Team, guild: Guild) -> None:
    team.file(agents="ann bob cid", context={})
    team.script(**WORK, election={"ann": "bob", "cid": "bob"})
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 0, ran.err
    runs = [one["worker"] for one in ran.json["runs"]]
    assert sorted(runs[:3]) == ["election.ann", "election.bob", "election.cid"]
    assert runs[3:] == ["ann", "bob"]

    async def look(team: Team) -> None:
        assert votes(team) == {"ann": "bob", "bob": "ann", "cid": "bob"}
        assert team.room.read_record().owner == "bob"
        kinds = [message.kind for message in team.room.list_messages()]
        assert kinds[:3] == ["proposal", "resolved", "message"]

    team.inside(look)
    assert (team.project / ".workflow/team/main/documents/notes.md").read_text() == "x"


def test_a_vote_is_all_that_its_run_can_do(team: Team) -> None:
    team.file(context={}, agents="ann bob")
    team.script(**WORK)

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

    team.inside(work)


@pytest.mark.parametrize(
    ("agents", "context"),
    [("ann", {}), ("ann bob", {"documentOwner": "none"}), ("ann bob", {"documentOwner": "bob"})],
)
def test_there_is_no_election_where_there_is_nothing_to_elect(team: Team, agents: str, context: Any) -> None:
    team.file(context=context, agents=agents)
    team.script(ann=[[say()]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, team.phases()) == ("completed", ["setup", "kickoff", "live"])
        assert team.room.list_proposals() == []

    team.inside(work)


def test_who_was_elected_stays_in_the_next_generation(team: Team) -> None:
    team.file(context={})
    team.script(ann=[[say()], [say()]], election={"ann": "bob", "bob": "bob"})

    async def work(team: Team) -> None:
        await team.run()
        await team.run()
        assert team.phases().count("election") == 1
        assert (team.room.read_record().owner, len(team.room.list_proposals())) == ("bob", 1)

    team.inside(work)


@pytest.mark.req("AW-9")
def test_who_fails_to_vote_has_no_vote_and_the_most_votes_decide(team: Team) -> None:
    team.file(agents="ann bob cid", context={})
    bad = {"election.ann": [[{"fail": 400}]], "election.bob": [[say("I do not care")]]}
    team.script(**bad, ann=[[say()]], election={"cid": "cid"})

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, team.room.read_record().owner) == ("completed", "cid")
        assert team.runs(run.id, "election.ann")[0].status == "failed"

    team.inside(work)


@pytest.mark.req("AW-9")
def test_without_any_vote_it_is_the_first_agent_of_the_file(team: Team) -> None:
    team.file(agents="bob ann", context={}, kickoff="@ann begin")
    team.script(**{"election.ann": [[say("no")]]}, ann=[[say()]], election={"bob": "nobody"})

    async def work(team: Team) -> None:
        assert (await team.run()).status == "completed"
        assert team.room.read_record().owner == "bob"
        assert team.room.list_proposals()[0].status == "expired"

    team.inside(work)


def test_votes_are_neither_lost_nor_repeated_when_the_hall_stops_in_the_middle(team: Team) -> None:
    team.file(context={})
    slow = [call("proposal_vote", proposal="p-1", choice="bob"), {"sleep": 0.1, "say": "voted"}]
    waits = [{"sleep": 30, **call("proposal_vote", proposal="p-1", choice="ann")}]
    team.script(**{"election.ann": [slow], "election.bob": [waits]})
    run: list[str] = []

    async def begin(team: Team) -> None:
        task = asyncio.create_task(team.run())
        await team.until(lambda: team.heard("vote"))
        run.append(team.events[0].run)
        task.cancel()

    team.inside(begin)
    team.script(**{"election.ann": [slow], "election.bob": [[{**waits[0], "sleep": 0}, say()]]}, ann=[[say()]])

    async def go_on(team: Team) -> None:
        assert votes(team) == {"ann": "bob"}
        assert (await team.resume(run[0])).status == "completed"
        assert votes(team) == {"ann": "bob", "bob": "ann"}
        assert len(team.runs(run[0], "election.ann")) == len(team.runs(run[0], "election.bob")) == 1

    team.inside(go_on)
