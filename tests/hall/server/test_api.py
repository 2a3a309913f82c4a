"""HTTP API: authentication, routes, and invalid, oversized or slow requests."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.request_frame import Frame
from guildhall.hall.client.codec import encode
from guildhall.hall.client.interface import VERBS
from guildhall.hall.server.api import MAX_BODY_BYTES
from guildhall.runs.model import RunRequest
from tests.hall.hall_server import HttpResponse, ServedHall, send_bytes, send_request, serve_hall
from tests.rpc.hostile import UNREADABLE
from tests.runs.places import DONE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from guildhall.core.paths import Home


def run_in_hall(home: Home, work: Callable[[ServedHall], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with serve_hall(home) as hall:
            return await work(hall)

    return asyncio.run(go())


def send_all(home: Home, *wanted: tuple[str, Mapping[str, Any]]) -> list[HttpResponse]:
    """Send requests to one hall, and return the responses."""

    async def work(hall: ServedHall) -> list[HttpResponse]:
        return [await send_request(hall.address, path, **options) for path, options in wanted]

    return run_in_hall(home, work)


def test_health_needs_no_token_and_contains_no_secret(home: Home) -> None:
    async def work(hall: ServedHall) -> None:
        answer = await send_request(hall.address, "/healthz", method="GET", headers={"Authorization": None})
        assert answer.status == 200
        assert set(answer.json) == {"boot", "version", "state"}
        assert answer.json["boot"] == hall.address.boot

    run_in_hall(home, work)


def test_verbs_need_the_token_of_the_user(home: Home) -> None:
    async def work(hall: ServedHall) -> None:
        token = hall.address.token
        wrong = [
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer nonsense",
            f"Bearer {token}x",
            f"Bearer {token[:-1]}",
            "Bearer \xff",
        ]
        for value in [*wrong, f"Basic {token}", token, f"Bearer {token} {token}"]:
            answer = await send_request(hall.address, "/api/runs/list", headers={"Authorization": value})
            assert answer.status == 401, value
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.error["code"] == "refused"
            assert token not in answer.body.decode()
        assert (
            await send_request(hall.address, "/api/runs/list", headers={"Authorization": f"bearer {token}"})
        ).status == 200

    run_in_hall(home, work)


@pytest.mark.req("AW-20")
def test_the_token_of_a_run_opens_its_own_door_and_no_verb(home: Home, project: Path) -> None:
    put_worker(project, sandboxes=None, tool_rules=None)
    put_script(project, {"sleep": 30, "say": "late"})
    frame = Frame.here(project, {})

    async def work(hall: ServedHall) -> None:
        client = await hall.client()
        stream = client.runs.run(RunRequest(worker="scribe", input="go"), frame)
        run = (await anext(stream)).run
        token = {"Authorization": f"Bearer {hall.hall.runs.token(run)}"}
        for verb in ("runs/list", "asks/answer", "trust/grant", "hall/hello", "hall/status", "nothing"):
            answer = await send_request(hall.address, f"/api/{verb}", headers=token)
            assert answer.status == 403, verb
            assert "not of a run" in answer.error["message"]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        own = {**token, "Content-Type": "application/json"}
        assert (await send_request(hall.address, "/mcp/tools/", ping, headers=own)).json["result"] == {}
        person = {"Content-Type": "application/json"}
        assert (await send_request(hall.address, "/mcp/tools/", ping, headers=person)).status == 401
        await stream.aclose()
        assert (await send_request(hall.address, "/api/runs/list", headers=token)).status == 401, (
            "the token is invalid after the run"
        )
        await client.close()

    run_in_hall(home, work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:7420"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://localhost:7420"}, 200),
        ({"Host": "localhost:7420"}, 200),
    ],
)
def test_foreign_hosts_and_origins_are_refused(home: Home, headers: dict[str, str], status: int) -> None:
    (answer,) = send_all(home, ("/api/runs/list", {"headers": headers}))
    assert answer.status == status
    assert status == 200 or answer.error["code"] == "refused"


def test_unknown_routes_and_invalid_bodies_get_errors(home: Home) -> None:
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (404, "/", {}),
        (404, "/api/", {}),
        (404, "/api/runs", {}),
        (404, "/api/runs/", {}),
        (404, "/api/runs.list", {}),
        (404, "/api/runs/list/x", {}),
        (404, "/api/runs/launch", {}),
        (404, "/api/runs/_hall", {}),
        (404, "/api/runs/__init__", {}),
        (404, "/api/close", {}),
        (404, "/api/settle", {}),
        (404, "/api/%00", {}),
        (404, "/API/runs/list", {}),
        (405, "/api/runs/list", {"method": "GET"}),
        (405, "/api/runs/list", {"method": "DELETE"}),
        (400, "/api/runs/list", {"raw": b""}),
        (400, "/api/runs/list", {"raw": b"{"}),
        (400, "/api/runs/list", {"raw": b"[]"}),
        (400, "/api/runs/list", {"raw": b'"runs"'}),
        (400, "/api/runs/list", {"raw": b"\xff\xfe"}),
        (400, "/api/runs/list", {"raw": b"[" * 100_000}),
        (400, "/api/runs/list", {"raw": b'{"everything": NaN}'}),
        *((400, "/api/runs/list", {"raw": body}) for body in UNREADABLE),
        (400, "/api/runs/list", {"body": {"everythin": True}}),
        (400, "/api/runs/list", {"body": {"everything": 1}}),
        (400, "/api/runs/get", {"body": {}}),
        (400, "/api/runs/get", {"body": {"run": 5}}),
        (400, "/api/runs/get", {"body": {"run": None}}),
        (404, "/api/runs/get", {"body": {"run": "r-2222222222"}}),
        (400, "/api/runs/get", {"body": {"run": "\x00' OR 1=1 --"}}),
        (400, "/api/runs/journal", {"body": {"run": "r-2222222222", "after": True}}),
        (400, "/api/asks/answer", {"body": {"ask": "a-2222222222", "answer": {"choice": 1}}}),
        (400, "/api/trust/grant", {"body": {"files": [{"path": "/x"}]}}),
        (400, "/api/trust/grant", {"body": {"files": "all"}}),
        (400, "/api/hall/hello", {"body": {}}),
        (400, "/api/workers/list", {"body": {"frame": {"cwd": ".", "root": "."}}}),
        (400, "/api/workers/list", {"body": {"frame": {"cwd": "/\0", "root": "/"}}}),
        (400, "/api/runs/run", {"body": {"request": {"worker": "x", "input": "y", "max_turns": -1}, "frame": {}}}),
        (
            404,
            "/api/runs/run",
            {"body": {"request": {"worker": "x", "input": "y"}, "frame": {"cwd": "/", "root": "/"}}},
        ),
        (413, "/api/runs/list", {"raw": b"x", "headers": {"Content-Length": str(MAX_BODY_BYTES + 1)}}),
    ]
    answers = send_all(home, *((path, options) for _, path, options in cases))
    for (status, path, options), answer in zip(cases, answers, strict=True):
        assert answer.status == status, (path, options, answer)
        assert answer.error["message"], (path, options)
        assert "Traceback" not in answer.body.decode()


def test_every_verb_checks_the_types_of_its_arguments(home: Home) -> None:
    """No argument of any verb is accepted with a wrong type."""
    wrong: list[Any] = [{"no": "such"}, [[]], 1e99, {"": None}]
    cases = [
        (f"/api/{name.replace('.', '/')}", {"body": dict.fromkeys(_names(name), value)})
        for name in sorted(VERBS)
        for value in wrong
    ]
    cases = [case for case in cases if case[1]["body"]]
    for case, answer in zip(cases, send_all(home, *cases), strict=True):
        assert answer.status == 400, (case, answer)
        assert answer.error["code"] == "usage"


def _names(verb: str) -> list[str]:
    from guildhall.hall.client.codec import get_verb as known

    return list(known(verb).parameters)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\nOrigin: http://127.0.0.1\r\n\r\n",
        b"POST /api/runs/list HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/runs/list HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",  # TLS
    ],
)
def test_invalid_http_gets_an_error_and_the_hall_continues(home: Home, data: bytes) -> None:
    async def work(hall: ServedHall) -> None:
        answer = await send_bytes(hall.address.port, data)
        assert answer.status in (400, 421)
        assert answer.error["message"]
        assert (await send_request(hall.address, "/api/runs/list")).status == 200

    run_in_hall(home, work)


def test_a_chunked_request_is_cut_off_at_the_size_limit(home: Home) -> None:
    async def work(hall: ServedHall) -> None:
        head = (
            f"POST /api/runs/list HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {hall.address.token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", hall.address.port)
        writer.write(head)
        piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"

        async def pour() -> None:
            for _ in range(MAX_BODY_BYTES // 0x100000 + 2):
                writer.write(piece)
                await writer.drain()

        pouring = asyncio.create_task(pour())
        async with asyncio.timeout(10):
            line = await reader.readline()
        assert line.split()[1] == b"413"
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        writer.close()

    run_in_hall(home, work)


def test_a_missing_body_times_out(home: Home) -> None:
    async def work(hall: ServedHall) -> HttpResponse:
        hall.process.api._body_timeout_s = 0.1
        return await send_request(hall.address, "/api/runs/list", raw=b"{", headers={"Content-Length": "100"})

    answer = run_in_hall(home, work)
    assert (answer.status, answer.error["code"]) == (408, "timed_out")


def test_a_stream_starts_with_run_started_and_ends_with_an_end_mark(home: Home, project: Path) -> None:
    put_worker(project, sandboxes=None, tool_rules=None)
    put_script(project, DONE)
    frame = Frame.here(project, {})

    async def work(hall: ServedHall) -> HttpResponse:
        request = encode(RunRequest(worker="scribe", input="go"))
        return await send_request(
            hall.address, "/api/runs/run", {"request": request, "frame": encode(frame)}, headers={"Connection": "close"}
        )

    answer = run_in_hall(home, work)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.body.splitlines() if line.startswith(b"{")]
    assert lines[0]["item"]["type"] == "run_started"
    assert lines[-2]["item"]["type"] == "run_ended"
    assert lines[-1] == {"end": True}
