"""Workflow names belong to their project: two projects with the same names run side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import NotFound, UsageError
from guildhall.workflow.target import Target
from tests.workflow.teams import stop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import CommandResult, Guild, GuildWithHall
    from tests.workflow.teams import Team


def write_project(folder: Path, **fields: Any) -> Path:
    """Write a project with a workflow `review` and a worker `alice`, who say the name of the folder."""
    (folder / "workers").mkdir(parents=True)
    (folder / "guildhall.yaml").write_text("model: script:script.yaml\n")
    worker = {"name": "alice", "instructions": "You are alice.", "model": "script:script.yaml"}
    (folder / "workers" / "alice.yaml").write_text(json.dumps(worker))
    answers = [
        {"call": "document_write", "with": {"file": "notes.md", "content": f"notes of {folder.name}"}},
        {"call": "channel_send", "with": {"message": f"I am in {folder.name}"}},
        {"say": "done"},
    ]
    script = {"workers": {"ann": [answers], "alice": [[{"say": f"alice in {folder.name}"}]]}, "repeat": True}
    (folder / "script.yaml").write_text(json.dumps(script))
    agents = {"ann": {"system_prompt": "You are ann.", "model": "script:script.yaml"}}
    workflow = {"name": "review", "agents": agents, "kickoff": "@ann begin", **fields}
    (folder / "review.yaml").write_text(json.dumps({"context": {"documentOwner": "none"}, **workflow}))
    return folder


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    return write_project(tmp_path / "one"), write_project(tmp_path / "two")


def assert_ok(ran: CommandResult) -> CommandResult:
    assert ran.code == 0, ran.err
    return ran


def test_projects_run_workflows_of_the_same_name(guild: Guild, projects: tuple[Path, Path]) -> None:
    runs: dict[Path, str] = {}
    for project in projects:
        assert_ok(guild("plan", "review.yaml", cwd=project))
        assert f"I am in {project.name}" in assert_ok(guild("run", "review.yaml", cwd=project)).out
    for project in projects:
        assert str(project) in assert_ok(guild("show", "@review", cwd=project)).out
        runs[project] = assert_ok(guild("ls", "@review", "--json", cwd=project)).json["run"]
        assert f"I am in {project.name}" in assert_ok(guild("log", "@review", cwd=project)).out
        assert assert_ok(guild("doc", "read", "@review", cwd=project)).out.strip() == f"notes of {project.name}"
        assert_ok(guild("doc", "write", "@review", "own.md", "--text", project.name, cwd=project))
        assert (project / ".workflow" / "review" / "main" / "documents" / "own.md").read_text() == project.name
        assert_ok(guild("proposals", "@review", cwd=project))
        assert [line["runs"] for line in assert_ok(guild("cost", "@review", "--json", cwd=project)).json["lines"]] == [
            1
        ]
        assert_ok(guild("replay", "@review", cwd=project))
        assert_ok(guild("wait", "@review", cwd=project))
    one, two = projects
    assert_ok(guild("run", "review.yaml", "--fresh", cwd=one))
    assert assert_ok(guild("ls", "@review", "--json", cwd=one)).json["generation"] == 2
    other = assert_ok(guild("ls", "@review", "--json", cwd=two)).json
    assert (other["run"], other["generation"]) == (runs[two], 1)
    assert assert_ok(guild("doc", "read", "@review", "own.md", cwd=two)).out.strip() == "two"
    assert_ok(guild("show", runs[two], cwd=one))


def test_commands_reach_the_started_workflow_of_their_own_project(
    guild_hall: GuildWithHall, projects: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = projects
    runs = {
        project: assert_ok(guild_hall("start", "review.yaml", "--background", cwd=project)).out.strip()
        for project in projects
    }
    for project in projects:
        sent = assert_ok(guild_hall("send", "@review", f"hello {project.name}", "--json", cwd=project)).json
        assert sent["run"] == runs[project]
        assert_ok(guild_hall("wait", "@review", cwd=project))
        log = assert_ok(guild_hall("log", "@review", cwd=project)).out
        assert f"hello {project.name}" in log
        assert not any(f"hello {other.name}" in log for other in projects if other != project)
    assert_ok(guild_hall("schedule", "@review", "set", "1h", cwd=one))
    assert assert_ok(guild_hall("schedule", "@review", "show", "--json", cwd=two)).json == {"schedules": []}
    assert_ok(guild_hall("schedule", f"ann@{runs[two]}", "set", "2h", cwd=one))
    found = assert_ok(guild_hall("schedule", "ann@review", "show", "--json", cwd=two)).json["schedules"]
    assert [schedule["every"] for schedule in found] == [7200]
    listed = assert_ok(guild_hall("ls", cwd=one)).out
    assert f"(in {two})" in listed
    assert f"(in {one})" not in listed

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for command in (("send", "@review", "hello"), ("stop", "@review"), ("log", "@review"), ("doc", "ls", "@review")):
        refused = guild_hall(*command, cwd=elsewhere)
        assert refused.code == 3, refused.err
        assert f"unknown workflow @review in {elsewhere}" in refused.err
        assert all(f"@{runs[project]} ({project})" in refused.err for project in projects)
    for target in (runs[one], f"@{runs[one]}", f"ann@{runs[one]}"):
        sent = assert_ok(guild_hall("send", target, "from elsewhere", "--json", cwd=elsewhere)).json
        assert sent["run"] == runs[one]

    guild_hall.kill_hall()
    assert_ok(guild_hall("stop", "@review", cwd=one))
    assert guild_hall("send", "@review", "hello", cwd=one).code != 0
    sent = assert_ok(guild_hall("send", "ann@review", "still here", "--json", cwd=two)).json
    assert sent["run"] == runs[two]
    assert_ok(guild_hall("stop", f"@{runs[two]}", cwd=one))
    assert assert_ok(guild_hall("ls", "@review", "--json", cwd=two)).json["status"] == "stopped"


def test_workers_started_alone_belong_to_the_project_of_the_command(
    guild_hall: GuildWithHall, projects: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = projects
    runs = {
        project: assert_ok(guild_hall("start", "alice", "--background", cwd=project)).out.strip()
        for project in projects
    }
    assert runs[one] != runs[two]
    for project in projects:
        sent = assert_ok(guild_hall("send", "alice", "hello", "--json", cwd=project / "workers")).json
        assert sent["run"] == runs[project]
    assert f"alice@{runs[two]}" in assert_ok(guild_hall("ls", cwd=one)).out
    refused = guild_hall("send", "alice", "hello", cwd=tmp_path)
    assert f"alice@{runs[one]} ({one})" in refused.err
    assert_ok(guild_hall("stop", "alice", cwd=one))
    assert guild_hall("send", "alice", "hello", cwd=one).code != 0
    assert_ok(guild_hall("send", "alice", "hello", cwd=two))


def test_projects_have_workflow_databases_of_the_same_name(guild: Guild, tmp_path: Path) -> None:
    context = {"documentOwner": "none", "config": {"db": "team.db"}}
    projects = [write_project(tmp_path / name, context=context) for name in ("one", "two")]
    for project in projects:
        assert_ok(guild("run", "review.yaml", cwd=project))
    for project in projects:
        assert f"I am in {project.name}" in assert_ok(guild("log", "@review", cwd=project)).out


def test_a_folder_without_a_project_of_its_own_finds_the_workflow(guild: Guild, tmp_path: Path) -> None:
    flows = write_project(tmp_path / "plain" / "flows")
    for name in ("guildhall.yaml", "workers/alice.yaml"):
        (flows / name).unlink()
    (flows / "workers").rmdir()
    (flows / "deep").mkdir()
    assert_ok(guild("run", "flows/review.yaml", cwd=flows.parent))
    for folder in (flows.parent, flows, flows / "deep"):
        assert assert_ok(guild("ls", "@review", "--json", cwd=folder)).json["project"] == str(flows)
    (flows / "deep" / "guildhall.yaml").write_text("")
    assert guild("ls", "@review", cwd=flows / "deep").code == 3


def test_a_plan_reports_another_file_of_the_same_name(guild: Guild, projects: tuple[Path, Path]) -> None:
    one, _ = projects
    assert_ok(guild("run", "review.yaml", cwd=one))
    (one / "copy.yaml").write_text((one / "review.yaml").read_text())
    for command in ("plan", "run"):
        refused = guild(command, "copy.yaml", cwd=one)
        assert refused.code != 0
        assert "it was started from another file" in refused.out + refused.err
    assert_ok(guild("run", "copy.yaml", "--fresh", cwd=one))


def test_a_target_without_a_project_must_be_unique(team: Team) -> None:
    team.write_workflow("ann")
    team.write_script(ann=[[stop()]], repeat=True)
    other = team.project.with_name("other")
    other.mkdir()
    for name in ("team.yaml", "script.yaml"):
        (other / name).write_text((team.project / name).read_text())

    async def work(team: Team) -> None:
        get = team.client.workflows.get
        first = await team.run()
        assert (await get(Target(None, "team"))).run == first.id
        second = await team.run(str(other / "team.yaml"))
        with pytest.raises(UsageError, match="ambiguous target @team: 2 projects have it") as caught:
            await get(Target(None, "team"))
        assert f"@{second.id} ({other})" in str(caught.value.hint)
        assert (await get(Target(None, "team", project=other))).run == second.id
        assert (await get(Target("ann", first.id, project=other))).run == first.id
        with pytest.raises(NotFound, match="unknown workflow"):
            await get(Target(None, "team", project=other.parent / "third"))
        with pytest.raises(UsageError, match="not an absolute path"):
            await get(Target(None, "team", project=other.relative_to("/")))

    team.run_in_hall(work)
