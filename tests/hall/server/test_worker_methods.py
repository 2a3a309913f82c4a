"""Workers of the hall over `worker/*` methods: at `/workers/NAME/mcp` of the hall, and by `guild serve`."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import pytest

from guildhall.hall.client.discovery import find_hall
from tests.hall.test_mcp import open_official_client
from tests.members.member_servers import connect_member, write_script

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild


def write_worker(folder: Path, name: str, **fields: Any) -> None:
    (folder / "workers").mkdir(parents=True, exist_ok=True)
    (folder / "workers" / f"{name}.yaml").write_text(json.dumps({"instructions": "Work.", **fields}))


ANSWERS = [
    {"call": "update_summary", "with": {"summary": "at it"}},
    {"call": "submit_result", "with": {"output": "from the hall"}},
    {"say": "done"},
]


@pytest.mark.req("X-8", "WD-22")
def test_a_worker_of_the_hall_has_worker_methods_at_its_own_address(
    home: Home, project: Path, guild_hall: Guild
) -> None:
    model = write_script(project / "answers.yaml", ANSWERS)
    write_worker(project, "reviewer", model=model)
    write_worker(home.path, "clerk", model=model)
    write_worker(home.path, "other", model=model)
    started = guild_hall("memory", "write", "--scope", "global", "x", "y")  # a command that starts the hall
    assert started.code == 0, started.err
    address = find_hall(home)
    assert address is not None
    base = f"{address.url}/workers"

    async def work() -> None:
        async with connect_member(f"{base}/clerk/mcp", address.token) as clerk:
            async with open_official_client(f"{base}/clerk/mcp", address.token, "auto") as client:
                tools = [tool.name for tool in (await client.list_tools()).tools]
                assert tools == ["dispatch", "wait", "list", "status", "result", "cancel", "delete"]
                sent = await client.call_tool("dispatch", {"description": "By MCP", "task": "Do it."})
                first = json.loads(sent.content[0].text)["jobId"]
                waited = await client.call_tool("wait", {"jobIds": [first], "seconds": 20})
                assert json.loads(waited.content[0].text)["jobs"][0]["status"] == "completed"
                deleted = await client.call_tool("delete", {"jobId": first})
                assert json.loads(deleted.content[0].text)["deleted"] is True
            about = (await clerk.ask("initialize", {"protocolVersion": "2025-06-18"})).json()["result"]
            assert (about["serverInfo"]["name"], "experimental" in about["capabilities"]) == ("clerk", True)
            job = await clerk.dispatch("Do it.", "For the clerk")
            shown = await clerk.ended(job)
            assert (shown["status"], shown["summary"]) == ("completed", "at it")
            assert (await clerk.worker("result", jobId=job))["output"] == "from the hall"
            async with connect_member(
                f"{base}/other/mcp", address.token
            ) as other:  # jobs of another worker are unknown here
                assert await other.worker("list") == {"jobs": []}
                for method in ("status", "result", "cancel", "delete"):
                    assert (await other.refused(method, {"jobId": job}))["code"] == -32602
            assert (await clerk.worker("list"))["jobs"] == [{"jobId": job, "status": "completed"}]
            assert (home.path / "jobs" / job / "meta.json").is_file()
            await clerk.worker("delete", jobId=job)
        where = f"{base}/reviewer/mcp?project={quote(str(project))}"
        async with connect_member(where, address.token) as reviewer:
            assert (await reviewer.ended(await reviewer.dispatch()))["status"] == "completed"
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        expected = [
            (f"{base}/reviewer/mcp", address.token, 404),
            (f"{base}/nobody/mcp", address.token, 404),
            (f"{base}/../clerk/mcp", address.token, 404),
            (f"{base}/cl%2F..%2Ferk/mcp", address.token, 404),
            (f"{base}/clerk/", address.token, 404),
            (f"{base}/clerk/mcp/more", address.token, 404),
            (f"{base}/clerk/mcp?project=relative", address.token, 400),
            (f"{base}/clerk/mcp?project=/not/there", address.token, 400),
            (f"{base}/clerk/mcp?projet={quote(str(project))}", address.token, 400),
            (f"{base}/clerk/mcp?project=%00", address.token, 400),
            (f"{base}/clerk/mcp?%ff", address.token, 400),
            (f"{base}/clerk/mcp", "not-the-token", 401),
            (f"{base}/nobody/mcp", "not-the-token", 401),
            (f"{base}/clerk/mcp", address.token, 200),
        ]
        async with httpx2.AsyncClient(trust_env=False) as http:
            for url, token, status in expected:
                headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
                reply = await http.post(url, content=ping, headers=headers)
                assert reply.status_code == status, (url, reply.status_code, reply.text)
                if url in (f"{base}/reviewer/mcp", f"{base}/nobody/mcp") and status == 404:
                    body = reply.json()
                    assert (body["id"], body["error"]["code"]) == (1, -32602)
                    assert "/workers/NAME/mcp?project=" in body["error"]["message"]

    asyncio.run(work())


@pytest.mark.req("X-8")
def test_guild_serve_serves_a_worker_until_it_is_interrupted(home: Home, project: Path, guild: Guild) -> None:
    write_worker(project, "reviewer", model=write_script(project / "answers.yaml", ANSWERS))
    process = guild.start("serve", "reviewer", "--json", cwd=project)
    assert process.stdout is not None
    printed = json.loads(process.stdout.readline())
    assert printed["worker"] == "reviewer"

    async def work() -> str:
        async with connect_member(printed["url"], printed["secret"]) as reviewer:
            job = await reviewer.dispatch("Look.", "A look")
            assert (await reviewer.ended(job))["status"] == "completed"
            assert (await reviewer.worker("result", jobId=job))["output"] == "from the hall"
            assert (await reviewer.refused("status", {"jobId": "j-none"}))["code"] == -32602
            assert (await reviewer.refused("dispatch", {"description": "x"}))["code"] == -32602
        async with connect_member(printed["url"], "wrong") as stranger:
            assert (await stranger.ask("ping")).status_code == 401
        return job

    job = asyncio.run(work())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert (home.path / "jobs" / job / "result.md").read_text().strip() == "from the hall"


def test_guild_serve_reports_invalid_arguments(project: Path, guild: Guild) -> None:
    write_worker(project, "reviewer")
    assert guild("serve", "revewer").code == 3
    assert "reviewer" in guild("serve", "revewer").err
    assert guild("serve", "reviewer", "--port", "70000").code == 2
    assert guild("serve", "reviewer", "--port", "x").code == 2
    short = guild("serve", "reviewer", env={"GUILDHALL_MEMBER_SECRET": "short"})
    assert (short.code, "fewer than 16 characters" in short.err) == (2, True)
