"""The context of a workflow: no room, or a room in files, in the database or in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send, stop

if TYPE_CHECKING:
    from tests.conftest import Guild


@pytest.mark.req("AW-13")
def test_agents_without_a_room_run_once_and_their_outputs_are_the_result(team: Team, guild: Guild) -> None:
    team.write_workflow("ann bob cid", context=False, kickoff="@ann @cid look at a@b.example")
    team.write_script(ann=[[{"expect": "^@ann @cid look at a@b.example$", "say": "one"}]], cid=[[say("three")]])
    ran = guild("run", "team.yaml")
    assert (ran.code, ran.out) == (0, "ann:\none\n\ncid:\nthree\n"), ran.err
    assert not (team.project / ".workflow").exists()

    async def look(team: Team) -> None:
        (root,) = team.hall.history.recent()
        for run in team.runs(root.id):
            tools = [tool["name"] for tool in team.hall.history.journal(run.id).entries[0].data.tools]
            assert not [name for name in tools if name.startswith(("channel_", "inbox_", "document_", "proposal_"))]

    team.run_in_hall(look)


@pytest.mark.parametrize(("agents", "output"), [("ann", "only"), ("ann bob", "ann:\nonly\n\nbob:\nonly")])
def test_a_kickoff_without_a_mention_goes_to_all_agents_without_a_room(team: Team, agents: str, output: str) -> None:
    team.write_workflow(agents, context=False, kickoff="x" * 5_000)
    team.write_script(**{"*": [[{"expect": "^x{5000}$", "say": "only"}]]})

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.output) == ("completed", output)

    team.run_in_hall(work)


def test_the_retry_of_an_agent_without_a_room_is_given_the_calls_of_the_failed_run(team: Team) -> None:
    (team.project / "w").mkdir()
    team.write_workflow("ann", each={"ann": {"tools": ["Write"], "workdir": "w"}}, context=False, kickoff="write it")
    write = call("Write", file_path="a.txt", content="x")
    team.write_script(
        ann=[[write, {"fail": 400}], [{"expect": "(?s)^write it.*earlier attempt.*- Write", "say": "ok"}]]
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.output) == ("completed", "ok"), run.error

    team.run_in_hall(work)


@pytest.mark.req("AW-13", "AW-8")
@pytest.mark.parametrize("provider", ["sqlite", "file", "memory"])
def test_a_room_works_with_every_provider(team: Team, guild: Guild, provider: str) -> None:
    context: dict[str, Any] = {"provider": provider, "documentOwner": "none"}
    team.write_workflow(context=context)
    read = {**call("document_read", file="plan/a.md"), "expect": "#2 from ann"}
    write = call("document_write", file="plan/a.md", content="the plan")
    seen = {"expect": "the plan", **send("I have seen it")}
    team.write_script(ann=[[write, send("@bob see plan/a.md"), stop()]], bob=[[read, seen, stop()]])
    ran = guild("run", "team.yaml")
    assert (ran.code, ran.out) == (0, "I have seen it\n"), ran.err
    room = team.project / ".workflow/team/main"
    assert (room / "documents/plan/a.md").exists() == (provider != "memory")
    assert (room / "channel.md").exists() == (provider == "file")
    if provider == "file":
        assert "see plan/a.md" in (room / "channel.md").read_text()
        state = json.loads((room / "_state/inbox-state.json").read_text())
        assert state == {"readCursors": {"ann": 3, "bob": 3}}
