"""`guild mcp`: the model of another program uses the hall over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import run_claude
from tests.jobs.job_hall import JobHall, call, say, submit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

GUILD = Path(sys.executable).with_name("guild")
TOOLS = {"roster", "dispatch", "jobs", "status", "wait", "result", "answer", "cancel"}
ASK = call("log_question", question="Front or back?", wait=True)


@pytest.fixture
def job_hall(home: Home, project: Path) -> JobHall:
    job_hall = JobHall(home=home, project=project)
    job_hall.worker(description="Forges things")
    return job_hall


def run_client(guild: Guild, work: Callable[[Any], Awaitable[Any]], mode: Any = "auto") -> Any:
    """Run `work` with the official client, connected to the real command."""

    async def go() -> Any:
        server = StdioServerParameters(command=str(GUILD), args=["mcp"], env=guild.environment(), cwd=Path.cwd())
        async with asyncio.timeout(30), Client(server, mode=mode) as client:
            return await work(client)

    return asyncio.run(go())


async def call_tool(client: Any, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    text = result.content[0].text
    return json.loads(text) if text.startswith("{") else text


async def call_tool_with_error(client: Any, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


@pytest.mark.req("X-8", "X-15")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_outside_model_dispatches_a_job_and_forwards_the_answer_of_the_user(
    guild_hall: GuildWithHall, job_hall: JobHall, mode: str
) -> None:
    job_hall.worker("writer", tools=["Write"])
    job_hall.script([ASK, call("write_artifact", path="a.md", content="a"), submit("a key"), say()])

    async def work(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        read_only = {tool.name for tool in tools if tool.annotations.read_only_hint}
        assert read_only == {"roster", "jobs", "status", "wait", "result"}
        structured = await client.call_tool("roster", {})
        assert structured.structured_content == json.loads(structured.content[0].text)
        assert "dispatch" in (client.instructions or "")
        roster = await call_tool(client, "roster")
        assert {"name": "smith", "description": "Forges things"} in roster["workers"]
        assert not {"writer", "memory-compactor"} & {one["name"] for one in roster["workers"]}
        job = (await call_tool(client, "dispatch", worker="smith", task="Forge a key."))["jobId"]
        standing = await call_tool(client, "wait", job=job, seconds=20)
        assert (standing["status"], standing["questions"]) == ("running", ["Front or back?"])
        (ask,) = standing["asks"]
        early = await call_tool_with_error(client, "result", job=job)
        assert "is still running" in early
        assert "`wait`" in early
        assert "guild job" not in early
        assert (await call_tool(client, "answer", ask=ask["ask"], text="the front door"))["delivered"] is True
        assert (await call_tool(client, "wait", seconds=20))["status"] == "completed"
        result = await call_tool(client, "result")
        assert (result["output"], result["artifacts"]) == ("a key", ["artifacts/a.md"])
        assert (Path(result["directory"]) / "artifacts/a.md").read_text() == "a"
        assert [one["jobId"] for one in (await call_tool(client, "jobs"))["jobs"]] == [job]

    run_client(guild_hall, work, mode)
    shown = guild_hall("show", guild_hall("ls", "jobs", "--json").json["jobs"][0]["jobId"], "--json").json
    assert shown["asked"][0]["answer"] == "the front door\n(passed on by another model)"


def test_a_model_cannot_answer_an_approval(guild_hall: GuildWithHall, job_hall: JobHall) -> None:
    job_hall.worker(tool_rules={"write_artifact": {"allowed": True, "approval_required": True}})
    job_hall.script([call("write_artifact", path="a.txt", content="a"), submit(), say()])

    async def work(client: Any) -> None:
        await call_tool(client, "dispatch", worker="smith", task="Write.")
        (ask,) = (await call_tool(client, "wait", seconds=20))["asks"]
        assert ask["kind"] == "approval"
        for text in ("yes", "always", "no"):
            refusal = await call_tool_with_error(client, "answer", ask=ask["ask"], text=text)
            assert "only the user can decide it" in refusal
        assert (await call_tool(client, "cancel", job=(await call_tool(client, "jobs"))["jobs"][0]["jobId"]))[
            "status"
        ] == ("cancelled")

    run_client(guild_hall, work)
    assert not list(job_hall.home.path.glob("jobs/*/artifacts/a.txt"))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("dispatch", {"worker": "smth", "task": "x"}, "smith"),
    ("dispatch", {"worker": "../../etc/passwd", "task": "x"}, "etc/passwd"),
    ("dispatch", {"worker": "smith", "task": " "}, "empty"),
    ("dispatch", {"worker": "smith", "task": "x", "config": {"maxTurns": -1}}, "config.maxTurns"),
    (
        "dispatch",
        {"worker": "smith", "task": "x", "config": {"model": "script:other.yaml"}},
        "only the user can choose the model",
    ),
    ("dispatch", {"worker": "smith"}, "task"),
    ("status", {"job": "j-nobody"}, "unknown job"),
    ("status", {}, "no job was dispatched"),
    ("result", {"job": "../../x"}, "unknown member"),
    ("wait", {"job": 7}, "job"),
    ("answer", {"ask": "a-nobody", "text": "x"}, "unknown ask"),
    ("cancel", {"job": "nobody/j-1"}, "nobody"),
]


def test_wrong_arguments_are_reported(guild: Guild, job_hall: JobHall) -> None:
    async def work(client: Any) -> list[str]:
        return [await call_tool_with_error(client, tool, **arguments) for tool, arguments, _ in WRONG]

    for answer, (tool, _, message) in zip(run_client(guild, work), WRONG, strict=True):
        assert message in answer, tool


def send_lines(process: subprocess.Popen[str], *lines: str) -> list[dict[str, Any]]:
    """Write lines to the command, close its input and return its responses."""
    out, _ = process.communicate("".join(f"{line}\n" for line in lines), timeout=20)
    return [json.loads(line) for line in out.splitlines()]


def test_invalid_lines_get_error_responses_and_the_server_continues(guild: Guild, job_hall: JobHall) -> None:
    ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
    process = guild.start("mcp")
    answers = send_lines(
        process,
        *("", "{", "[]", "7", '{"jsonrpc": "1.0"}', "[" * 5000, '{"jsonrpc": "2.0", "id": {}, "method": 1}', "\x00"),
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "roster", "arguments": []}}',
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "rooster"}}',
        '{"jsonrpc": "2.0", "id": 3, "method": "no/such"}',
        '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}}',
        json.dumps(ping),
    )
    by_id = {one["id"]: one for one in answers}
    assert {one["error"]["code"] for one in answers if one["id"] is None} == {-32700, -32600}
    assert by_id[1]["error"]["code"] == by_id[2]["error"]["code"] == -32602
    assert "roster" in by_id[2]["error"]["message"]
    assert by_id[3]["error"]["code"] == -32601
    assert by_id[9]["result"] == {}
    assert process.returncode == 0


def test_standard_input_from_a_file_is_read_to_its_end(guild: Guild, job_hall: JobHall) -> None:
    ran = guild("mcp", input='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n')
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["id"] == 1
    assert guild("mcp").out == ""


def test_a_call_is_answered_although_the_input_has_ended_before_the_hall_is_started(
    guild_hall: GuildWithHall, job_hall: JobHall
) -> None:
    call = {"name": "roster", "arguments": {}}
    ran = guild_hall(
        "mcp", input=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}) + "\n"
    )
    assert "smith" in json.loads(ran.out)["result"]["content"][0]["text"], ran


def test_an_overlong_line_is_rejected(guild: Guild, job_hall: JobHall) -> None:
    process = guild.start("mcp")
    (answer,) = send_lines(process, '{"x": "' + "y" * 5_000_000)
    assert "exceeds" in answer["error"]["message"]
    assert process.returncode == 0


@pytest.mark.req("X-8")
def test_the_real_claude_code_dispatches_a_job_and_reads_its_result(
    guild_hall: GuildWithHall, job_hall: JobHall, tmp_path: Path
) -> None:
    job_hall.script([submit("a key of iron"), say()])
    script = tmp_path / "claude.yaml"
    steps = [
        call("mcp__guild__dispatch", worker="smith", task="Forge a key."),
        call("mcp__guild__wait", seconds=20),
        call("mcp__guild__result"),
        {"expect": "a key of iron", "say": "The smith made a key of iron."},
    ]
    script.write_text(json.dumps({"workers": {"*": [steps]}}))
    config = {"mcpServers": {"guild": {"command": str(GUILD), "args": ["mcp"], "env": guild_hall.environment()}}}
    with ScriptedServer(script) as server:
        ran = run_claude(
            "Have a key made.", server=server, mcp=config, cwd=job_hall.project, scratch=tmp_path / "claude"
        )
    assert ran["result"] == "The smith made a key of iron.", ran
    (job,) = guild_hall("ls", "jobs", "--json").json["jobs"]
    assert job["status"] == "completed"
