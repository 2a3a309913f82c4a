"""Workers that stand alone: seated in global:main, each from where it was started, coming and going."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.runs.model import RunRequest
from guildhall.workflow.target import parse
from tests.workflow.teams import say, send
from tests.workflow.test_staying import recovered, until, until_stands

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.workflow.target import WorkflowSummary
    from tests.workflow.teams import Team


def put(project: Path, name: str, **fields: Any) -> None:
    (project / "workers").mkdir(parents=True, exist_ok=True)
    (project / "guildhall.yaml").touch()
    worker = {"name": name, "instructions": f"You are {name}.", "model": "script:script.yaml", **fields}
    (project / "workers" / f"{name}.yaml").write_text(json.dumps(worker))


async def seat(team: Team, name: str, project: Path | None = None, **asked: Any) -> WorkflowSummary:
    frame = team.frame() if project is None else replace(team.frame(), cwd=project, root=project)
    return await team.client.workflows.start_worker(RunRequest(worker=name, input="", **asked), frame)


def said(team: Team) -> list[tuple[str, str]]:
    return [(one.sender, one.content) for one in team.hall.main.rooms.find("global", "main").list_messages()]


@pytest.mark.req("AW-2", "AW-16")
def test_they_come_and_go_and_the_last_takes_the_workflow_along(team: Team) -> None:
    for name in ("alice", "bob"):
        put(team.project, name)
    team.script(alice=[[send("hi @bob"), say()]], bob=[[send("hi"), say()]], repeat=True)

    async def work(team: Team) -> None:
        first = await seat(team, "alice")
        assert (first.name, first.tag, first.mode) == ("global", "main", "start")
        assert str(first.agents[0].target) == "alice"
        with pytest.raises(Conflict, match="alice is already running"):
            await seat(team, "alice")
        second = await seat(team, "bob")
        assert second.run == first.run
        assert (await team.client.rooms.send(parse("alice"), "hello")).posted.reached == ("alice",)
        await until(lambda: ("bob", "hi") in said(team))
        await until_stands(team, "idle", "@global")
        assert (await team.client.workflows.set_schedule(parse("alice"), "5m")).agent == "alice"
        await team.client.workflows.stop_agent(parse("alice"))
        shown = await team.client.workflows.get(parse("@global"))
        assert {agent.name: agent.status for agent in shown.agents} == {"alice": "stopped", "bob": "idle"}
        assert [one.agent for one in team.hall.main.rooms.find("global", "main").list_agents()] == ["bob"]
        assert (await seat(team, "alice")).run == first.run
        await team.client.workflows.stop_agent(parse("alice"))
        ended = await team.client.workflows.stop_agent(parse("bob"))
        assert ended == [first.run]
        assert not team.hall.is_busy()
        with pytest.raises(Conflict, match="bob is not running") as caught:
            await team.client.rooms.send(parse("bob"), "hey")
        assert caught.value.hint == "Start it: guild start bob"
        again = await seat(team, "bob")
        assert (again.generation, again.run != first.run) == (2, True)

    team.inside(work)


def test_each_works_from_where_it_was_started_with_the_model_asked_for_there(team: Team, tmp_path: Path) -> None:
    other = tmp_path / "other"
    put(team.project, "alice", sandboxes={"here": {"path": "."}})
    put(other, "bob", model=None, sandboxes={"here": {"path": "."}})
    look = {"call": "sandbox_list", "with": {"sandbox": "here", "pattern": "*.txt"}}
    team.script(alice=[[look, say()]])
    (other / "mine.yaml").write_text(json.dumps({"workers": {"bob": [[look, say()]]}}))
    (team.project / "a.txt").touch()
    (other / "b.txt").touch()

    async def work(team: Team) -> None:
        first = await seat(team, "alice")
        await seat(team, "bob", other, model="script:mine.yaml")
        await team.client.rooms.send(parse("@global"), "what do you see?")
        await until(lambda: [one.status for one in team.runs(first.run)] == ["completed"] * 2)
        for name, file in (("alice", "a.txt"), ("bob", "b.txt")):
            run = team.runs(first.run, name)[0]
            results = [entry for entry in team.hall.history.entries(run.id) if entry.kind == "tool_ended"]
            assert file in json.dumps(results[0].data.to_record())
            assert run.frame.cwd == (team.project if name == "alice" else other)

    team.inside(work)


def test_they_go_on_in_the_next_hall(team: Team) -> None:
    put(team.project, "alice")
    team.script(alice=[[send("here"), say()]], repeat=True)

    async def first(team: Team) -> str:
        began = await seat(team, "alice")
        await until_stands(team, "idle", "@global")
        await team.hall.drain()
        return began.run

    began = team.inside(first)
    (team.project / "workers/alice.yaml").unlink()  # what was seated stays as it was

    async def second(team: Team) -> None:
        await recovered(team)
        assert (await team.client.rooms.send(parse("alice"), "hello")).run == began
        await until(lambda: ("alice", "here") in said(team))

    team.inside(second)


def test_who_cannot_be_seated(team: Team) -> None:
    put(team.project, "alice", status="retired")
    put(team.project, "person")
    put(team.project, "a.b")
    team.script(alice=[[say()]])

    async def work(team: Team) -> None:
        for name in ("alice", "person", "a.b", "nobody", "../../etc/passwd", "x" * 300):
            with pytest.raises(GuildError):
                await seat(team, name)
        assert await team.client.workflows.list() == []
        with pytest.raises(NotFound):
            await team.client.workflows.get(parse("alice"))

    team.inside(work)


def test_a_bare_name_suggests_the_agent_of_a_workflow(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[say()]])

    async def work(team: Team) -> None:
        await team.run()
        with pytest.raises(NotFound, match="unknown agent ann") as caught:
            await team.client.rooms.send(parse("ann"), "x")
        assert caught.value.hint == "Did you mean ann@team?"

    team.inside(work)
