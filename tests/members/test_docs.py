"""The pages about members say what is so: their examples work, and every method, code and limit is named."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import guildhall
from guildhall.members.manifest import Manifest
from guildhall.members.registry import read_manifest
from guildhall.rpc import jsonrpc
from guildhall.rpc.asgi_requests import BODY_TIMEOUT_S, MAX_BODY_BYTES
from guildhall.rpc.mcp_http_server import MAX_REQUESTS, METHODS
from tests.members.member_servers import SECRET, connect_member

DOCS = Path(__file__).parents[2] / "docs"
SHIPPED = Path(guildhall.__file__).parent / "members" / "shipped"


def test_the_example_of_a_member_with_tools_works(tmp_path: Path) -> None:
    text = (DOCS / "write-a-member.md").read_text()
    manifest = re.search(r"```json\n(.*?)```", text, re.S)
    program = re.search(r"```python\n(.*?)```", text, re.S)
    assert manifest
    assert program
    (tmp_path / "guild-member.json").write_text(manifest[1])
    assert read_manifest(tmp_path).name == "clock"
    names: dict[str, object] = {"__file__": str(tmp_path / "server.py"), "__name__": "server"}
    exec(compile(program[1], "server.py", "exec"), names)
    member = names["member"]
    assert isinstance(member, guildhall.Member)

    async def work() -> None:
        async with member.open_server(0, SECRET, {}) as url, connect_member(url) as http:
            told = await http.call("time_in", {"zone": "UTC"})
            assert told["result"]["content"][0]["text"].endswith("+00:00"), told
            (shown,) = (await http.ask("tools/list")).json()["result"]["tools"]
            assert shown["inputSchema"]["properties"]["zone"]["description"] == "Such as Europe/Lisbon."

    asyncio.run(work())


def test_the_reference_names_every_method_code_and_limit() -> None:
    text = (DOCS / "protocol.md").read_text()
    for method in METHODS:
        assert f"### {method}\n" in text
    codes = ("PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS", "INTERNAL_ERROR")
    for code in [*(getattr(jsonrpc, name) for name in codes), jsonrpc.SERVER_ERROR]:
        assert f"| {code} |" in text
    assert f"more than {jsonrpc.MAX_BATCH}" in text
    assert f"| 503 | {MAX_REQUESTS} requests" in text
    assert f"within {BODY_TIMEOUT_S:g} s, or has more than {MAX_BODY_BYTES // 1024**2} MiB" in text


def test_the_shipped_researcher_is_as_the_documentation_says() -> None:
    manifest = json.loads((SHIPPED / "researcher" / "guild-member.json").read_text())
    assert Manifest.model_validate(manifest).capabilities == ("worker",)
    lines = (SHIPPED / "researcher" / "server.py").read_text().splitlines()
    assert len(lines) < 10
