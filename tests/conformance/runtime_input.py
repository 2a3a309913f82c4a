"""Checks of the model input, as the provider receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.testing.scripted_server import ScriptedServer
from tests.conformance.bench import PROMPT, TASK, WORKER, write
from tests.conformance.document_store_checks import check_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.conformance.bench import Bench


async def the_model_gets_only_the_prompt_the_tools_and_the_task(bench: Bench) -> None:
    bodies, tools = await _run_with_provider(bench)
    for body in bodies:
        check_equal(
            sorted(_strip_prefix(name, tools) for name in _tool_names(body)), sorted(tools), "tools in the request"
        )
        check_equal(_prompt(body), PROMPT, "system prompt in the request")
        check_equal(user_messages(body), [TASK], "user messages in the request")


async def _run_with_provider(bench: Bench) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Run the worker with a provider, and return the requests and the names of the tools of the run."""
    bench.write_worker(write("a.md"), {"say": "done"}, model=bench.real_model)
    with ScriptedServer(bench.script) as server:
        url = server.anthropic_url if bench.provider == "anthropic" else server.openai_url
        name, key = bench.provider.upper(), f"script-{WORKER}"
        async with bench.hall({f"{name}_BASE_URL": url, f"{name}_API_KEY": key}) as session:
            run = await session.state((await session.run())[0].run)
            check_equal((run.status, run.output, run.error), ("completed", "done", None), "end of the run")
            (assembled,) = await session.entries(run.id, "assembled")
    check_equal([exchange.answered for exchange in server.requests], [True, True], "requests to the provider")
    return [exchange.body or {} for exchange in server.requests], [tool["name"] for tool in assembled.data.tools]


def _strip_prefix(name: str, tools: Sequence[str]) -> str:
    """Return the name of a tool without the server prefix that programs add."""
    return next((tool for tool in tools if name == tool or name.endswith(f"_{tool}")), name)


def _tool_names(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tool names in a request to Anthropic, OpenAI Responses or OpenAI Chat Completions."""
    for tool in body.get("tools", ()):
        if tool.get("type") == "namespace":
            yield from (f"{tool['name']}_{inner['name']}" for inner in tool["tools"])
        else:
            yield tool.get("function", tool).get("name") or tool["type"]


def _prompt(body: Mapping[str, Any]) -> str:
    texts = [*_texts(body.get("system")), *_texts(body.get("instructions"))]
    for message in _messages(body):
        if message.get("role") in ("system", "developer"):
            texts += _texts(message["content"])
    return "\n".join(texts)


def user_messages(body: Mapping[str, Any]) -> list[str]:
    """Return the user messages in a request, in order."""
    return [text for message in _messages(body) if message.get("role") == "user" for text in _texts(message["content"])]


def model_messages(body: Mapping[str, Any]) -> list[str]:
    """Return the model messages in a request, in order."""
    by_model = [message for message in _messages(body) if message.get("role") == "assistant"]
    return [text for message in by_model for text in _texts(message.get("content"))]


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: Any = body.get("messages") or body.get("input") or []
    return [{"role": "user", "content": found}] if isinstance(found, str) else found


def _texts(content: Any) -> list[str]:
    """Return the texts of a message in any form, without tool results."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") in ("text", "input_text", "output_text")]
