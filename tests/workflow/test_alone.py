"""Where the room is: nowhere, in files, in the database, in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from tests.conftest import Guild


@pytest.mark.req("AW-13")
def test_agents_without_a_room_run_once_and_their_outputs_are_the_result(team: Team, guild: Guild) -> None:
    team.file("ann bob cid", context=False, kickoff="@ann @cid look at a@b.example")
    team.script(ann=[[{"expect": "^@ann @cid look at a@b.example$", "say": "one"}]], cid=[[say("three")]])
    ran = guild("run", "team.yaml")
    assert (ran.code, ran.out) == (0, "ann:\none\n\ncid:\nthree\n"), ran.err
    assert not (team.project / ".workflow").exists()

    async def look(team: Team) -> None:
        (root,) = team.hall.history.recent()
        for run in team.runs(root.id):
            tools = [tool["name"] for tool in team.hall.history.journal(run.id).entries[0].data.tools]
            assert not [name for name in tools if name.startswith(("channel_", "inbox_", "document_", "proposal_"))]

    team.inside(look)


@pytest.mark.parametrize(("agents", "output"), [("ann", "only"), ("ann bob", "ann:\nonly\n\nbob:\nonly")])
def test_a_kickoff_that_mentions_nobody_is_for_all_who_are_alone(team: Team, agents: str, output: str) -> None:
    team.file(agents, context=False, kickoff="x" * 5_000)
    team.script(**{"*": [[{"expect": "^x{5000}$", "say": "only"}]]})

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.output) == ("completed", output)

    team.inside(work)


def test_one_who_is_alone_and_fails_is_told_what_was_done(team: Team) -> None:
    (team.project / "w").mkdir()
    team.file("ann", each={"ann": {"tools": ["Write"], "workdir": "w"}}, context=False, kickoff="write it")
    wrote = call("Write", file_path="a.txt", content="x")
    team.script(ann=[[wrote, {"fail": 400}], [{"expect": "(?s)^write it.*earlier attempt.*- Write", "say": "ok"}]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.output) == ("completed", "ok"), run.error

    team.inside(work)


@pytest.mark.req("AW-13", "AW-8")
@pytest.mark.parametrize("provider", ["sqlite", "file", "memory"])
def test_every_provider_works(team: Team, guild: Guild, provider: str) -> None:
    context: dict[str, Any] = {"provider": provider, "documentOwner": "none"}
    team.file(context=context)
    read = {**call("document_read", file="plan/a.md"), "expect": "#2 from ann"}
    write = call("document_write", file="plan/a.md", content="the plan")
    seen = {"expect": "the plan", **send("I have seen it")}
    team.script(ann=[[write, send("@bob see plan/a.md"), say()]], bob=[[read, seen, say()]])
    ran = guild("run", "team.yaml")
    assert (ran.code, ran.out) == (0, "I have seen it\n"), ran.err
    room = team.project / ".workflow/team/main"
    assert (room / "documents/plan/a.md").exists() == (provider != "memory")
    assert (room / "channel.md").exists() == (provider == "file")
    if provider == "file":
        assert "see plan/a.md" in (room / "channel.md").read_text()
        state = json.loads((room / "_state/inbox-state.json").read_text())
        assert state == {"readCursors": {"ann": 3, "bob": 3}}
