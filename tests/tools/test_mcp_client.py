"""MCP servers over standard streams: real programs, and every way in which they can fail."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import GuildError, ServerGone, ToolUnavailable
from guildhall.sandbox.jail import Confinement
from guildhall.sandbox.mounts import installation_folders
from guildhall.sandbox.view import Folder, View
from guildhall.tools.mcp import transports
from guildhall.tools.mcp.client import Server, ServerHandler, Servers
from guildhall.tools.mcp.model import ServerSpec, parse_result, tool_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOY = Path(__file__).with_name("toy_server.py")
TOOLS = ["toy_echo", "toy_die", "toy_look", "toy_wait", "toy_flood"]


def spec(place: Path, mode: str = "well", **fields: Any) -> ServerSpec:
    view = View(cwd=place, folders=(Folder(path=place),))
    confinement = Confinement(view=view, read_only=(TOY.parent, *installation_folders(Path(sys.executable))))
    command = (sys.executable, str(TOY), mode)
    return ServerSpec(**{"name": "toy", "command": command, "confinement": confinement, **fields})


def with_server(
    place: Path, mode: str, work: Callable[[Server], Awaitable[Any]], *, timeout_s: float = 20, **fields: Any
) -> Any:
    async def main() -> Any:
        server = await Server.connect(spec(place, mode, **fields), start_timeout_s=20, call_timeout_s=timeout_s)
        try:
            return await work(server)
        finally:
            await server.close()

    return asyncio.run(main())


async def call(server: Server, name: str, **arguments: Any) -> Any:
    tool = next(tool for tool in server.tools if tool.name == f"toy_{name}")
    assert isinstance(tool.handler, ServerHandler)
    return await tool.handler.call(arguments)


def test_a_server_lists_its_tools_and_is_called(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        assert [tool.name for tool in server.tools] == TOOLS
        echo = server.tools[0]
        assert (echo.description, echo.runs_in) == ("Does echo.", "hall")
        assert [tool.repeatable for tool in server.tools] == [True, False, False, False, False]
        assert all(tool.capabilities == {"net"} for tool in server.tools)
        both = await asyncio.gather(call(server, "echo", text="a"), call(server, "echo", text="b"))
        assert [result.text for result in both] == ["well: a", "well: b"]

    with_server(tmp_path, "well", work, capabilities=frozenset({"net"}))


@pytest.mark.parametrize("mode", ["noisy", "pages", "modern"])
def test_servers_with_noise_pages_or_a_newer_protocol_work(tmp_path: Path, mode: str) -> None:
    async def work(server: Server) -> None:
        assert [tool.name for tool in server.tools] == TOOLS
        assert (await call(server, "echo", text="x")).text == f"{mode}: x"

    with_server(tmp_path, mode, work)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dead", "exited with code 2; its last output: warming up | no licence | }"),
        ("silent", "the server was not ready after 0.3 s"),
        ("endless-line", "was killed after a message of more than 16,777,216 bytes"),
        ("endless-lines", "was killed after more than 100,000 consecutive lines that are not responses"),
        ("twice", "invalid tool list: two tools are named 'echo'"),
        ("nameless", "invalid tool list: a tool name has 1 to 200 printable characters"),
        ("no-object", "invalid input schema of the tool 'echo': its type is not \"object\""),
        ("wrong-schema", "invalid input schema of the tool 'echo': 5 is not of type"),
        ("no-schema", "invalid input schema of the tool 'echo': not a JSON object"),
        ("deep", "invalid input schema of the tool 'echo': nested too deeply"),
        ("many", "tool list too large: 600 tools"),
        ("long", "at most 500 tools with 2,000,000 characters are allowed"),
        ("endless", "invalid tool list: more than 100 pages"),
        ("no-list", "invalid tool list: `tools` is not an array"),
    ],
)
def test_an_unusable_server_is_reported_with_its_name(tmp_path: Path, mode: str, message: str) -> None:
    timeout_s = 0.3 if mode == "silent" else 20
    with pytest.raises(ToolUnavailable) as caught:
        asyncio.run(Server.connect(spec(tmp_path, mode, worker_file="w.yaml"), start_timeout_s=timeout_s))
    assert caught.value.message.startswith("mcp_servers: toy: ")
    assert message in caught.value.message
    assert caught.value.where == "w.yaml"


def test_only_the_named_tools_are_loaded_and_validated(tmp_path: Path) -> None:
    async def work(server: Server) -> list[str]:
        return [tool.name for tool in server.tools]

    assert with_server(tmp_path, "many", work, tools=("t7", "t3")) == ["toy_t3", "toy_t7"]
    assert with_server(tmp_path, "odd", work) == ["toy_a_b_c", tool_name("toy", "x" * 100), "toy_echo"]
    with pytest.raises(ToolUnavailable, match="unknown tool 'ecco'") as caught:
        with_server(tmp_path, "well", work, tools=("ecco",))
    assert caught.value.hint == "Tools of the server: die, echo, flood, look, wait."


def test_tool_names_are_valid_for_every_model() -> None:
    long = tool_name("docs", "x" * 100)
    assert len(long) == 64
    assert long != tool_name("docs", "x" * 101)
    assert tool_name("my.docs", "a/b c") == "my_docs_a_b_c"


def test_a_server_that_dies_in_a_call_fails_the_call_and_then_is_gone(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        waiting = asyncio.create_task(call(server, "echo", text="a"))
        assert (await waiting).text == "well: a"
        broken = await call(server, "die")
        assert broken.is_error
        message = "exited with code 3; its last output: out of paper"
        assert broken.text == f"The server toy {message}; the effect of the call is unknown."
        with pytest.raises(ServerGone, match="mcp_servers: toy: the server exited"):
            await call(server, "echo", text="b")

    with_server(tmp_path, "well", work)


def test_an_unanswered_call_times_out(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        late = await call(server, "wait")
        assert late.text == "The server toy did not respond within 0.2 s; the effect of the call is unknown."

    with_server(tmp_path, "well", work, timeout_s=0.2)


def test_a_huge_answer_ends_only_the_server(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        result = await call(server, "flood")
        assert result.is_error
        assert "more than 16,777,216 bytes" in result.text

    with_server(tmp_path, "well", work)


def test_requests_of_a_server_are_refused(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        replies = json.loads((await call(server, "echo")).text)
        assert replies[0]["error"]["code"] == -32601
        assert replies[1] == {"jsonrpc": "2.0", "id": "s2", "result": {}}

    with_server(tmp_path, "asks", work)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("rubbish", "[invalid content block: the data is not base64]\n[unsupported content block]"),
        ("no-result", "rejected the call: no reason given"),
        ("refuses", "The server toy rejected the call: closed for  [31mlunch"),
    ],
)
def test_an_invalid_answer_is_reported_to_the_model(tmp_path: Path, mode: str, message: str) -> None:
    async def work(server: Server) -> str:
        return (await call(server, "echo")).text

    assert message in with_server(tmp_path, mode, work)


def test_a_program_has_only_its_folders_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HALL", "x")
    home, work_place = tmp_path / "home", tmp_path / "work"
    for folder in (home, work_place, work_place / "hall"):
        folder.mkdir()
    (home / "hall.json").touch()
    (work_place / "hall" / "hall.json").touch()
    (work_place / "a.txt").touch()
    base_spec = spec(work_place)
    assert base_spec.confinement is not None
    view = replace(base_spec.confinement.view, hidden=(home, work_place / "hall"))
    confinement = replace(base_spec.confinement, view=view, env={"DOCS_TOKEN": "t"})
    names = (home / "hall.json", work_place / "hall" / "hall.json", work_place / "a.txt", Path("/etc/shadow"))

    async def work(server: Server) -> Any:
        return json.loads((await call(server, "look", text=" ".join(map(str, names)))).text)

    seen = with_server(work_place, "well", work, confinement=confinement)
    assert list(seen["seen"].values()) == [False, False, True, False]
    assert seen["cwd"] == str(work_place)
    assert seen["env"]["DOCS_TOKEN"] == "t"
    assert "SECRET_OF_THE_HALL" not in seen["env"]
    assert not any(name.startswith(("GUILDHALL", "GIT_DIR")) for name in seen["env"])


@pytest.mark.parametrize("mode", ["well", "stays"])
def test_a_closed_server_exits_or_is_killed(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        server = await Server.connect(spec(tmp_path, mode))
        transport = server._transport
        assert isinstance(transport, transports.StdioTransport)
        process = transport._confined.process
        began = time.monotonic()
        await server.close()
        assert process.returncode is not None
        assert time.monotonic() - began < 8
        with pytest.raises(ServerGone):
            await call(server, "echo")

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_server_usable(tmp_path: Path) -> None:
    async def main() -> None:
        server = await Server.connect(spec(tmp_path))
        try:
            waiting = asyncio.create_task(call(server, "echo", text="a"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await call(server, "echo", text="b")).text == "well: b"
        finally:
            await server.close()

    asyncio.run(main())


def test_either_all_servers_are_connected_or_none(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ToolUnavailable, match="no licence"):
            await Servers.connect([spec(tmp_path), spec(tmp_path, "dead", name="bad")])
        both = await Servers.connect([spec(tmp_path), spec(tmp_path, name="two")])
        assert list(both.tools) == ["toy", "two"]
        assert both.tools["two"][0].name == "two_echo"
        await both.close()

    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(main())
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GuildError) as caught:
        asyncio.run(Server.connect(spec(tmp_path, command=("/usr/bin/no-such-program",))))
    assert "mcp_servers: toy" in caught.value.message


@pytest.mark.parametrize(
    ("answer", "text", "is_error"),
    [
        ({"content": [{"type": "text", "text": "a"}], "isError": True}, "a", True),
        ({"content": [], "structuredContent": {"a": "é"}}, '{"a": "é"}', False),
        ({"content": [{"type": "resource", "resource": {"uri": "x", "text": "t"}}]}, "t", False),
        ({"content": [{"type": "resource", "resource": {"uri": "x", "blob": "YQ=="}}]}, "[application/octet-stream, 1 bytes]", False),  # noqa: E501
        ({"content": [{"type": "resource_link", "uri": "doc://1", "name": "n"}]}, "[resource link: doc://1]", False),
        ({"content": [{"type": "audio", "data": "YQ==", "mimeType": "audio/wav"}]}, "[audio/wav, 1 bytes]", False),
        ({"content": [{"type": "text", "text": "\ud800"}]}, "\ufffd", False),
        ({"content": "x"}, "done", False),
        ({}, "done", False),
        ({"resultType": "input_required"}, "The server requested further input, which is not supported.", True),
    ],
)  # fmt: skip
def test_results_are_converted_for_the_model(answer: Any, text: str, is_error: bool) -> None:
    result = parse_result(answer)
    assert (result.text, result.is_error) == (text, is_error)
