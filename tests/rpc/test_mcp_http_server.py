"""Member endpoint on a real socket: MCP with the official client and by hand, and refused callers."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from guildhall.rpc.asgi_requests import MAX_BODY_BYTES
from guildhall.rpc.jsonrpc import RpcError
from guildhall.rpc.mcp_http_server import Endpoint, Offer
from tests.hall.doors import MODERN, SampleTools, open_raw_client, serve_app
from tests.rpc.hostile import CASES, OK, UNANSWERED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

SECRET = "the-secret-of-this-member"


async def operate(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if "refuse" in params:
        raise RpcError(-32000, "not yet", {"jobId": "x"})
    if "break" in params:
        raise KeyError("x")
    return {"method": method, "params": dict(params)}


@asynccontextmanager
async def member(*, worker: bool = True, tools: bool = True) -> AsyncGenerator[tuple[str, SampleTools]]:
    desk = SampleTools()
    offer = Offer(
        name="clerk",
        version="3.2.1",
        tools=desk.toolbox().tools if tools else (),
        worker=operate if worker else None,
    )
    async with serve_app(Endpoint.for_offer(offer, SECRET)) as url:
        yield f"{url}/mcp", desk


@pytest.mark.parametrize("mode", ["legacy", "auto", MODERN])
def test_the_official_client_lists_and_calls_the_tools(mode: str) -> None:
    async def work() -> None:
        async with (
            member() as (url, _),
            httpx2.AsyncClient(headers={"authorization": f"Bearer {SECRET}"}, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools][:2] == ["add", "note"]
            result = await client.call_tool("add", {"a": 2, "b": 3})
            assert (result.content[0].text, result.is_error) == ("5", False)
            wrong = await client.call_tool("add", {"a": "x"})
            assert wrong.is_error
            assert "b: this argument is required" in wrong.content[0].text
            failed = await client.call_tool("broken", {"why": "no ink"})
            assert (failed.is_error, "no ink" in failed.content[0].text) == (True, True)
            assert [block.type for block in (await client.call_tool("picture", {})).content][1:] == [
                "image",
                "resource",
            ]
            with pytest.raises(MCPError, match="unknown tool 'sum'"):
                await client.call_tool("sum", {})

    asyncio.run(work())


def test_the_member_describes_itself_and_answers_each_method() -> None:
    async def work() -> None:
        async with member() as (url, _), open_raw_client(url, SECRET) as http:
            about = (await http.ask("initialize", {"protocolVersion": "2025-06-18"})).json()["result"]
            assert about["serverInfo"] == {"name": "clerk", "version": "3.2.1"}
            assert about["capabilities"] == {"tools": {"listChanged": False}, "experimental": {"worker": {}}}
            assert (await http.ask("server/discover", modern=True)).json()["result"]["capabilities"]["experimental"]
            assert (await http.ask("ping")).json()["result"] == {}
            done = await http.ask("worker/list", {"a": 1})
            assert done.json()["result"] == {"method": "worker/list", "params": {"a": 1}}
            new = await http.ask("worker/list", {"a": 1}, modern=True)
            assert set(new.json()["result"]) == {"method", "params"}  # the same as in other protocol versions
            for method, code in (("worker/fire", -32601), ("worker/", -32601), ("x" * 10_000, -32601)):
                assert (await http.ask(method)).json()["error"]["code"] == code
            for params, code in (({}, -32602), ({"name": 5}, -32602), ({"name": "add", "arguments": []}, -32602)):
                assert (await http.ask("tools/call", params)).json()["error"]["code"] == code
            batch = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(3)]
            assert [one["id"] for one in (await http.post(json.dumps(batch).encode())).json()] == [0, 1, 2]

    asyncio.run(work())


def test_a_member_without_a_worker_or_tools_refuses_their_methods() -> None:
    async def work() -> None:
        async with member(worker=False) as (url, _), open_raw_client(url, SECRET) as http:
            refused = (await http.ask("worker/dispatch", {})).json()["error"]
            assert (refused["code"], refused["message"]) == (
                -32601,
                "unsupported method worker/dispatch: clerk has no worker",
            )
            about = (await http.ask("initialize", {"protocolVersion": "2025-06-18"})).json()["result"]
            assert "experimental" not in about["capabilities"]
        async with member(tools=False) as (url, _), open_raw_client(url, SECRET) as http:
            assert (await http.ask("tools/list")).json()["result"] == {"tools": []}
            assert (await http.call("add", {"a": 1, "b": 1}))["error"]["code"] == -32602

    asyncio.run(work())


def test_a_notification_is_executed_but_not_answered() -> None:
    async def work() -> None:
        async with member() as (url, desk), open_raw_client(url, SECRET) as http:
            for params in ({"refuse": 1}, {"break": 1}, {}):
                reply = await http.post(
                    json.dumps({"jsonrpc": "2.0", "method": "worker/cancel", "params": params}).encode()
                )
                assert (reply.status_code, reply.content) == (202, b"")
            call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "note", "arguments": {"number": 1}}}
            assert (await http.post(json.dumps(call).encode())).status_code == 202
            assert desk.done == []  # MCP has no tool calls without a reply

    asyncio.run(work())


def test_an_internal_error_is_reported_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with member() as (url, _), open_raw_client(url, SECRET) as http:
            broke = (await http.ask("worker/status", {"break": 1})).json()
            assert (broke["error"]["code"], "KeyError" in broke["error"]["message"]) == (-32603, True)
            no = (await http.ask("worker/status", {"refuse": 1})).json()
            assert no["error"] == {"code": -32000, "message": "not yet", "data": {"jobId": "x"}}
            assert (await http.ask("ping")).status_code == 200

    with caplog.at_level(logging.ERROR, "guildhall.members"):
        asyncio.run(work())
    assert [record.message for record in caplog.records] == ["worker/status failed"]


def test_hostile_messages_get_an_error_and_have_no_effect() -> None:
    async def work() -> None:
        async with member() as (url, desk), open_raw_client(url, SECRET) as http:
            for case in CASES:
                reply = await http.post(case.body, case.headers)
                payload = reply.json()
                code = payload["error"]["code"] if isinstance(payload, dict) and "error" in payload else OK
                details = (case.body[:80], case.headers, reply.text[:300])
                assert (reply.status_code, code) == case.expected_reply(batches=True), details
            for body in UNANSWERED:
                reply = await http.post(body)
                assert (reply.status_code, reply.content) == (202, b"")
            assert desk.done == []

    asyncio.run(work())


@pytest.mark.req("WD-3")
def test_requests_without_the_secret_or_from_elsewhere_are_refused() -> None:
    own = {"authorization": f"Bearer {SECRET}", "content-type": "application/json"}
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    expected: list[tuple[str, str, dict[str, str], bytes, int]] = [
        ("POST", "", own, ping, 200),
        ("POST", "/", own, ping, 200),
        ("POST", "", {**own, "authorization": ""}, ping, 401),
        ("POST", "", {**own, "authorization": f"Basic {SECRET}"}, ping, 401),
        ("POST", "", {**own, "authorization": f"Bearer {SECRET}x"}, ping, 401),
        ("POST", "", {**own, "authorization": f"Bearer {SECRET[:-1]}"}, ping, 401),
        ("POST", "", {**own, "authorization": "Bearer \xe4\xf6"}, ping, 401),
        ("POST", "", {**own, "host": "evil.example"}, ping, 421),
        ("POST", "", {**own, "origin": "https://evil.example"}, ping, 403),
        ("POST", "", {**own, "origin": "null"}, ping, 403),
        ("POST", "", {**own, "content-type": "text/plain"}, ping, 415),
        ("GET", "", own, b"", 405),
        ("DELETE", "", own, b"", 405),
        ("POST", "/more", own, ping, 404),
        ("POST", "/../jobs", own, ping, 404),
        ("POST", "", own, b" " * (MAX_BODY_BYTES + 1), 413),
        ("POST", "", {**own, "origin": "http://localhost:9999"}, ping, 200),
    ]

    async def work() -> None:
        async with member() as (url, _), httpx2.AsyncClient(trust_env=False) as http:
            for method, path, headers, body, status in expected:
                encoded = {name: value.encode("latin-1") for name, value in headers.items()}
                reply = await http.request(method, f"{url}{path}", headers=encoded, content=body)
                assert reply.status_code == status, (method, path, headers, reply.status_code, reply.text)
                assert status == 200 or reply.json()["error"]["message"]
            twice = [("authorization", "Bearer x"), ("authorization", f"Bearer {SECRET}"), *list(own.items())[1:]]
            assert (await http.post(url, headers=twice, content=ping)).status_code == 401

    asyncio.run(work())


def test_a_waiting_request_does_not_block_other_requests() -> None:
    async def work() -> None:
        async with member() as (url, desk), open_raw_client(url, SECRET) as http:
            waiting = asyncio.create_task(http.call("hold", {"number": 1}))
            await asyncio.wait_for(desk.has_started.wait(), 5)
            assert (await http.ask("ping")).status_code == 200
            desk.may_finish.set()
            assert (await waiting)["result"]["content"][0]["text"] == "held 1"

    asyncio.run(work())
