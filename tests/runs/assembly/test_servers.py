"""Workers with MCP servers, through the `guild` command: trust, rules, crashes, resume and replay."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hall.doors import serve_app
from tests.runs.places import DONE, journal, kinds, put_script, put_worker
from tests.tools.test_mcp_http import TOKEN, TokenGuard, library_server

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.paths import Home
    from tests.conftest import Guild

TOY = Path(__file__).parents[2] / "tools" / "toy_server.py"
NO_NET = {"net": {"allowed": False}}
LIBRARY = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("library")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


server.run("stdio")
'''


def put_server_worker(project: Path, mode: str = "well", *, rules: Any = NO_NET, **fields: Any) -> None:
    """Write a worker into the project that uses the toy server."""
    (project / "servers").mkdir(exist_ok=True)
    shutil.copy(TOY, project / "servers" / "toy.py")
    server = {"command": [sys.executable, "servers/toy.py", mode], **fields.pop("server", {})}
    put_worker(project, sandboxes=None, tool_rules=rules, mcp_servers={"toy": server}, **fields)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": f"toy_{name}", "with": arguments}


def tool_results(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["data"]["result"]["content"][0]["text"] for entry in entries if entry["kind"] == "tool_ended"]


def test_tools_of_a_server_are_shown_called_and_recorded(guild: Guild, project: Path) -> None:
    put_server_worker(project, server={"tools": ["echo", "look"]}, base=False)
    put_script(project, call("echo", text="a"), call("look", text="/etc/shadow servers/toy.py"), DONE)
    assert guild("trust", "--yes").code == 0
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran
    entries = journal(guild, ran.json["run"])
    assert [tool["name"] for tool in entries[0]["data"]["tools"]] == ["toy_echo", "toy_look"]
    echoed, seen = tool_results(entries)
    assert echoed == "well: a"
    looked = json.loads(seen)
    assert looked["cwd"] == str(project)
    assert looked["seen"] == {"/etc/shadow": False, "servers/toy.py": True}
    assert {name for name in looked["env"] if "GUILDHALL" in name} == set()


def test_servers_of_a_project_start_only_while_their_code_is_trusted(guild: Guild, project: Path) -> None:
    put_server_worker(project)
    put_script(project, DONE)
    refused = guild("run", "scribe", "go")
    assert refused.code == 4
    assert "mcp_servers: toy is untrusted code" in refused.err
    assert "workers/scribe.yaml (mcp_servers.toy) (not trusted yet), servers/toy.py (not trusted yet)" in refused.err
    shown = guild("trust")
    assert "MCP server toy" in shown.out
    assert f"toy: starts {sys.executable} servers/toy.py well" in shown.out
    assert guild("trust", "--yes").code == 0
    assert guild("run", "scribe", "go").code == 0
    # The instructions are not part of the trusted code.
    put_server_worker(project, instructions="Write something else.")
    assert guild("run", "scribe", "go").code == 0
    put_server_worker(project, "noisy")
    assert "workers/scribe.yaml (mcp_servers.toy) (changed since you trusted it)" in guild("run", "scribe", "go").err
    put_server_worker(project)
    (project / "servers" / "toy.py").write_text(TOY.read_text() + "\n# another\n")
    assert "servers/toy.py (changed since you trusted it)" in guild("run", "scribe", "go").err
    shutil.copy(TOY, project / "servers" / "toy.py")
    assert guild("run", "scribe", "go").code == 0
    assert guild("trust", "--forget").code == 0
    assert guild("run", "scribe", "go").code == 4


def test_a_program_that_is_a_link_out_of_the_project_is_refused(guild: Guild, project: Path, tmp_path: Path) -> None:
    put_server_worker(project)
    (project / "servers" / "toy.py").unlink()
    shutil.copy(TOY, tmp_path / "elsewhere.py")
    (project / "servers" / "toy.py").symlink_to(tmp_path / "elsewhere.py")
    put_script(project, DONE)
    assert "outside of the project" in guild("run", "scribe", "go").err


def test_a_worker_of_the_home_needs_no_trust(guild: Guild, project: Path, home: Home) -> None:
    put_script(project, call("echo", text="a"), DONE)
    (home.path / "workers").mkdir(parents=True)
    definition = {
        "instructions": "Go.",
        "tool_rules": NO_NET,
        "mcp_servers": {"toy": {"command": [sys.executable, str(TOY)]}},
    }
    (home.path / "workers" / "own.yaml").write_text(json.dumps(definition))
    ran = guild("run", "own", "go", "--output", "json")
    assert ran.code == 0, ran
    assert tool_results(journal(guild, ran.json["run"])) == ["well: a"]


def test_a_server_that_exits_at_start_fails_the_run_with_its_name_and_last_output(guild: Guild, project: Path) -> None:
    put_server_worker(project, "dead")
    put_script(project, DONE)
    guild("trust", "--yes")
    assert guild("check", "scribe").code == 0  # check starts no server
    assert guild("plan", "scribe").code == 0
    ran = guild("run", "scribe", "go")
    assert ran.code == 1
    assert "mcp_servers: toy: the server exited with code 2; its last output: warming up | no licence" in ran.err


def test_a_server_that_dies_fails_the_call_and_the_run_and_restarts_on_resume(guild: Guild, project: Path) -> None:
    put_server_worker(project)
    put_script(project, call("die"), call("echo", text="a"), call("echo", text="b"), DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 1
    assert (ran.json["status"], ran.json["error"]["code"]) == ("failed", "server_gone")
    assert "mcp_servers: toy: the server exited with code 3" in ran.json["error"]["message"]
    run = ran.json["run"]
    first, second = tool_results(journal(guild, run))
    assert "out of paper; the effect of the call is unknown" in first
    assert second.startswith("The call was not made: mcp_servers: toy")
    again = guild("resume", run, "--output", "json")
    assert again.code == 0, again
    assert tool_results(journal(guild, run))[2:] == ["well: b"]
    assert again.json["asks"] == []


def test_a_run_is_not_resumed_with_changed_tools(guild: Guild, project: Path) -> None:
    put_server_worker(project, rules={**NO_NET, "toy_echo": {"approval_required": True}})
    put_script(project, call("echo", text="a"), DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4
    run, ask = ran.json["run"], ran.json["asks"][0]["ask"]
    toy = project / "servers" / "toy.py"
    changed = TOY.read_text().replace('f"Does {name}."', '"Does all."')
    assert changed != TOY.read_text()
    toy.write_text(changed)
    guild("trust", "--yes")
    guild("answer", ask, "yes")
    refused = guild("resume", run)
    assert refused.code == 1
    assert "the tool 'toy_echo' has changed since the run started" in refused.err
    # Additional tools are no obstacle.
    toy.write_text(TOY.read_text().replace("LISTS.get(mode, TOOLS)", "LISTS['more']"))
    guild("trust", "--yes")
    assert guild("resume", run).code == 0
    assert tool_results(journal(guild, run)) == ["well: a"]


def test_a_resumed_run_does_not_call_a_server_that_was_removed_from_the_file(guild: Guild, project: Path) -> None:
    put_server_worker(project, rules={**NO_NET, "toy_echo": {"approval_required": True}})
    put_script(project, call("echo", text="a"), DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go", "--output", "json")
    put_worker(project, sandboxes=None, tool_rules=None)
    guild("answer", ran.json["asks"][0]["ask"], "yes")
    guild("resume", ran.json["run"])
    entries = journal(guild, ran.json["run"])
    assert tool_results(entries) == []
    assert "tool_refused" in kinds(entries)


def test_a_replay_starts_no_server(guild: Guild, project: Path) -> None:
    put_server_worker(project)
    put_script(project, call("echo", text="a"), DONE)
    guild("trust", "--yes")
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    shutil.rmtree(project / "servers")
    ran = guild("replay", run)
    assert ran.code == 0, ran


def test_the_exfiltration_check_asks_before_a_server_is_called(guild: Guild, project: Path) -> None:
    put_server_worker(project, rules=None)  # the server can read the project and has network access
    put_script(project, call("echo", text="a"), DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4
    assert len(ran.json["asks"]) == 1
    assert "scribe wants to call toy_echo" in ran.err
    assert "before each call of toy_*" in guild("plan", "scribe").out


@pytest.mark.parametrize(
    ("rules", "sees", "capabilities"),
    [
        (NO_NET, True, ["fs.read", "proc.exec"]),
        ({"fs.read": {"allowed": False}}, False, ["net", "proc.exec"]),
    ],
)
def test_rules_limit_what_a_server_can_read(
    guild: Guild, project: Path, rules: Any, sees: bool, capabilities: list[str]
) -> None:
    (project / "secret.txt").write_text("x")
    put_server_worker(project, rules=rules, server={"command": [sys.executable, str(TOY)]})
    put_script(project, call("look", text=str(project / "secret.txt")), DONE)
    guild("trust", "--yes")
    planned = guild("plan", "scribe", "--json").json
    assert [tool["capabilities"] for tool in planned["tools"] if tool["name"] == "toy_*"] == [capabilities]
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran
    assert list(json.loads(tool_results(journal(guild, ran.json["run"]))[0])["seen"].values()) == [sees]


def test_a_server_gets_the_named_variables_that_the_settings_allow(guild: Guild, project: Path, home: Home) -> None:
    put_server_worker(project, server={"env": ["DOCS_PLACE"]})
    put_script(project, call("look"), DONE)
    guild("trust", "--yes")
    env = {"DOCS_PLACE": "shelf 7", "OTHER_PLACE": "shelf 8"}
    refused = guild("run", "scribe", "go", env=env)
    assert "mcp_servers.toy.env: the variable DOCS_PLACE is not set or not allowed" in refused.err
    home.settings.write_text("env: [DOCS_PLACE, OTHER_PLACE]\n")
    ran = guild("run", "scribe", "go", "--output", "json", env=env)
    assert ran.code == 0, ran
    seen = json.loads(tool_results(journal(guild, ran.json["run"]))[0])["env"]
    assert seen["DOCS_PLACE"] == "shelf 7"
    assert "OTHER_PLACE" not in seen


def test_a_missing_program_is_reported_before_the_run_starts(guild: Guild, project: Path) -> None:
    put_server_worker(project, server={"command": ["no-such-program-here", "x"]})
    put_script(project, DONE)
    guild("trust", "--yes")
    result = guild("check", "scribe")
    assert result.code != 0
    assert "mcp_servers.toy.command: program not found: 'no-such-program-here'" in result.out + result.err


def test_a_server_of_the_official_library_runs_as_a_program(guild: Guild, project: Path) -> None:
    (project / "library.py").write_text(LIBRARY)
    servers = {"lib": {"command": [sys.executable, "library.py"]}}
    put_worker(project, sandboxes=None, tool_rules=NO_NET, mcp_servers=servers)
    put_script(project, {"call": "lib_add", "with": {"a": 2, "b": 3}}, DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran
    assert tool_results(journal(guild, ran.json["run"])) == ["5"]


@pytest.fixture
def address() -> Generator[str]:
    """Address of a server of the official library that runs in a thread."""
    ready, done, found = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        app = TokenGuard(library_server().streamable_http_app(json_response=True))
        async with serve_app(app, lifespan="on") as url:
            found.append(f"{url}/mcp")
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    done.set()
    thread.join(10)


def test_a_server_with_a_url_is_called_with_its_token(guild: Guild, project: Path, home: Home, address: str) -> None:
    servers = {"far": {"url": address, "env": ["FAR_PASS"], "tools": ["add"]}}
    put_worker(project, sandboxes=None, tool_rules=None, base=False, mcp_servers=servers)
    put_script(project, {"call": "far_add", "with": {"a": 2, "b": 3}}, DONE)
    home.path.mkdir(parents=True)
    home.settings.write_text("env: [FAR_PASS]\n")
    assert "mcp_servers: far is untrusted code" in guild("run", "scribe", "go", env={"FAR_PASS": "x"}).err
    guild("trust", "--yes")
    wrong = guild("run", "scribe", "go", env={"FAR_PASS": "wrong"})
    assert (wrong.code, "far: the server responded with HTTP status 401" in wrong.err) == (1, True)
    ran = guild("run", "scribe", "go", "--output", "json", env={"FAR_PASS": TOKEN})
    assert ran.code == 0, ran
    entries = journal(guild, ran.json["run"])
    assert [tool["name"] for tool in entries[0]["data"]["tools"]] == ["far_add"]
    assert tool_results(entries) == ["5"]
    assert TOKEN not in json.dumps(entries)
    assert f"far: connects to {address} with FAR_PASS" in guild("plan", "scribe").out
    many = {"far": {"url": address, "env": ["A", "B"]}}
    put_worker(project, mcp_servers=many)
    assert "with `url`, `env` names at most one variable" in guild("check", "scribe").err


def test_a_rule_may_name_a_tool_of_a_server(guild: Guild, project: Path) -> None:
    put_server_worker(project, rules={**NO_NET, "toy_echo": {"allowed": False}})
    put_script(project, call("echo", text="a"), DONE)
    guild("trust", "--yes")
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    assert "tool_refused" in kinds(journal(guild, run))
    put_server_worker(project, rules={**NO_NET, "toy_ecco": {"allowed": False}})
    assert "tool_rules.toy_ecco: unknown capability or tool" in guild("run", "scribe", "go").err


def test_guild_test_refuses_workers_with_servers(guild: Guild, project: Path) -> None:
    put_server_worker(project)
    put_script(project, DONE)
    guild("trust", "--yes")
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    (project / "tests").mkdir()
    (project / "tests" / "a.yaml").write_text(guild("script", run).out)
    guild("trust", "--yes")
    ran = guild("test")
    assert ran.code == 1
    assert "mcp_servers: a test cannot use servers (toy)" in ran.out + ran.err
