"""The model door over HTTP, with the clients of Anthropic and OpenAI and by hand."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai
import pytest

from guildhall.core.request_frame import Frame
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import DoorApp, LlmEndpoint
from guildhall.runs.model import RunRequest
from guildhall.runtimes.model import Outcome, ProgramHooks
from guildhall.testing.scripted_server import ScriptedServer
from tests.hall.doors import SampleTools, serve_app, write_worker
from tests.models.passthrough_run import KEY, Upstream, streamed_answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic_ai.messages import ModelResponse

    from guildhall.core.paths import Home
    from guildhall.runtimes.model import Assignment, DoorAccess, HttpDoors

SCRIPT = {"clerk": [[{"say": "I add.", "call": "add", "with": {"a": 1, "b": 2}}, {"expect": "3", "say": "it is 3"}]]}
ADD = {"name": "mcp__tools__add", "description": "d", "input_schema": {"type": "object"}}
REQUEST: Any = {
    "model": "whatever",
    "max_tokens": 1000,
    "system": "Work.",
    "messages": [{"role": "user", "content": "go"}],
    "tools": [ADD, {"name": "Bash", "input_schema": {"type": "object"}}],
}


class SingleProgramRuntime:
    """A runtime that registers one program and waits for its end."""

    def __init__(self) -> None:
        self.entry: asyncio.Future[DoorAccess] = asyncio.get_running_loop().create_future()
        self.is_over = asyncio.Event()
        self.answers: list[ModelResponse] = []

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        entry = doors.register(
            ProgramHooks(name_tool=lambda server, tool: f"mcp__{server}__{tool}", on_answer=self.answers.append)
        )
        self.entry.set_result(entry)
        try:
            await self.is_over.wait()
            await entry.wait_for_calls()
        finally:
            entry.close()
        return Outcome(output=self.answers[-1].text if self.answers else None, messages=[])


class ProgramSession:
    """A program with access to the doors of a run."""

    def __init__(self, hall: Hall, door: SingleProgramRuntime, url: str, run: str, entry: DoorAccess) -> None:
        self.hall = hall
        self.door = door
        self.url = url
        self.run = run
        self.token = entry.token

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=f"{self.url}/llm/anthropic", api_key=self.token, max_retries=2)

    @property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/llm/openai/v1", api_key=self.token, max_retries=2)

    async def post(self, path: str, content: Any = None, **headers: str) -> httpx2.Response:
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        sent = {"x-api-key": self.token, "content-type": "application/json", **headers}
        async with httpx2.AsyncClient(trust_env=False) as client:
            return await client.post(f"{self.url}{path}", content=body, headers=sent)

    async def wait_ended(self) -> Any:
        self.door.is_over.set()
        async with asyncio.timeout(5):
            while (run := self.hall.history.get(self.run)).status == "running":  # noqa: ASYNC110 - polls like a client
                await asyncio.sleep(0.01)
        return run

    def read_entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data.to_record() for entry in self.hall.history.entries(self.run) if entry.kind == kind]


@asynccontextmanager
async def open_session(
    home: Home, project: Path, model: str = "script:s.yaml", **environ: str
) -> AsyncGenerator[ProgramSession]:
    (project / "s.yaml").write_text(json.dumps({"workers": SCRIPT}))
    write_worker(project, "clerk", model=model)
    door = SingleProgramRuntime()
    policy = RunPolicy(runtime_of=lambda *_: door)
    hall = Hall(home, environ={**os.environ, **environ}, policy=policy)
    try:
        request = RunRequest(worker="clerk", input="go")
        prepared = await hall.runs.prepare(request, Frame.here(project, {}), [SampleTools().toolbox()])
        hall.runs.launch(prepared)
        async with asyncio.timeout(5):
            entry = await door.entry
        async with serve_app(DoorApp(hall.runtimes.tokens.find)) as url:
            yield ProgramSession(hall, door, url, prepared.run_id, entry)
    finally:
        await hall.close()


def tools(*names: str) -> list[dict[str, Any]]:
    return [{**ADD, "name": f"mcp__tools__{name}"} for name in names]


ALL_TOOLS = tools("add", "note", "hold", "picture", "broken")
REQUEST["tools"] = [*ALL_TOOLS, {"name": "Bash", "input_schema": {"type": "object"}}]


@pytest.mark.req("X-14")
def test_a_client_of_anthropic_gets_scripted_and_recorded_answers(home: Home, project: Path) -> None:
    async def work() -> None:
        async with open_session(home, project) as session:
            async with session.anthropic as client:
                first = await client.messages.create(**REQUEST)
                said, call = first.content
                assert (said.text, call.name, call.input) == ("I add.", "mcp__tools__add", {"a": 1, "b": 2})
                async with client.messages.stream(**REQUEST) as again:
                    assert [block.type for block in (await again.get_final_message()).content] == ["text", "tool_use"]
                answered: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
                result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
                more = [*REQUEST["messages"], answered, {"role": "user", "content": [result]}]
                assert (await client.messages.create(**{**REQUEST, "messages": more})).content[0].text == "it is 3"
                assert await client.messages.count_tokens(model="x", system="Work.", messages=REQUEST["messages"])
                assert [model.id async for model in client.models.list()] == ["model"]
            run = await session.wait_ended()
            assert (run.status, run.output, len(session.read_entries("model_answered"))) == ("completed", "it is 3", 2)

    asyncio.run(work())


@pytest.mark.req("X-14")
def test_a_client_of_openai_gets_scripted_answers(home: Home, project: Path) -> None:
    functions: Any = [
        {"type": "function", "function": {"name": tool["name"], "parameters": {"type": "object"}}} for tool in ALL_TOOLS
    ]

    async def work() -> None:
        async with open_session(home, project) as session, session.openai as client:
            talk: Any = [{"role": "system", "content": "Work."}, {"role": "user", "content": "go"}]
            chat = await client.chat.completions.create(model="x", messages=talk, tools=functions)
            (call,) = chat.choices[0].message.tool_calls or ()
            assert (call.function.name, json.loads(call.function.arguments)) == ("mcp__tools__add", {"a": 1, "b": 2})
            flat: Any = [{"type": "function", **function["function"]} for function in functions]
            response = await client.responses.create(model="x", instructions="Work.", input="go", tools=flat)
            assert response.output_text == "I add."
            assert [item.name for item in response.output if item.type == "function_call"] == ["mcp__tools__add"]
            assert [model.id async for model in client.models.list()] == ["model"]
            assert len(session.read_entries("model_answered")) == 1, "the same question, whatever the format"

    asyncio.run(work())


@pytest.mark.req("X-14")
def test_a_request_reaches_the_provider_with_its_key(home: Home, project: Path, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(json.dumps({"workers": {"far": SCRIPT["clerk"]}}))

    async def work(server: ScriptedServer) -> None:
        keys = {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-far"}
        async with open_session(home, project, "anthropic:claude-sonnet-5", **keys) as session:
            async with session.anthropic as client, client.messages.stream(**REQUEST) as stream:
                message = await stream.get_final_message()
            assert [block.type for block in message.content] == ["text", "tool_use"]
            (answer,) = session.door.answers
            assert answer.tool_calls[0].tool_name == "add"
            assert session.read_entries("model_answered")[0]["cost_usd"] > 0
            (asked,) = server.requests
            assert [tool["name"] for tool in (asked.body or {})["tools"]] == [tool["name"] for tool in ALL_TOOLS]
            assert asked.key == "script-far"
            assert session.token not in json.dumps(asked.body)

    with ScriptedServer(tmp_path / "far.yaml") as server:
        asyncio.run(work(server))


@pytest.mark.req("X-14")
def test_a_refused_key_fails_the_run_with_its_own_error(home: Home, project: Path, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(json.dumps({"workers": {"far": [[{"fail": 401}]]}}))

    async def work(server: ScriptedServer) -> None:
        keys = {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-far"}
        async with open_session(home, project, "anthropic:claude-sonnet-5", **keys) as session:
            async with session.anthropic as client:
                with pytest.raises(anthropic.AuthenticationError, match="HTTP 401"):
                    await client.messages.create(**REQUEST)
            run = await session.wait_ended()
            assert (run.status, run.reason) == ("failed", "key_refused")
            assert "ANTHROPIC_API_KEY" in run.error["hint"]
            assert len(server.requests) == 1
            assert (await session.post("/llm/anthropic/v1/messages", REQUEST)).status_code == 401

    with ScriptedServer(tmp_path / "far.yaml") as server:
        asyncio.run(work(server))


def test_an_answer_is_kept_for_a_program_that_disconnects(home: Home, project: Path) -> None:
    events = [
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "slow"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    pieces = [f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode() for data in events]

    async def work() -> None:
        more = asyncio.Event()
        async with Upstream([streamed_answer([*pieces[:3], more, *pieces[3:]])]).serving() as upstream:
            keys = {"ANTHROPIC_BASE_URL": upstream.url, "ANTHROPIC_API_KEY": KEY}
            async with open_session(home, project, "anthropic:claude-sonnet-5", **keys) as session:
                headers = {"authorization": f"Bearer {session.token}"}
                async with httpx2.AsyncClient(trust_env=False, headers=headers) as client:
                    url = f"{session.url}/llm/anthropic/v1/messages"
                    async with client.stream("POST", url, json={**REQUEST, "stream": True}) as response:
                        async for _ in response.aiter_bytes():
                            break
                more.set()
                async with asyncio.timeout(5):
                    while not session.read_entries("model_answered"):  # noqa: ASYNC110 - polls like a client
                        await asyncio.sleep(0.01)
                again = (await session.post("/llm/anthropic/v1/messages", REQUEST)).json()
                assert again["content"] == [{"type": "text", "text": "slow"}]
                assert len(upstream.requests) == 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "headers", "content", "status"),
    [
        ("/llm/anthropic/v1/messages", {"x-api-key": "wrong"}, REQUEST, 401),
        ("/llm/anthropic/v1/messages", {"x-api-key": ""}, REQUEST, 401),
        ("/llm/openai/v1/responses", {"x-api-key": "wrong"}, REQUEST, 401),
        ("/llm/anthropic/v1/messages", {"host": "example.com"}, REQUEST, 421),
        ("/llm/anthropic/v1/messages", {"origin": "https://example.com"}, REQUEST, 403),
        ("/llm/anthropic/v1/messages", {"content-type": "text/plain"}, REQUEST, 415),
        ("/llm/anthropic/v1/messages", {}, b"{", 400),
        ("/llm/anthropic/v1/messages", {}, b"\xff\xfe", 400),
        ("/llm/anthropic/v1/messages", {}, b'{"a":' * 100_000, 400),
        ("/llm/anthropic/v1/messages", {}, b" " * 33_000_000, 413),
        ("/llm/anthropic/v1/files", {}, REQUEST, 404),
        ("/llm/anthropic/v1/messages/batches", {}, REQUEST, 404),
        ("/llm/openai/v1/embeddings", {}, REQUEST, 404),
        ("/llm/anthropic/v1/models", {}, REQUEST, 404),
        ("/llm/", {}, REQUEST, 404),
    ],
)
def test_invalid_requests_are_refused(
    home: Home, project: Path, path: str, headers: dict[str, str], content: Any, status: int
) -> None:
    async def work() -> None:
        async with open_session(home, project) as session:
            response = await session.post(path, content, **headers)
            assert response.status_code == status
            error = response.json()["error"]
            assert error["message"]
            assert ("type" in response.json()) == ("anthropic" in path)
            assert session.read_entries("model_asked") == []
            assert session.hall.history.get(session.run).status == "running"

    asyncio.run(work())


NOTE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "note", "arguments": {"number": 1}}}


@pytest.mark.req("X-14")
@pytest.mark.parametrize(("path", "message"), [("/llm/anthropic/v1/messages", REQUEST), ("/mcp/tools/", NOTE)])
def test_a_request_completed_after_the_run_has_no_effect(home: Home, project: Path, path: str, message: Any) -> None:
    body = json.dumps(message).encode()

    async def work() -> None:
        async with open_session(home, project) as session:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(session.url).port)
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {session.token}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[:10])
            await asyncio.sleep(0.05)
            assert (await session.wait_ended()).status == "completed"
            writer.write(body[10:])
            async with asyncio.timeout(5):
                assert (await reader.readline()).split()[1] == b"401"
            writer.close()
            assert session.read_entries("model_asked") == session.read_entries("tool_started") == []

    asyncio.run(work())


def test_the_token_of_a_run_without_a_program_opens_no_model_door(home: Home, project: Path) -> None:
    async def work() -> None:
        async with open_session(home, project) as session:
            bare = session.hall.runs.token(session.run)
            assert (await session.post("/llm/anthropic/v1/messages", REQUEST, **{"x-api-key": bare})).status_code == 401
            async with httpx2.AsyncClient(trust_env=False) as client:
                got = await client.get(f"{session.url}/llm/anthropic/v1/messages", headers={"x-api-key": session.token})
                assert got.status_code == 405

    asyncio.run(work())


def test_exactly_the_served_paths_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model-door.md").read_text()
    endpoint = LlmEndpoint(lambda token: None)
    served = {f"POST {path}" for path in endpoint._dialects} | {f"GET {path}" for path in endpoint._model_lists}
    assert set(re.findall(r"`((?:GET|POST) /llm/[^`]*)`", page)) == served
