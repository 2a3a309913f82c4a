"""The bridge, through the real command: a worker dispatches to the members that it declares, and to no other."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.hall.doors import serve_tool_door, write_worker
from tests.hall.test_mcp import open_official_client
from tests.members.member_folders import put_member
from tests.runs.places import DONE, journal, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

TOOLS = ["dispatch", "wait", "list", "status", "result", "cancel", "delete"]


def put_host(project: Path, *members: str, **fields: Any) -> None:
    put_worker(project, "host", sandboxes=None, tool_rules=None, base=False, members=list(members), **fields)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": f"ant-dispatch_{name}", "with": arguments}


def results(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["data"]["result"]["content"][0]["text"] for entry in entries if entry["kind"] == "tool_ended"]


def shown(entries: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Return the tools and the prompt that the model saw."""
    first = entries[0]["data"]
    return [tool["name"] for tool in first["tools"]], first["system_prompt"]


@pytest.mark.req("PLAN-3b", "WD-39")
def test_a_worker_dispatches_a_job_and_reads_its_result(guild: Guild, project: Path, home: Home) -> None:
    folder = put_member(home.path, "ant")
    put_host(project, "ant")
    put_script(
        project,
        call("dispatch", description="prices", task="quick: what does it cost?", config={"maxTurns": 3}),
        call("status", jobId="j-1"),
        call("wait", jobIds=["j-1"], seconds=5),
        call("list", detail="detailed", filter="pri*"),
        call("result", jobId="j-1"),
        call("delete", jobId="j-1"),
        call("result", jobId="j-1"),
        DONE,
    )
    ran = guild("run", "host", "go", "--output", "json")
    assert ran.code == 0, ran
    entries = journal(guild, ran.json["run"])
    told = results(entries)
    assert json.loads(told[0]) == {"jobId": "j-1"}
    assert json.loads(told[1])["questions"] == ["Which one?\n\nThe red one?"]
    assert [one["status"] for one in json.loads(told[2])["jobs"]] == ["completed"]
    row = {"jobId": "j-1", "status": "completed", "description": "prices", "summary": None}
    assert json.loads(told[3]) == {"jobs": [row]}
    assert json.loads(told[4])["output"] == "done: quick: what does it cost?"
    assert json.loads(told[5]) == {"jobId": "j-1", "deleted": True}
    assert "unknown job 'j-1'" in told[6]
    tools, prompt = shown(entries)
    assert tools == [f"ant-dispatch_{name}" for name in TOOLS]
    assert "- ant (Ant): Does what ant does. Its tools start with `ant-dispatch_`." in prompt
    for word in (*TOOLS, "questions", "artifacts"):
        assert f"`{word}`" in prompt
    assert (folder / "left").read_text() == "politely", "it was stopped with the hall"
    shutil.rmtree(folder)
    again = guild("replay", ran.json["run"])
    assert again.code == 0, again


@pytest.mark.req("WD-39", "WD-45")
def test_a_worker_without_members_has_no_dispatch_tools_or_guide(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "ant")
    put_member(home.path, "bee", work=False)
    put_host(project)
    put_script(project, call("dispatch", description="d", task="t"), DONE)
    ran = guild("run", "host", "go", "--output", "json")
    entries = journal(guild, ran.json["run"])
    assert shown(entries) == ([], "Write the requested lines.")
    assert "Unknown tool 'ant-dispatch_dispatch'" in ran.err
    assert not (home.path / "guild-members" / "ant" / "marks").exists(), "nothing was started"


@pytest.mark.req("WD-45", "WD-2")
def test_a_member_without_a_worker_accepts_no_dispatch(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "bee", work=False)
    put_member(home.path, "ant")
    put_member(home.path, "bad", colour="red")
    put_script(project, DONE)
    for name, said in (
        ("bee", "members: the member bee does not accept jobs"),
        ("bed", "members: unknown member 'bed'"),
        ("bad", "members: invalid member 'bad'"),
    ):
        put_host(project, name)
        ran = guild("run", "host", "go")
        assert ran.code == 1
        assert said in ran.err
    put_host(project, "*")
    ran = guild("run", "host", "go", "--output", "json")
    assert {name.partition("_")[0] for name in shown(journal(guild, ran.json["run"]))[0]} == {"ant-dispatch"}


def test_a_member_of_a_project_needs_trust(guild: Guild, project: Path) -> None:
    folder = put_member(project, "ant")
    put_host(project, "ant")
    put_script(project, call("dispatch", description="d", task="quick"), DONE)
    ran = guild("run", "host", "go")
    assert ran.code == 4
    assert "members: ant is untrusted code: guild-members/ant/guild-member.json" in ran.err
    assert not (folder / "marks").exists()
    looked = guild("trust", "--json").json
    assert [(code["kind"], code["name"]) for code in looked["code"]] == [("member", "ant")]
    assert {file["file"] for file in looked["code"][0]["files"]} == {
        "guild-members/ant/guild-member.json",
        "guild-members/ant/server.py",
    }
    assert guild("trust", "--yes").code == 0
    assert guild("run", "host", "go").code == 0
    (folder / "server.py").write_text("# other\n" + (folder / "server.py").read_text())
    assert "server.py (changed since you trusted it)" in guild("run", "host", "go").err


@pytest.mark.req("WD-4")
def test_the_tools_of_a_member_are_a_toolbox_named_after_it(guild: Guild, project: Path, home: Home) -> None:
    folder = put_member(home.path, "ant")
    put_host(project, toolboxes=["ant"])
    put_script(project, {"call": "ant_echo", "with": {"text": "hello"}}, DONE)
    ran = guild("run", "host", "go", "--output", "json")
    assert ran.code == 0, ran
    entries = journal(guild, ran.json["run"])
    assert shown(entries) == (["ant_echo", "ant_look", "ant_die"], "Write the requested lines.")
    assert results(entries) == ["echo: hello"]
    plan = guild("plan", "host").out
    assert "ant_*" in plan
    assert "home/ant: uses its tools; runs ${PYTHON} server.py" in plan
    shutil.rmtree(folder)
    assert guild("replay", ran.json["run"]).code == 0
    assert "unknown toolbox 'ant'" in guild("run", "host", "go").err


def test_a_member_and_an_mcp_server_of_one_name_are_ambiguous(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "ant")
    put_host(project, toolboxes=["ant"], mcp_servers={"ant": {"url": "http://127.0.0.1:1/mcp"}})
    put_script(project, DONE)
    assert "toolboxes: 'ant' is ambiguous: a member and an MCP server" in guild("run", "host", "go").err


def test_a_dispatch_by_a_worker_with_private_files_needs_approval(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "ant")
    put_host(project, "ant", tools=["Read"])
    put_script(project, call("list"), call("dispatch", description="d", task="quick"), DONE)
    ran = guild("run", "host", "go", "--output", "json")
    assert ran.code == 4
    assert len(results(journal(guild, ran.json["run"]))) == 1, "to look is not to carry out"
    answered = guild("answer", ran.json["asks"][0]["ask"], "yes")
    assert answered.code == 0, answered
    assert json.loads(results(journal(guild, ran.json["run"]))[1]) == {"jobId": "j-1"}


def test_the_model_reads_that_a_member_does_not_run(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "ant", "stillborn")
    put_host(project, "ant")
    put_script(project, call("list"), DONE)
    ran = guild("run", "host", "go", "--output", "json")
    assert ran.code == 0
    (told,) = results(journal(guild, ran.json["run"]))
    assert "cannot run the member ant" in told
    assert "no ink" in told


def test_a_test_starts_no_members(guild: Guild, project: Path, home: Home) -> None:
    folder = put_member(home.path, "ant")
    put_host(project, "ant")
    put_script(project, call("list"), DONE)
    run = guild("run", "host", "go", "--output", "json").json["run"]
    (project / "tests").mkdir()
    assert guild("script", run, "--out", project / "tests" / "it.yaml").code == 0
    before = (folder / "marks").read_text()
    ran = guild("test")
    assert ran.code == 1
    assert "members" in ran.out + ran.err
    assert (folder / "marks").read_text() == before


@pytest.mark.req("PLAN-3b")
def test_the_dispatch_tools_are_a_server_at_the_tool_door(home: Home, project: Path) -> None:
    put_member(home.path, "ant")
    write_worker(project, "host", toolboxes=[], members=["ant"], tools=["Glob"], accepts_risk=True)

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("host")
            async with open_official_client(f"{hall.url}/ant-dispatch/", token, "auto") as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
                made = await client.call_tool("dispatch", {"description": "d", "task": "quick"})
                assert json.loads(made.content[0].text) == {"jobId": "j-1"}
                got = await client.call_tool("result", {"jobId": "j-1"})
                assert json.loads(got.content[0].text)["output"] == "done: quick"
            async with open_official_client(f"{hall.url}/tools/", token, "auto") as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["Glob"]

    asyncio.run(work())
