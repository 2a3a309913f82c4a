"""The model door over HTTP: real clients of Anthropic and OpenAI in the place of a program, and HTTP by hand."""

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

from guildhall.core.frame import Frame
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import DoorApp, LlmEndpoint
from guildhall.runs.model import RunRequest
from guildhall.runtimes.model import Outcome, ProgramHooks
from guildhall.testing.scripted_server import ScriptedServer
from tests.hall.doors import Desk, listening, put
from tests.models.passages import KEY, Upstream, streamed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic_ai.messages import ModelResponse

    from guildhall.core.paths import Home
    from guildhall.runtimes.model import Assignment, DoorAccess, HttpDoors

SCRIPT = {"clerk": [[{"say": "I add.", "call": "add", "with": {"a": 1, "b": 2}}, {"expect": "3", "say": "it is 3"}]]}
ADD = {"name": "mcp__tools__add", "description": "d", "input_schema": {"type": "object"}}
ASKED: Any = {
    "model": "whatever",
    "max_tokens": 1000,
    "system": "Work.",
    "messages": [{"role": "user", "content": "go"}],
    "tools": [ADD, {"name": "Bash", "input_schema": {"type": "object"}}],
}


class Door:
    """A runtime that lets one program in and waits for it to be over."""

    def __init__(self) -> None:
        self.entry: asyncio.Future[DoorAccess] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.heard: list[ModelResponse] = []

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        entry = doors.register(
            ProgramHooks(name_tool=lambda server, tool: f"mcp__{server}__{tool}", on_answer=self.heard.append)
        )
        self.entry.set_result(entry)
        try:
            await self.over.wait()
            await entry.wait_for_calls()
        finally:
            entry.close()
        return Outcome(output=self.heard[-1].text if self.heard else None, messages=[])


class Visit:
    """A program at the doors of a run."""

    def __init__(self, hall: Hall, door: Door, url: str, run: str, entry: DoorAccess) -> None:
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
        told = {"x-api-key": self.token, "content-type": "application/json", **headers}
        async with httpx2.AsyncClient(trust_env=False) as client:
            return await client.post(f"{self.url}{path}", content=body, headers=told)

    async def ended(self) -> Any:
        self.door.over.set()
        async with asyncio.timeout(5):
            while (run := self.hall.history.get(self.run)).status == "running":  # noqa: ASYNC110 - as anybody would look
                await asyncio.sleep(0.01)
        return run

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data.to_record() for entry in self.hall.history.entries(self.run) if entry.kind == kind]


@asynccontextmanager
async def visiting(home: Home, project: Path, model: str = "script:s.yaml", **environ: str) -> AsyncGenerator[Visit]:
    (project / "s.yaml").write_text(json.dumps({"workers": SCRIPT}))
    put(project, "clerk", model=model)
    door = Door()
    policy = RunPolicy(runtime_of=lambda *_: door)
    hall = Hall(home, environ={**os.environ, **environ}, policy=policy)
    try:
        request = RunRequest(worker="clerk", input="go")
        prepared = await hall.runs.prepare(request, Frame.here(project, {}), [Desk().toolbox()])
        hall.runs.launch(prepared)
        async with asyncio.timeout(5):
            entry = await door.entry
        async with listening(DoorApp(hall.runtimes.tokens.find)) as url:
            yield Visit(hall, door, url, prepared.run, entry)
    finally:
        await hall.close()


def tools(*names: str) -> list[dict[str, Any]]:
    return [{**ADD, "name": f"mcp__tools__{name}"} for name in names]


EVERY = tools("add", "note", "hold", "picture", "broken")
ASKED["tools"] = [*EVERY, {"name": "Bash", "input_schema": {"type": "object"}}]


@pytest.mark.req("X-14")
def test_a_client_of_anthropic_is_answered_by_the_script_and_by_the_record(home: Home, project: Path) -> None:
    async def work() -> None:
        async with visiting(home, project) as visit:
            async with visit.anthropic as client:
                first = await client.messages.create(**ASKED)
                said, call = first.content
                assert (said.text, call.name, call.input) == ("I add.", "mcp__tools__add", {"a": 1, "b": 2})
                async with client.messages.stream(**ASKED) as again:
                    assert [block.type for block in (await again.get_final_message()).content] == ["text", "tool_use"]
                answered: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
                result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
                more = [*ASKED["messages"], answered, {"role": "user", "content": [result]}]
                assert (await client.messages.create(**{**ASKED, "messages": more})).content[0].text == "it is 3"
                assert await client.messages.count_tokens(model="x", system="Work.", messages=ASKED["messages"])
                assert [model.id async for model in client.models.list()] == ["model"]
            run = await visit.ended()
            assert (run.status, run.output, len(visit.kinds("model_answered"))) == ("completed", "it is 3", 2)

    asyncio.run(work())


@pytest.mark.req("X-14")
def test_a_client_of_openai_is_answered_too(home: Home, project: Path) -> None:
    functions: Any = [
        {"type": "function", "function": {"name": tool["name"], "parameters": {"type": "object"}}} for tool in EVERY
    ]

    async def work() -> None:
        async with visiting(home, project) as visit, visit.openai as client:
            talk: Any = [{"role": "system", "content": "Work."}, {"role": "user", "content": "go"}]
            chat = await client.chat.completions.create(model="x", messages=talk, tools=functions)
            (call,) = chat.choices[0].message.tool_calls or ()
            assert (call.function.name, json.loads(call.function.arguments)) == ("mcp__tools__add", {"a": 1, "b": 2})
            flat: Any = [{"type": "function", **function["function"]} for function in functions]
            response = await client.responses.create(model="x", instructions="Work.", input="go", tools=flat)
            assert response.output_text == "I add."
            assert [item.name for item in response.output if item.type == "function_call"] == ["mcp__tools__add"]
            assert [model.id async for model in client.models.list()] == ["model"]
            assert len(visit.kinds("model_answered")) == 1, "the same question, whatever the format"

    asyncio.run(work())


@pytest.mark.req("X-14")
def test_the_whole_chain_to_a_provider(home: Home, project: Path, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(json.dumps({"workers": {"far": SCRIPT["clerk"]}}))

    async def work(server: ScriptedServer) -> None:
        keys = {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-far"}
        async with visiting(home, project, "anthropic:claude-sonnet-5", **keys) as visit:
            async with visit.anthropic as client, client.messages.stream(**ASKED) as stream:
                message = await stream.get_final_message()
            assert [block.type for block in message.content] == ["text", "tool_use"]
            (answer,) = visit.door.heard
            assert answer.tool_calls[0].tool_name == "add"
            assert visit.kinds("model_answered")[0]["cost_usd"] > 0
            (asked,) = server.requests
            assert [tool["name"] for tool in (asked.body or {})["tools"]] == [tool["name"] for tool in EVERY]
            assert asked.key == "script-far"
            assert visit.token not in json.dumps(asked.body)

    with ScriptedServer(tmp_path / "far.yaml") as server:
        asyncio.run(work(server))


@pytest.mark.req("X-14")
def test_a_refusal_ends_the_run_with_an_error_of_its_own(home: Home, project: Path, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(json.dumps({"workers": {"far": [[{"fail": 401}]]}}))

    async def work(server: ScriptedServer) -> None:
        keys = {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-far"}
        async with visiting(home, project, "anthropic:claude-sonnet-5", **keys) as visit:
            async with visit.anthropic as client:
                with pytest.raises(anthropic.AuthenticationError, match="HTTP 401"):
                    await client.messages.create(**ASKED)
            run = await visit.ended()
            assert (run.status, run.reason) == ("failed", "key_refused")
            assert "ANTHROPIC_API_KEY" in run.error["hint"]
            assert len(server.requests) == 1
            assert (await visit.post("/llm/anthropic/v1/messages", ASKED)).status_code == 401

    with ScriptedServer(tmp_path / "far.yaml") as server:
        asyncio.run(work(server))


def test_a_program_that_hangs_up_has_its_answer_when_it_comes_again(home: Home, project: Path) -> None:
    told = [
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "slow"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    pieces = [f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode() for data in told]

    async def work() -> None:
        more = asyncio.Event()
        async with Upstream([streamed([*pieces[:3], more, *pieces[3:]])]).serving() as upstream:
            keys = {"ANTHROPIC_BASE_URL": upstream.url, "ANTHROPIC_API_KEY": KEY}
            async with visiting(home, project, "anthropic:claude-sonnet-5", **keys) as visit:
                headers = {"authorization": f"Bearer {visit.token}"}
                async with httpx2.AsyncClient(trust_env=False, headers=headers) as client:
                    url = f"{visit.url}/llm/anthropic/v1/messages"
                    async with client.stream("POST", url, json={**ASKED, "stream": True}) as response:
                        async for _ in response.aiter_bytes():
                            break
                more.set()
                async with asyncio.timeout(5):
                    while not visit.kinds("model_answered"):  # noqa: ASYNC110 - as anybody would look
                        await asyncio.sleep(0.01)
                again = (await visit.post("/llm/anthropic/v1/messages", ASKED)).json()
                assert again["content"] == [{"type": "text", "text": "slow"}]
                assert len(upstream.heard) == 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "headers", "content", "status"),
    [
        ("/llm/anthropic/v1/messages", {"x-api-key": "wrong"}, ASKED, 401),
        ("/llm/anthropic/v1/messages", {"x-api-key": ""}, ASKED, 401),
        ("/llm/openai/v1/responses", {"x-api-key": "wrong"}, ASKED, 401),
        ("/llm/anthropic/v1/messages", {"host": "example.com"}, ASKED, 421),
        ("/llm/anthropic/v1/messages", {"origin": "https://example.com"}, ASKED, 403),
        ("/llm/anthropic/v1/messages", {"content-type": "text/plain"}, ASKED, 415),
        ("/llm/anthropic/v1/messages", {}, b"{", 400),
        ("/llm/anthropic/v1/messages", {}, b"\xff\xfe", 400),
        ("/llm/anthropic/v1/messages", {}, b'{"a":' * 100_000, 400),
        ("/llm/anthropic/v1/messages", {}, b" " * 33_000_000, 413),
        ("/llm/anthropic/v1/files", {}, ASKED, 404),
        ("/llm/anthropic/v1/messages/batches", {}, ASKED, 404),
        ("/llm/openai/v1/embeddings", {}, ASKED, 404),
        ("/llm/anthropic/v1/models", {}, ASKED, 404),
        ("/llm/", {}, ASKED, 404),
    ],
)
def test_who_and_what_is_not_heard(
    home: Home, project: Path, path: str, headers: dict[str, str], content: Any, status: int
) -> None:
    async def work() -> None:
        async with visiting(home, project) as visit:
            response = await visit.post(path, content, **headers)
            assert response.status_code == status
            error = response.json()["error"]
            assert error["message"]
            assert ("type" in response.json()) == ("anthropic" in path)
            assert visit.kinds("model_asked") == []
            assert visit.hall.history.get(visit.run).status == "running"

    asyncio.run(work())


NOTE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "note", "arguments": {"number": 1}}}


@pytest.mark.req("X-14")
@pytest.mark.parametrize(("path", "message"), [("/llm/anthropic/v1/messages", ASKED), ("/mcp/tools/", NOTE)])
def test_a_message_that_was_begun_before_the_end_and_comes_after_it_does_nothing(
    home: Home, project: Path, path: str, message: Any
) -> None:
    body = json.dumps(message).encode()

    async def work() -> None:
        async with visiting(home, project) as visit:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(visit.url).port)
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {visit.token}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[:10])
            await asyncio.sleep(0.05)
            assert (await visit.ended()).status == "completed"
            writer.write(body[10:])
            async with asyncio.timeout(5):
                assert (await reader.readline()).split()[1] == b"401"
            writer.close()
            assert visit.kinds("model_asked") == visit.kinds("tool_started") == []

    asyncio.run(work())


def test_the_token_of_a_run_that_nobody_was_let_in_to_opens_no_model_door(home: Home, project: Path) -> None:
    async def work() -> None:
        async with visiting(home, project) as visit:
            bare = visit.hall.runs.token(visit.run)
            assert (await visit.post("/llm/anthropic/v1/messages", ASKED, **{"x-api-key": bare})).status_code == 401
            async with httpx2.AsyncClient(trust_env=False) as client:
                got = await client.get(f"{visit.url}/llm/anthropic/v1/messages", headers={"x-api-key": visit.token})
                assert got.status_code == 405

    asyncio.run(work())


def test_every_path_and_only_those_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model-door.md").read_text()
    endpoint = LlmEndpoint(lambda token: None)
    served = {f"POST {path}" for path in endpoint._dialects} | {f"GET {path}" for path in endpoint._model_lists}
    assert set(re.findall(r"`((?:GET|POST) /llm/[^`]*)`", page)) == served
