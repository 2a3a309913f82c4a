"""Standalone workers: agents of global:main, each started from its own folder."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.runs.model import RunRequest
from guildhall.workflow.target import parse
from tests.workflow.teams import send, stop
from tests.workflow.test_started_workflows import recover, wait_for_status, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.room.service import Room
    from guildhall.workflow.instance import WorkflowSummary
    from tests.workflow.teams import Team


def write_worker(project: Path, name: str, **fields: Any) -> None:
    (project / "workers").mkdir(parents=True, exist_ok=True)
    (project / "guildhall.yaml").touch()
    worker = {"name": name, "instructions": f"You are {name}.", "model": "script:script.yaml", **fields}
    (project / "workers" / f"{name}.yaml").write_text(json.dumps(worker))


async def start_worker(team: Team, name: str, project: Path | None = None, **options: Any) -> WorkflowSummary:
    frame = team.frame() if project is None else replace(team.frame(), cwd=project, root=project)
    return await team.client.workflows.start_worker(RunRequest(worker=name, input="", **options), frame)


def find_room(team: Team) -> Room:
    return team.hall.main.rooms.find(str(team.project), "global", "main")


def read_messages(team: Team) -> list[tuple[str, str]]:
    return [(one.sender, one.content) for one in find_room(team).list_messages()]


@pytest.mark.req("AW-2", "AW-16")
def test_workers_start_and_stop_and_the_last_one_ends_the_workflow(team: Team) -> None:
    for name in ("alice", "bob"):
        write_worker(team.project, name)
    team.write_script(alice=[[send("hi @bob"), stop()]], bob=[[send("hi"), stop()]], repeat=True)

    async def work(team: Team) -> None:
        first = await start_worker(team, "alice")
        assert (first.name, first.tag, first.mode) == ("global", "main", "start")
        assert str(first.agents[0].target) == "alice"
        with pytest.raises(Conflict, match="cannot start alice: it was already started"):
            await start_worker(team, "alice")
        second = await start_worker(team, "bob")
        assert second.run == first.run
        assert (await team.client.rooms.send(parse("alice"), "hello")).posted.reached == ("alice",)
        await wait_until(lambda: ("bob", "hi") in read_messages(team))
        await wait_for_status(team, "idle", "@global")
        assert (await team.client.workflows.set_schedule(parse("alice"), "5m")).agent == "alice"
        await team.client.workflows.stop_agent(parse("alice"))
        shown = await team.client.workflows.get(parse("@global"))
        assert {agent.name: agent.status for agent in shown.agents} == {"alice": "stopped", "bob": "idle"}
        assert [one.agent for one in find_room(team).list_agents()] == ["bob"]
        assert (await start_worker(team, "alice")).run == first.run
        await team.client.workflows.stop_agent(parse("alice"))
        ended = await team.client.workflows.stop_agent(parse("bob"))
        assert ended == [first.run]
        assert not team.hall.is_busy()
        with pytest.raises(Conflict, match="bob is not running") as caught:
            await team.client.rooms.send(parse("bob"), "hey")
        assert caught.value.hint == "Start it: guild start bob"
        again = await start_worker(team, "bob")
        assert (again.generation, again.run != first.run) == (2, True)

    team.run_in_hall(work)


def test_each_worker_uses_the_folder_and_the_model_of_its_start(team: Team, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_worker(team.project, "alice", sandboxes={"here": {"path": "."}})
    write_worker(other, "bob", model=None, sandboxes={"here": {"path": "."}})
    look = {"call": "sandbox_list", "with": {"sandbox": "here", "pattern": "*.txt"}}
    team.write_script(alice=[[look, stop()]])
    (other / "mine.yaml").write_text(json.dumps({"workers": {"bob": [[look, stop()]]}}))
    (team.project / "a.txt").touch()
    (other / "b.txt").touch()

    async def work(team: Team) -> None:
        alice = (await start_worker(team, "alice")).run
        bob = (await start_worker(team, "bob", other, model="script:mine.yaml")).run
        for name, workflow, file in (("alice", alice, "a.txt"), ("bob", bob, "b.txt")):
            await team.client.rooms.send(parse(workflow), "what do you see?")
            await wait_until(lambda workflow=workflow: [one.status for one in team.runs(workflow)] == ["completed"])
            run = team.runs(workflow, name)[0]
            results = [entry for entry in team.hall.history.entries(run.id) if entry.kind == "tool_ended"]
            assert file in json.dumps(results[0].data.to_record())
            assert run.frame.cwd == (team.project if name == "alice" else other)

    team.run_in_hall(work)


def test_standalone_workers_resume_in_the_next_hall(team: Team) -> None:
    write_worker(team.project, "alice")
    team.write_script(alice=[[send("here"), stop()]], repeat=True)

    async def first(team: Team) -> str:
        began = await start_worker(team, "alice")
        await wait_for_status(team, "idle", "@global")
        await team.hall.drain()
        return began.run

    began = team.run_in_hall(first)
    (team.project / "workers/alice.yaml").unlink()  # a started worker does not need its file

    async def second(team: Team) -> None:
        await recover(team)
        assert (await team.client.rooms.send(parse("alice"), "hello")).run == began
        await wait_until(lambda: ("alice", "here") in read_messages(team))

    team.run_in_hall(second)


def test_unusable_workers_are_not_started(team: Team) -> None:
    write_worker(team.project, "alice", status="retired")
    write_worker(team.project, "person")
    write_worker(team.project, "a.b")
    team.write_script(alice=[[stop()]])

    async def work(team: Team) -> None:
        for name in ("alice", "person", "a.b", "nobody", "../../etc/passwd", "x" * 300):
            with pytest.raises(GuildError):
                await start_worker(team, name)
        assert await team.client.workflows.list() == []
        with pytest.raises(NotFound):
            await team.client.workflows.get(parse("alice"))

    team.run_in_hall(work)


def test_a_bare_name_suggests_the_agent_of_a_workflow(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[stop()]])

    async def work(team: Team) -> None:
        await team.run()
        with pytest.raises(NotFound, match="unknown agent ann") as caught:
            await team.client.rooms.send(parse("ann"), "x")
        assert caught.value.hint == "Did you mean ann@team?"

    team.run_in_hall(work)
