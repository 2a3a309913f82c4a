"""The tool door over MCP, on a real socket: the official client in every mode, and HTTP by hand."""

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
from guildhall.rpc.http import MAX_BODY_BYTES
from guildhall.runs.hooks import RunHooks
from guildhall.runs.record.entries import ToolStarted
from tests.conftest import BLOCKED, Guild
from tests.hall.doors import MODERN, PNG, Desk, Served, put, raw, served
from tests.rpc.hostile import CALL, CASES, NEW, UNANSWERED, message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.paths import Home
    from guildhall.room.service import Room

MODES = ["legacy", "auto", MODERN]
DESK = ["add", "note", "hold", "picture", "broken"]


@asynccontextmanager
async def official(url: str, token: str, mode: str) -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


# The official client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.req("WKR-16")
def test_the_official_client_sees_exactly_the_tools_of_the_run_and_calls_them(
    home: Home, project: Path, mode: str
) -> None:
    put(project, "clerk", sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            async with official(f"{hall.url}/tools/", token, mode) as client:
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
            assert [entry["tool"] for entry in hall.kinds(run, "tool_started")] == ["add", "picture", "broken"]
            assert [entry["tool"] for entry in hall.kinds(run, "tool_refused")] == ["add"]

    asyncio.run(work())


@pytest.mark.req("AW-20")
def test_who_calls_is_said_by_the_token_and_by_nothing_else(home: Home, project: Path) -> None:
    put(project, "one")
    put(project, "other", toolboxes=[], sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            first, mine = await hall.live("one", desk.toolbox())
            second, theirs = await hall.live("other")
            assert mine != theirs
            async with raw(f"{hall.url}/tools/", mine) as me, raw(f"{hall.url}/tools/", theirs) as they:
                assert [tool["name"] for tool in (await me.ask("tools/list")).json()["result"]["tools"]] == DESK
                shown = (await they.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in shown] == ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
                assert (await they.call("note", {"number": 1}))["error"]["code"] == -32602
                claimed = {"name": "note", "arguments": {"number": 2}, "run": second, "_meta": {"run": second}}
                assert "result" in (await me.ask("tools/call", claimed)).json()
            assert len(hall.kinds(first, "tool_started")) == 1
            assert hall.kinds(second, "tool_started") == []
            async with raw(f"{hall.url}/room/", mine) as room:  # it has no seat, so there is no such server
                assert (await room.ask("tools/list")).status_code == 404

    asyncio.run(work())
    assert desk.done == [2]


def test_many_client_processes_call_at_once_and_nothing_is_lost_or_done_twice(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk, count = Desk(), 32

    async def work() -> None:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            modes = [MODES[0], MODERN]
            started = [await _client(_RAW_CLIENT, f"{hall.url}/tools/", token, modes[i % 2], i) for i in range(count)]
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
            assert {await process.wait() for process in started} == {0}
            assert len(hall.kinds(run, "tool_ended")) == count * 3

    asyncio.run(work())
    assert sorted(desk.done) == sorted(place * 10 + number for place in range(count) for number in range(3))


# Light, so that thirty-two of them are there at once: the protocol by hand, over one connection each.
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


# The same, saying something in a room.
_SENDER = (
    _RAW_CLIENT.replace('"note"', '"channel_send"')
    .replace('{"number": place * 10 + number}', '{"message": f"{place}.{number}"}')
    .partition("    assert")[0]
    + '    assert not answer["result"]["isError"], answer\n'
)


async def _client(code: str, url: str, token: str, mode: str, place: int) -> asyncio.subprocess.Process:
    """A client in a process of its own; it begins when its input ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, url, str(place),
        stdin=asyncio.subprocess.PIPE, env={**Guild.environment(), "PYTHONPATH": str(BLOCKED)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"{token}\n{mode}\n".encode())
    return process


# The eras, by hand


@pytest.mark.parametrize(
    ("asked", "given"),
    [("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"), ("2024-11-05", "2025-11-25"), (7, "2025-11-25")],
)
def test_a_handshake_agrees_on_a_version(home: Home, project: Path, asked: Any, given: str) -> None:
    put(project, "clerk")

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", Desk().toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
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


def test_the_newest_era_has_no_handshake_and_says_what_its_answers_are(home: Home, project: Path) -> None:
    put(project, "clerk")

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", Desk().toolbox())
            async with raw(f"{hall.url}/tools", token) as http:
                found = (await http.ask("server/discover", modern=True)).json()["result"]
                assert found["supportedVersions"] == [MODERN]
                assert (found["resultType"], found["ttlMs"], found["cacheScope"]) == ("complete", 0, "private")
                listed = (await http.ask("tools/list", modern=True)).json()["result"]
                assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
                called = await http.call("add", {"a": 1, "b": 1}, modern=True)
                assert called["result"]["resultType"] == "complete"
                gone = await http.ask("initialize", {}, modern=True)
                assert (gone.status_code, gone.json()["error"]["code"]) == (404, -32601)
                assert (await http.ask("server/discover")).json()["error"]["code"] == -32601

    asyncio.run(work())


def test_hostile_messages_are_answered_with_an_error_and_do_nothing(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                for case in CASES:
                    reply = await http.post(case.body, case.headers)
                    told = (case.body[:80], case.headers, reply.status_code, reply.text[:300])
                    assert (reply.status_code, reply.json()["error"]["code"]) == (case.status, case.code), told
                for body in UNANSWERED:
                    assert (await http.post(body)).status_code == 202
                named = {**NEW, "mcp-method": "tools/call", "mcp-name": "=?base64?bm90ZQ==?="}
                assert "result" in (await http.post(message("tools/call", params=CALL), named)).json()
            assert len(hall.kinds(run, "tool_started")) == 1

    asyncio.run(work())
    assert desk.done == [1]


def test_what_is_no_message_at_all_is_refused_by_http(home: Home, project: Path) -> None:
    put(project, "clerk")

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", Desk().toolbox())
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
                        # A connection is kept only where nothing can follow: OpenCode asks with GET at its beginning,
                        # and sends what it asks next before it sees that the connection is closed.
                        assert ("close" in reply.headers.get("connection", "")) == bool(body), method
                assert (await http.get(where, headers=own)).headers["allow"] == "POST"
                assert (await http.post(where)).headers["www-authenticate"] == "Bearer"

    asyncio.run(work())


def test_a_body_in_pieces_without_an_end_is_cut_at_the_limit(home: Home, project: Path) -> None:
    put(project, "clerk")

    sent = 0

    async def long() -> AsyncGenerator[bytes]:
        nonlocal sent
        for _ in range(2000):
            sent += 65_536
            yield b"x" * 65_536

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", Desk().toolbox())
            async with httpx2.AsyncClient(trust_env=False) as http:
                own = {"authorization": f"Bearer {token}", "content-type": "application/json"}
                try:
                    reply = await http.post(f"{hall.url}/tools/", headers=own, content=long())
                    assert reply.status_code == 413
                except (httpx2.WriteError, httpx2.ReadError):
                    pass  # the connection was closed while we were still writing
            async with raw(f"{hall.url}/tools/", token) as after:
                assert (await after.ask("ping")).status_code == 200
            assert sent < 64_000_000  # what is in the buffers, and no more is read

    asyncio.run(work())


# One call is one call


def test_the_same_id_is_the_same_call_also_while_it_is_under_way(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                twice = [asyncio.create_task(http.call("hold", {"number": 7}, id="toolu_1")) for _ in range(2)]
                await asyncio.wait_for(desk.began.wait(), 5)
                other = await http.call("hold", {"number": 8}, id="toolu_1")
                assert other["error"]["message"] == "invalid call id: another call has it"
                desk.go_on.set()
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
    assert desk.done == [7, 5, 6, 6, 6, 4, 4]


def test_a_client_that_goes_away_does_not_stop_its_call(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                gone = asyncio.create_task(http.call("hold", {"number": 1}, id="a"))
                await asyncio.wait_for(desk.began.wait(), 5)
                gone.cancel()
            async with raw(f"{hall.url}/tools/", token) as http:
                again = asyncio.create_task(http.call("hold", {"number": 1}, id="a"))
                await asyncio.sleep(0.02)
                desk.go_on.set()
                assert (await again)["result"]["content"][0]["text"] == "held 1"

    asyncio.run(work())
    assert desk.done == [1]


def test_too_many_calls_at_once_are_refused_and_the_others_go_on(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                door = hall.hall.runtimes.tokens.find(token)
                assert door is not None
                held = [asyncio.create_task(http.call("hold", {"number": n})) for n in range(5)]
                await asyncio.wait_for(desk.began.wait(), 5)
                filler = next(iter(door.calls.values()))
                door.calls.update({f"more-{n}": filler for n in range(endpoint.MAX_CALLS)})
                assert "are active" in (await http.call("note", {"number": 9}))["error"]["message"]
                for n in range(endpoint.MAX_CALLS):
                    del door.calls[f"more-{n}"]
                desk.go_on.set()
                assert all("result" in answer for answer in await asyncio.gather(*held))

    asyncio.run(work())
    assert sorted(desk.done) == [0, 1, 2, 3, 4]


# The token lives as long as its run goes on


@pytest.mark.parametrize("ends", ["paused", "cancelled"])
def test_a_run_that_stops_takes_its_token_and_its_calls_with_it(home: Home, project: Path, ends: str) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            _, another = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http, raw(f"{hall.url}/tools/", another) as other:
                waiting = asyncio.create_task(http.call("hold", {"number": 1}))
                await asyncio.wait_for(desk.began.wait(), 5)
                stop = hall.hall.runs.pause(run) if ends == "paused" else hall.hall.runs.cancel(run)
                stopping = asyncio.create_task(stop)
                await asyncio.sleep(0.01)
                assert (await http.ask("ping")).status_code == 401  # at once, while calls under way may still finish
                assert "the run has ended" in (await waiting)["error"]["message"]
                await stopping
                assert (await http.call("note", {"number": 2}))["error"]["message"].startswith("invalid token")
                assert (await other.ask("ping")).status_code == 200
            assert hall.hall.runtimes.tokens.find(token) is None

    asyncio.run(work())
    assert desk.done == []


@pytest.mark.parametrize("ends", ["paused", "cancelled"])
def test_a_message_that_was_begun_before_the_end_and_comes_after_it_does_nothing(
    home: Home, project: Path, ends: str
) -> None:
    put(project, "clerk")
    desk = Desk()
    body = message("tools/call", params={"name": "note", "arguments": {"number": 1}})

    async def work() -> bytes:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
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
    assert desk.done == []


def test_a_run_that_is_resumed_has_another_token(home: Home, project: Path) -> None:
    put(project, "clerk")
    desk = Desk()

    async def work() -> None:
        from guildhall.core.frame import Frame

        async with served(home, project) as hall:
            run, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                assert "result" in await http.call("note", {"number": 1}, id="a")
            await hall.hall.runs.pause(run)
            again = await hall.hall.runs.prepare_resume(run, Frame.here(project, {}), [desk.toolbox()])
            hall.hall.runs.launch(again)
            fresh = hall.hall.runs.token(run)
            assert fresh != token
            async with raw(f"{hall.url}/tools/", token) as old, raw(f"{hall.url}/tools/", fresh) as new:
                assert (await old.ask("ping")).status_code == 401
                told = (await new.call("note", {"number": 1}, id="a"))["result"]["content"][0]["text"]
                assert told == "noted 1"  # from the record

    asyncio.run(work())
    assert desk.done == [1]


def test_tokens_are_long_and_in_no_record(home: Home, project: Path) -> None:
    put(project, "clerk")

    async def work() -> str:
        async with served(home, project) as hall:
            run, token = await hall.live("clerk", Desk().toolbox())
            door = hall.hall.runtimes.tokens.find(token)
            assert token not in repr(door)
            async with raw(f"{hall.url}/tools/", token) as http:
                await http.call("add", {"a": 1, "b": 2})
            assert hall.kinds(run, "tool_ended")
            return token

    token = asyncio.run(work())
    assert len(token) >= 43
    for path in home.path.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_the_gate_is_the_same_for_those_who_come_over_http(home: Home, project: Path) -> None:
    put(project, "clerk", tool_rules={"note": {"allowed": False}})
    desk = Desk()

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", desk.toolbox())
            async with raw(f"{hall.url}/tools/", token) as http:
                refusal = (await http.call("note", {"number": 1}))["result"]
                assert refusal["isError"]
                assert "forbids it" in refusal["content"][0]["text"]

    asyncio.run(work())
    assert desk.done == []


# Other clients, and tools that come from elsewhere


def test_the_client_of_pydantic_ai_sees_and_calls_the_tools(home: Home, project: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    put(project, "clerk")
    desk, shown = Desk(), list[str]()

    def model(messages: list[Any], info: Any) -> ModelResponse:
        shown[:] = [tool.name for tool in info.function_tools]
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("note", {"number": 3})])
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

    async def work() -> None:
        async with served(home, project) as hall:
            _, token = await hall.live("clerk", desk.toolbox())
            tools = MCPToolset(f"{hall.url}/tools/", headers={"authorization": f"Bearer {token}"})
            async with tools:
                result = await Agent(FunctionModel(model), toolsets=[tools]).run("go")
            assert result.output == "noted 3"

    asyncio.run(work())
    assert sorted(shown) == sorted(DESK)
    assert desk.done == [3]


def test_tools_of_servers_are_shown_like_the_others(home: Home, project: Path) -> None:
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
        async with served(home, project) as hall:
            run, token = await hall.live("proxy")
            async with raw(f"{hall.url}/tools/", token) as http:
                listed = (await http.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in listed] == ["toy_echo"]
                assert (await http.call("toy_echo", {"text": "a"}))["result"]["content"][0]["text"] == "well: a"
            assert len(hall.kinds(run, "tool_ended")) == 1

    asyncio.run(work())


# The room


class Table:
    """A room with seats, each taken by a run of its own."""

    def __init__(self, hall: Served, room: Room) -> None:
        self.room = room
        self._hall = hall

    async def sit(self, agent: str, worker: str) -> tuple[str, str]:
        """A live run in the seat of an agent: its id and its token."""
        room = self.room
        hooks = RunHooks(
            tools=room_tools(),
            executor=lambda run: RoomTools(room, agent, run).call,
        )
        return await self._hall.live(worker, hooks=hooks)

    def said(self) -> list[tuple[str, str]]:
        return [(message.sender, message.content) for message in self.room.list_messages()]


@asynccontextmanager
async def table(home: Home, project: Path, *agents: str) -> AsyncGenerator[tuple[Served, Table]]:
    put(project, "clerk", toolboxes=[], sandboxes={"notes": {"path": "./notes", "mode": "rw"}})
    async with served(home, project) as hall:
        rooms = Rooms(hall.hall.store, hall.hall.clock)
        yield hall, Table(hall, await rooms.open("review", "main", agents))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.req("AW-18", "AW-19")
def test_an_agent_reaches_its_room_by_a_server_of_its_own(home: Home, project: Path, mode: str) -> None:
    async def work() -> None:
        async with table(home, project, "coder", "reviewer") as (hall, room):
            _, token = await room.sit("coder", "clerk")
            async with official(f"{hall.url}/room/", token, mode) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == list(ROOM_TOOLS)
                sent = await client.call_tool("channel_send", {"message": "@reviewer look"})
                assert not sent.is_error, sent
                assert "look" in (await client.call_tool("channel_read", {})).content[0].text
                with pytest.raises(MCPError, match="unknown tool 'sandbox_list'"):
                    await client.call_tool("sandbox_list", {})
            async with raw(f"{hall.url}/tools/", token) as http:
                shown = (await http.ask("tools/list")).json()["result"]["tools"]
                assert [tool["name"] for tool in shown] == ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
                assert (await http.call("channel_send", {"message": "x"}))["error"]["code"] == -32602
            assert room.said() == [("coder", "@reviewer look")]

    asyncio.run(work())


@pytest.mark.req("AW-20")
def test_the_sender_is_whoever_has_the_token(home: Home, project: Path) -> None:
    async def work() -> None:
        async with table(home, project, "coder", "reviewer") as (hall, room):
            run, coder = await room.sit("coder", "clerk")
            _, reviewer = await room.sit("reviewer", "clerk")
            async with raw(f"{hall.url}/room/", coder) as one, raw(f"{hall.url}/room/", reviewer) as other:
                claim = {"message": "I am the reviewer", "sender": "reviewer"}
                assert (await one.call("channel_send", claim))["result"]["isError"]  # there is no such argument
                params = {"name": "channel_send", "arguments": {"message": "one"}, "agent": "reviewer"}
                meta = {"agent": "reviewer", "run": run, "claudecode/toolUseId": "t-1"}
                for _ in range(2):  # the same call twice is said once
                    done = await one.ask("tools/call", {**params, "_meta": meta}, x_agent="reviewer")
                    assert "result" in done.json()
                await other.call("channel_send", {"message": "two"}, id="t-1")  # another run's ids are its own
            assert room.said() == [("coder", "one"), ("reviewer", "two")]

    asyncio.run(work())


def test_a_call_that_ends_a_run_ends_it_also_when_it_comes_from_outside(home: Home, project: Path) -> None:
    async def work() -> None:
        async with table(home, project, "coder") as (hall, _):

            async def gone(tool: Any, call: Any) -> Any:
                raise ServerGone("the server of this tool is gone")

            tools = room_tools()
            hooks = RunHooks(tools=tools, executor=lambda run: gone)
            run, token = await hall.live("clerk", hooks=hooks)
            async with raw(f"{hall.url}/room/", token) as http:
                assert "is gone" in (await http.call("channel_send", {"message": "x"}))["error"]["message"]
                async with asyncio.timeout(5):
                    while hall.hall.runs.is_alive(run):  # noqa: ASYNC110 - nobody tells when
                        await asyncio.sleep(0.01)
                assert (await http.ask("tools/list")).status_code == 401
            ended = hall.hall.history.get(run)
            assert (ended.status, ended.error and "is gone" in ended.error["message"]) == ("failed", True)

    asyncio.run(work())


def test_many_processes_send_into_one_room_and_nothing_is_lost_or_said_twice(home: Home, project: Path) -> None:
    async def work() -> None:
        async with table(home, project, *(f"agent{place}" for place in range(8))) as (hall, room):
            tokens = [(await room.sit(f"agent{place}", "clerk"))[1] for place in range(8)]
            url = f"{hall.url}/room/"
            started = [await _client(_SENDER, url, tokens[place % 8], MODERN, place) for place in range(32)]
            for process in started:
                assert process.stdin is not None
                process.stdin.close()
            assert {await process.wait() for process in started} == {0}
            expected = [(f"agent{place % 8}", f"{place}.{number}") for place in range(32) for number in range(3)]
            assert sorted(room.said()) == sorted(expected)

    asyncio.run(work())
