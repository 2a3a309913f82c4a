"""The tool door over MCP on a real socket, with the official client and by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from guildhall.core.errors import ServerGone
from guildhall.hall import doors as endpoint
from guildhall.room.service import Rooms
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.room.tools import RoomTools, room_tools
from guildhall.rpc.asgi_requests import MAX_BODY_BYTES
from guildhall.runs.owner_hooks import RunHooks
from guildhall.runs.record.entries import ToolStarted
from tests.conftest import BLOCKED, Guild
from tests.hall.doors import MODERN, PNG, SampleTools, ToolDoorHall, open_raw_client, serve_tool_door, write_worker
from tests.rpc.hostile import CALL, CASES, NEW, UNANSWERED, message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.paths import Home
    from guildhall.room.service import Room

MODES = ["legacy", "auto", MODERN]
DESK = ["add", "note", "hold", "picture", "broken"]


@asynccontextmanager
async def open_official_client(url: str, token: str, mode: str) -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


# The official client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.req("WKR-16")
def test_the_official_client_lists_and_calls_exactly_the_tools_of_the_run(home: Home, project: Path, mode: str) -> None:
    write_worker(project, "clerk", sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            async with open_official_client(f"{hall.url}/tools/", token, mode) as client:
                tools = (await client.list_tools()).tools
                shown = [tool.name for tool in tools]
                assert shown == ["sandbox_list", "sandbox_read_text", "sandbox_write_text", *DESK]
                assert tools[3].description == "Adds two numbers."
                assert tools[3].input_schema["required"] == ["a", "b"]
                result = await client.call_tool("add", {"a": 2, "b": 3})
                assert (result.content[0].text, result.is_error) == ("5", False)
                seen = await client.call_tool("picture", {})
                assert [block.type for block in seen.content] == ["text", "image", "resource"]
                assert base64.b64decode(seen.content[1].data) == PNG
                assert base64.b64decode(seen.content[2].resource.blob) == b"%PDF"
                failed = await client.call_tool("broken", {"why": "no ink"})
                assert failed.is_error
                assert "no ink" in failed.content[0].text
                wrong = await client.call_tool("add", {"a": "x", "b": 1})
                assert wrong.is_error
                with pytest.raises(MCPError, match="unknown tool 'sum'"):
                    await client.call_tool("sum", {})
            assert [entry["tool"] for entry in hall.read_entries(run, "tool_started")] == ["add", "picture", "broken"]
            assert [entry["tool"] for entry in hall.read_entries(run, "tool_refused")] == ["add"]

    asyncio.run(work())


@pytest.mark.req("AW-20")
def test_only_the_token_identifies_the_run(home: Home, project: Path) -> None:
    write_worker(project, "one")
    write_worker(project, "other", toolboxes=[], sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            first, mine = await hall.start_run("one", sample.toolbox())
            second, theirs = await hall.start_run("other")
            assert mine != theirs
            async with (
                open_raw_client(f"{hall.url}/tools/", mine) as me,
                open_raw_client(f"{hall.url}/tools/", theirs) as they,
            ):
                assert [tool["name"] for tool in (await me.ask("tools/list")).json()["result"]["tools"]] == DESK
                shown = (await they.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in shown] == ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
                assert (await they.call("note", {"number": 1}))["error"]["code"] == -32602
                claimed = {"name": "note", "arguments": {"number": 2}, "run": second, "_meta": {"run": second}}
                assert "result" in (await me.ask("tools/call", claimed)).json()
            assert len(hall.read_entries(first, "tool_started")) == 1
            assert hall.read_entries(second, "tool_started") == []
            # The run is not in a room, so the server does not exist.
            async with open_raw_client(f"{hall.url}/room/", mine) as room:
                assert (await room.ask("tools/list")).status_code == 404

    asyncio.run(work())
    assert sample.done == [2]


def test_parallel_calls_of_many_processes_are_executed_exactly_once(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample, count = SampleTools(), 32

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            modes = [MODES[0], MODERN]
            started = [
                await _start_client(_RAW_CLIENT, f"{hall.url}/tools/", token, modes[i % 2], i) for i in range(count)
            ]
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
            assert {await process.wait() for process in started} == {0}
            assert len(hall.read_entries(run, "tool_ended")) == count * 3

    asyncio.run(work())
    assert sorted(sample.done) == sorted(place * 10 + number for place in range(count) for number in range(3))


# A light client by hand with one connection, so that 32 of them can run at once.
_RAW_CLIENT = """
import http.client, json, sys, urllib.parse

url, place = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2])
token, mode = sys.stdin.readline().strip(), sys.stdin.readline().strip()
sys.stdin.read()
there = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
for number in range(3):
    params = {"name": "note", "arguments": {"number": place * 10 + number}}
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    if mode != "legacy":
        key = "io.modelcontextprotocol/"
        params["_meta"] = {key + "protocolVersion": mode, key + "clientCapabilities": {}}
        headers |= {"mcp-protocol-version": mode, "mcp-method": "tools/call", "mcp-name": "note"}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    there.request("POST", url.path, json.dumps(message), headers)
    answer = json.loads(there.getresponse().read())
    assert answer["result"]["content"][0]["text"] == f"noted {place * 10 + number}", answer
"""


# A client that sends messages to a room.
_SENDER = (
    _RAW_CLIENT.replace('"note"', '"channel_send"')
    .replace('{"number": place * 10 + number}', '{"message": f"{place}.{number}"}')
    .partition("    assert")[0]
    + '    assert not answer["result"]["isError"], answer\n'
)


async def _start_client(code: str, url: str, token: str, mode: str, place: int) -> asyncio.subprocess.Process:
    """Start a client process. It begins when its input is closed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, url, str(place),
        stdin=asyncio.subprocess.PIPE, env={**Guild.environment(), "PYTHONPATH": str(BLOCKED)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"{token}\n{mode}\n".encode())
    return process


# Protocol versions, by hand


@pytest.mark.parametrize(
    ("asked", "given"),
    [("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"), ("2024-11-05", "2025-11-25"), (7, "2025-11-25")],
)
def test_a_handshake_agrees_on_a_version(home: Home, project: Path, asked: Any, given: str) -> None:
    write_worker(project, "clerk")

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", SampleTools().toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                about = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}}
                reply = await http.ask("initialize", about)
                assert reply.status_code == 200
                assert "mcp-session-id" not in reply.headers
                result = reply.json()["result"]
                assert result["protocolVersion"] == given
                assert result["serverInfo"] == {"name": "guildhall-tools", "version": "1.2.3"}
                assert set(result) == {"protocolVersion", "capabilities", "serverInfo"}
                note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
                done = await http.post(note, {"mcp-protocol-version": given})
                assert (done.status_code, done.content) == (202, b"")
                listed = await http.ask("tools/list", mcp_protocol_version=given)
                assert set(listed.json()["result"]) == {"tools"}
                assert (await http.ask("ping", mcp_protocol_version=given)).json()["result"] == {}

    asyncio.run(work())


def test_the_newest_protocol_has_no_handshake_and_types_its_results(home: Home, project: Path) -> None:
    write_worker(project, "clerk")

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", SampleTools().toolbox())
            async with open_raw_client(f"{hall.url}/tools", token) as http:
                found = (await http.ask("server/discover", modern=True)).json()["result"]
                assert found["supportedVersions"] == [MODERN]
                assert (found["resultType"], found["ttlMs"], found["cacheScope"]) == ("complete", 0, "private")
                ping = await http.ask("ping", modern=True)  # removed in this version
                assert (ping.status_code, ping.json()["error"]["code"]) == (404, -32601)
                listed = (await http.ask("tools/list", modern=True)).json()["result"]
                assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
                called = await http.call("add", {"a": 1, "b": 1}, modern=True)
                assert called["result"]["resultType"] == "complete"
                gone = await http.ask("initialize", {}, modern=True)
                assert (gone.status_code, gone.json()["error"]["code"]) == (404, -32601)
                assert (await http.ask("server/discover")).json()["error"]["code"] == -32601

    asyncio.run(work())


def test_hostile_messages_get_an_error_and_have_no_effect(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                for case in CASES:
                    reply = await http.post(case.body, case.headers)
                    context = (case.body[:80], case.headers, reply.status_code, reply.text[:300])
                    assert (reply.status_code, reply.json()["error"]["code"]) == (case.status, case.code), context
                for body in UNANSWERED:
                    assert (await http.post(body)).status_code == 202
                named = {**NEW, "mcp-method": "tools/call", "mcp-name": "=?base64?bm90ZQ==?="}
                assert "result" in (await http.post(message("tools/call", params=CALL), named)).json()
            assert len(hall.read_entries(run, "tool_started")) == 1

    asyncio.run(work())
    assert sample.done == [1]


def test_invalid_http_requests_are_refused(home: Home, project: Path) -> None:
    write_worker(project, "clerk")

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", SampleTools().toolbox())
            where = f"{hall.url}/tools/"
            own = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            expected: list[tuple[str, str, dict[str, str], bytes, int]] = [
                ("GET", where, own, b"", 405),
                ("DELETE", where, own, b"", 405),
                ("PUT", where, own, message(), 405),
                ("POST", where, {**own, "authorization": ""}, message(), 401),
                ("POST", where, {**own, "authorization": "Bearer"}, message(), 401),
                ("POST", where, {**own, "authorization": f"Basic {token}"}, message(), 401),
                ("POST", where, {**own, "authorization": f"Bearer {token}x"}, message(), 401),
                ("POST", where, {**own, "authorization": f"Bearer {token[:-1]}"}, message(), 401),
                ("POST", where, {**own, "host": "evil.example"}, message(), 421),
                ("POST", where, {**own, "host": "127.0.0.1.evil.example:80"}, message(), 421),
                ("POST", where, {**own, "host": "[::1"}, message(), 421),
                ("POST", where, {**own, "host": "127.0.0.1:notaport"}, message(), 421),
                ("POST", where, {**own, "origin": "https://evil.example"}, message(), 403),
                ("POST", where, {**own, "origin": "null"}, message(), 403),
                ("POST", where, {**own, "content-type": "text/plain"}, message(), 415),
                ("POST", f"{hall.url}/../mcp/tools/", own, message(), 200),
                ("POST", f"{hall.url}/", own, message(), 404),
                ("POST", f"{hall.url}/tools/more/", own, message(), 404),
                ("POST", f"{hall.url}/TOOLS/", own, message(), 404),
                ("POST", where, own, b" " * (MAX_BODY_BYTES + 1), 413),
                ("POST", where, {**own, "origin": "http://localhost:9999"}, message(), 200),
                ("POST", where, {**own, "content-type": "application/json; charset=utf-8"}, message(), 200),
            ]
            async with httpx2.AsyncClient(trust_env=False) as http:
                for method, url, headers, body, status in expected:
                    reply = await http.request(method, url, headers=headers, content=body)
                    assert reply.status_code == status, (method, url, headers, reply.text[:200])
                    if status >= 400:
                        assert reply.json()["error"]["message"]
                        # A connection is kept only for requests without a body: OpenCode starts with a GET, and sends
                        # its next request before it notices that the connection is closed.
                        assert ("close" in reply.headers.get("connection", "")) == bool(body), method
                assert (await http.get(where, headers=own)).headers["allow"] == "POST"
                assert (await http.post(where)).headers["www-authenticate"] == "Bearer"

    asyncio.run(work())


def test_an_endless_chunked_body_is_cut_at_the_limit(home: Home, project: Path) -> None:
    write_worker(project, "clerk")

    sent = 0

    async def long() -> AsyncGenerator[bytes]:
        nonlocal sent
        for _ in range(2000):
            sent += 65_536
            yield b"x" * 65_536

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", SampleTools().toolbox())
            async with httpx2.AsyncClient(trust_env=False) as http:
                own = {"authorization": f"Bearer {token}", "content-type": "application/json"}
                try:
                    reply = await http.post(f"{hall.url}/tools/", headers=own, content=long())
                    assert reply.status_code == 413
                except (httpx2.WriteError, httpx2.ReadError):
                    pass  # the connection was closed while we were still writing
            async with open_raw_client(f"{hall.url}/tools/", token) as after:
                assert (await after.ask("ping")).status_code == 200
            assert sent < 64_000_000  # the buffers; nothing more is read

    asyncio.run(work())


# Repeated calls


def test_a_repeated_call_id_is_the_same_call_even_while_it_runs(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                twice = [asyncio.create_task(http.call("hold", {"number": 7}, id="toolu_1")) for _ in range(2)]
                await asyncio.wait_for(sample.has_started.wait(), 5)
                other = await http.call("hold", {"number": 8}, id="toolu_1")
                assert other["error"]["message"] == "invalid call id: the run has another call with this id"
                sample.may_finish.set()
                first, second = await asyncio.gather(*twice)
                assert first["result"] == second["result"]
                assert (await http.call("hold", {"number": 7}, id="toolu_1"))["result"] == first["result"]
                assert "error" in await http.call("hold", {"number": 9}, id="toolu_1")
                params = {"name": "note", "arguments": {"number": 5}, "_meta": {"callId": "call-1"}}
                for _ in range(2):
                    assert "result" in (await http.ask("tools/call", params)).json()
                for odd in ("x" * 5000, "line\nbreak", "\ud800"):
                    for _ in range(2):
                        assert "result" in await http.call("note", {"number": 6}, id=odd)
                for _ in range(2):
                    await http.call("note", {"number": 4})
            keys = [entry.key for entry in hall.hall.history.journal(run).all(ToolStarted)]
            assert keys[:2] == ["mcp/toolu_1", "mcp/call-1"]

    asyncio.run(work())
    assert sample.done == [7, 5, 6, 6, 6, 4, 4]


def test_a_disconnected_client_does_not_stop_its_call(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                gone = asyncio.create_task(http.call("hold", {"number": 1}, id="a"))
                await asyncio.wait_for(sample.has_started.wait(), 5)
                gone.cancel()
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                again = asyncio.create_task(http.call("hold", {"number": 1}, id="a"))
                await asyncio.sleep(0.02)
                sample.may_finish.set()
                assert (await again)["result"]["content"][0]["text"] == "held 1"

    asyncio.run(work())
    assert sample.done == [1]


def test_excess_calls_are_refused_and_running_calls_continue(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                door = hall.hall.runtimes.tokens.find(token)
                assert door is not None
                held = [asyncio.create_task(http.call("hold", {"number": n})) for n in range(5)]
                await asyncio.wait_for(sample.has_started.wait(), 5)
                filler = next(iter(door.calls.values()))
                door.calls.update({f"more-{n}": filler for n in range(endpoint.MAX_CALLS)})
                assert "too many concurrent calls" in (await http.call("note", {"number": 9}))["error"]["message"]
                for n in range(endpoint.MAX_CALLS):
                    del door.calls[f"more-{n}"]
                sample.may_finish.set()
                assert all("result" in answer for answer in await asyncio.gather(*held))

    asyncio.run(work())
    assert sorted(sample.done) == [0, 1, 2, 3, 4]


# The token is valid as long as the run is running


@pytest.mark.parametrize("ends", ["paused", "cancelled"])
def test_a_stopped_run_invalidates_its_token_and_ends_its_calls(home: Home, project: Path, ends: str) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            _, another = await hall.start_run("clerk", sample.toolbox())
            async with (
                open_raw_client(f"{hall.url}/tools/", token) as http,
                open_raw_client(f"{hall.url}/tools/", another) as other,
            ):
                waiting = asyncio.create_task(http.call("hold", {"number": 1}))
                await asyncio.wait_for(sample.has_started.wait(), 5)
                stop = hall.hall.runs.pause(run) if ends == "paused" else hall.hall.runs.cancel(run)
                stopping = asyncio.create_task(stop)
                await asyncio.sleep(0.01)
                assert (await http.ask("ping")).status_code == 401  # at once, while running calls may still finish
                assert "the run has ended" in (await waiting)["error"]["message"]
                await stopping
                assert (await http.call("note", {"number": 2}))["error"]["message"].startswith("invalid token")
                assert (await other.ask("ping")).status_code == 200
            assert hall.hall.runtimes.tokens.find(token) is None

    asyncio.run(work())
    assert sample.done == []


@pytest.mark.parametrize("ends", ["paused", "cancelled"])
def test_a_request_completed_after_the_run_has_no_effect(home: Home, project: Path, ends: str) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()
    body = message("tools/call", params={"name": "note", "arguments": {"number": 1}})

    async def work() -> bytes:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(hall.url).port)
            head = [
                "POST /mcp/tools/ HTTP/1.1",
                "host: 127.0.0.1",
                f"authorization: Bearer {token}",
                "content-type: application/json",
                f"content-length: {len(body)}",
            ]
            writer.write("\r\n".join([*head, "", ""]).encode() + body[:10])
            await asyncio.sleep(0.05)
            await (hall.hall.runs.pause(run) if ends == "paused" else hall.hall.runs.cancel(run))
            writer.write(body[10:])
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            return answer

    assert asyncio.run(work()).startswith(b"HTTP/1.1 401 ")
    assert sample.done == []


def test_a_resumed_run_has_a_new_token(home: Home, project: Path) -> None:
    write_worker(project, "clerk")
    sample = SampleTools()

    async def work() -> None:
        from guildhall.core.request_frame import Frame

        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                assert "result" in await http.call("note", {"number": 1}, id="a")
            await hall.hall.runs.pause(run)
            again = await hall.hall.runs.prepare_resume(run, Frame.here(project, {}), [sample.toolbox()])
            hall.hall.runs.launch(again)
            fresh = hall.hall.runs.token(run)
            assert fresh != token
            async with (
                open_raw_client(f"{hall.url}/tools/", token) as old,
                open_raw_client(f"{hall.url}/tools/", fresh) as new,
            ):
                assert (await old.ask("ping")).status_code == 401
                text = (await new.call("note", {"number": 1}, id="a"))["result"]["content"][0]["text"]
                assert text == "noted 1"  # from the journal

    asyncio.run(work())
    assert sample.done == [1]


def test_tokens_are_long_and_never_stored(home: Home, project: Path) -> None:
    write_worker(project, "clerk")

    async def work() -> str:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("clerk", SampleTools().toolbox())
            door = hall.hall.runtimes.tokens.find(token)
            assert token not in repr(door)
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                await http.call("add", {"a": 1, "b": 2})
            assert hall.read_entries(run, "tool_ended")
            return token

    token = asyncio.run(work())
    assert len(token) >= 43
    for path in home.path.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_rules_apply_to_calls_over_http(home: Home, project: Path) -> None:
    write_worker(project, "clerk", tool_rules={"note": {"allowed": False}})
    sample = SampleTools()

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", sample.toolbox())
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                reply = await http.call("note", {"number": 1})
                assert "note" in reply["error"]["message"], "a forbidden tool is not on the server"

    asyncio.run(work())
    assert sample.done == []


# Other clients, and tools of servers


def test_the_client_of_pydantic_ai_lists_and_calls_the_tools(home: Home, project: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    write_worker(project, "clerk")
    sample, shown = SampleTools(), list[str]()

    def model(messages: list[Any], info: Any) -> ModelResponse:
        shown[:] = [tool.name for tool in info.function_tools]
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("note", {"number": 3})])
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            _, token = await hall.start_run("clerk", sample.toolbox())
            tools = MCPToolset(f"{hall.url}/tools/", headers={"authorization": f"Bearer {token}"})
            async with tools:
                result = await Agent(FunctionModel(model), toolsets=[tools]).run("go")
            assert result.output == "noted 3"

    asyncio.run(work())
    assert sorted(shown) == sorted(DESK)
    assert sample.done == [3]


def test_tools_of_mcp_servers_are_listed_and_called(home: Home, project: Path) -> None:
    toy = Path(__file__).parents[1] / "tools" / "toy_server.py"
    (home.path / "workers").mkdir(parents=True)
    server = {"command": [sys.executable, str(toy)], "tools": ["echo"]}
    worker = {
        "instructions": "Go.",
        "base": False,
        "tool_rules": {"net": {"allowed": False}},
        "mcp_servers": {"toy": server},
    }
    (home.path / "workers" / "proxy.yaml").write_text(json.dumps(worker))

    async def work() -> None:
        async with serve_tool_door(home, project) as hall:
            run, token = await hall.start_run("proxy")
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                listed = (await http.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in listed] == ["toy_echo"]
                assert (await http.call("toy_echo", {"text": "a"}))["result"]["content"][0]["text"] == "well: a"
            assert len(hall.read_entries(run, "tool_ended")) == 1

    asyncio.run(work())


# The room


class SharedRoom:
    """A room with agents, each with its own run."""

    def __init__(self, hall: ToolDoorHall, room: Room) -> None:
        self.room = room
        self._hall = hall

    async def start_agent(self, agent: str, worker: str) -> tuple[str, str]:
        """Start a run for an agent, and return its id and its token."""
        room = self.room
        hooks = RunHooks(
            tools=room_tools(),
            executor=lambda run: RoomTools(room, agent, run).call,
        )
        return await self._hall.start_run(worker, hooks=hooks)

    def messages(self) -> list[tuple[str, str]]:
        return [(message.sender, message.content) for message in self.room.list_messages()]


@asynccontextmanager
async def open_room(home: Home, project: Path, *agents: str) -> AsyncGenerator[tuple[ToolDoorHall, SharedRoom]]:
    write_worker(project, "clerk", toolboxes=[], sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    async with serve_tool_door(home, project) as hall:
        rooms = Rooms(hall.hall.store, hall.hall.clock)
        yield hall, SharedRoom(hall, await rooms.open("/project", "review", "main", agents))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.req("AW-18", "AW-19")
def test_an_agent_reaches_its_room_at_a_separate_server(home: Home, project: Path, mode: str) -> None:
    async def work() -> None:
        async with open_room(home, project, "coder", "reviewer") as (hall, room):
            _, token = await room.start_agent("coder", "clerk")
            async with open_official_client(f"{hall.url}/room/", token, mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == list(ROOM_TOOLS)
                sent = await client.call_tool("channel_send", {"message": "@reviewer look"})
                assert not sent.is_error, sent
                assert "look" in (await client.call_tool("channel_read", {})).content[0].text
                with pytest.raises(MCPError, match="unknown tool 'sandbox_list'"):
                    await client.call_tool("sandbox_list", {})
            async with open_raw_client(f"{hall.url}/tools/", token) as http:
                shown = (await http.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in shown] == ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
                assert (await http.call("channel_send", {"message": "x"}))["error"]["code"] == -32602
            assert room.messages() == [("coder", "@reviewer look")]

    asyncio.run(work())


@pytest.mark.req("AW-20")
def test_only_the_token_identifies_the_sender(home: Home, project: Path) -> None:
    async def work() -> None:
        async with open_room(home, project, "coder", "reviewer") as (hall, room):
            run, coder = await room.start_agent("coder", "clerk")
            _, reviewer = await room.start_agent("reviewer", "clerk")
            async with (
                open_raw_client(f"{hall.url}/room/", coder) as one,
                open_raw_client(f"{hall.url}/room/", reviewer) as other,
            ):
                claim = {"message": "I am the reviewer", "sender": "reviewer"}
                assert (await one.call("channel_send", claim))["result"]["isError"]  # the argument does not exist
                params = {"name": "channel_send", "arguments": {"message": "one"}, "agent": "reviewer"}
                meta = {"agent": "reviewer", "run": run, "claudecode/toolUseId": "t-1"}
                for _ in range(2):  # a repeated call sends one message
                    done = await one.ask("tools/call", {**params, "_meta": meta}, x_agent="reviewer")
                    assert "result" in done.json()
                await other.call("channel_send", {"message": "two"}, id="t-1")  # ids of different runs are independent
            assert room.messages() == [("coder", "one"), ("reviewer", "two")]

    asyncio.run(work())


def test_a_fatal_call_over_http_fails_the_run(home: Home, project: Path) -> None:
    async def work() -> None:
        async with open_room(home, project, "coder") as (hall, _):

            async def fail(tool: Any, call: Any) -> Any:
                raise ServerGone("the server of this tool is gone")

            tools = room_tools()
            hooks = RunHooks(tools=tools, executor=lambda run: fail)
            run, token = await hall.start_run("clerk", hooks=hooks)
            async with open_raw_client(f"{hall.url}/room/", token) as http:
                assert "is gone" in (await http.call("channel_send", {"message": "x"}))["error"]["message"]
                async with asyncio.timeout(5):
                    while hall.hall.runs.is_alive(run):  # noqa: ASYNC110 - there is no event to wait for
                        await asyncio.sleep(0.01)
                assert (await http.ask("tools/list")).status_code == 401
            ended = hall.hall.history.get(run)
            assert (ended.status, ended.error and "is gone" in ended.error["message"]) == ("failed", True)

    asyncio.run(work())


def test_parallel_messages_of_many_processes_are_delivered_exactly_once(home: Home, project: Path) -> None:
    async def work() -> None:
        async with open_room(home, project, *(f"agent{place}" for place in range(8))) as (hall, room):
            tokens = [(await room.start_agent(f"agent{place}", "clerk"))[1] for place in range(8)]
            url = f"{hall.url}/room/"
            started = [await _start_client(_SENDER, url, tokens[place % 8], MODERN, place) for place in range(32)]
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
            assert {await process.wait() for process in started} == {0}
            expected = [(f"agent{place % 8}", f"{place}.{number}") for place in range(32) for number in range(3)]
            assert sorted(room.messages()) == sorted(expected)

    asyncio.run(work())
