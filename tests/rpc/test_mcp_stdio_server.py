"""MCP over lines, without a process: hostile lines, and cancelled requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from guildhall.rpc.mcp_messages import ServerInfo
from guildhall.rpc.mcp_stdio_server import StdioServer
from tests.hall.doors import SampleTools
from tests.rpc.hostile import CALL, CASES, ENVELOPE, UNANSWERED, message


def serve_lines(desk: SampleTools, *lines: bytes) -> list[dict[str, Any]]:
    """Serve the lines and return the responses."""
    written: list[bytes] = []

    async def work() -> None:
        reader = asyncio.StreamReader(limit=4_000_000)
        server = StdioServer(desk.toolbox().tools, ServerInfo(name="x", version="1"), write=written.append)
        reader.feed_data(b"".join(line + b"\n" for line in lines))
        reader.feed_eof()
        await server.serve(reader)

    asyncio.run(work())
    return [json.loads(line) for line in written]


def test_hostile_lines_get_an_error_and_have_no_effect() -> None:
    desk = SampleTools()
    for case in CASES:
        if case.headers or not case.body:  # lines have no headers, and an empty line is not a message
            continue
        (response,) = serve_lines(desk, case.body)
        assert response["error"]["code"] == case.code, case.body[:80]
    assert serve_lines(desk, b"", b"  ", *UNANSWERED) == []
    assert desk.done == []


def test_a_request_of_the_newest_version_contains_its_version() -> None:
    desk = SampleTools()
    (response,) = serve_lines(desk, message("tools/call", params=CALL))
    assert response["result"]["resultType"] == "complete"
    assert desk.done == [1]
    unknown = {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    (response,) = serve_lines(desk, message(params={"_meta": unknown}))
    assert response["error"]["code"] == -32022
    (response,) = serve_lines(desk, message(params={"_meta": dict(list(ENVELOPE.items())[:1])}))
    assert response["error"]["code"] == -32602


def test_a_request_can_be_cancelled_and_its_id_is_in_use_until_then() -> None:
    desk = SampleTools()
    call = message("tools/call", params={"name": "hold", "arguments": {"number": 1}})
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}'
    responses = serve_lines(desk, call, call, cancel % b"[]", cancel % b"2", cancel % b"1", message("ping", id=2))
    assert [(one["id"], one.get("error", {}).get("code")) for one in responses] == [(1, -32600), (2, None)]
