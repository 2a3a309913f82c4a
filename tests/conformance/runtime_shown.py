"""What a runtime shows to the model, as the model's own end of the wire has it. See runtime_conformance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.testing.scripted_server import ScriptedServer
from tests.conformance.bench import PROMPT, TASK, WORKER, write
from tests.conformance.shelf_checks import same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.conformance.bench import Bench


async def the_model_is_shown_what_is_the_run_s_and_nothing_else(bench: Bench) -> None:
    bodies, tools = await _exchanged(bench)
    for body in bodies:
        same(sorted(_own(name, tools) for name in _tools(body)), sorted(tools), "the tools that the model is shown")
        same(_prompt(body), PROMPT, "the system prompt that the model is shown")
        same(said_to(body), [TASK], "what the model is told by the person")


async def _exchanged(bench: Bench) -> tuple[list[Mapping[str, Any]], list[str]]:
    """All that a provider is sent in a run, and the names of the run's tools."""
    bench.put(write("a.md"), {"say": "done"}, model=bench.real_model)
    with ScriptedServer(bench.script) as server:
        url = server.anthropic_url if bench.provider == "anthropic" else server.openai_url
        name, key = bench.provider.upper(), f"script-{WORKER}"
        async with bench.hall({f"{name}_BASE_URL": url, f"{name}_API_KEY": key}) as desk:
            run = await desk.state((await desk.run())[0].run)
            same((run.status, run.output, run.error), ("completed", "done", None), "how it ended")
            (assembled,) = await desk.record(run.id, "assembled")
    same([exchange.answered for exchange in server.requests], [True, True], "the requests that the provider got")
    return [exchange.body or {} for exchange in server.requests], [tool["name"] for tool in assembled.data.tools]


def _own(name: str, tools: Sequence[str]) -> str:
    """A tool's own name: programs put that of its server before it."""
    return next((tool for tool in tools if name == tool or name.endswith(f"_{tool}")), name)


def _tools(body: Mapping[str, Any]) -> Iterator[str]:
    """The names of the tools in a request to Anthropic, to OpenAI's Responses or to its Chat Completions."""
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


def said_to(body: Mapping[str, Any]) -> list[str]:
    """All that the person has said, in order."""
    return [text for message in _messages(body) if message.get("role") == "user" for text in _texts(message["content"])]


def answered_in(body: Mapping[str, Any]) -> list[str]:
    """All that the model is shown of what it has said itself, in order."""
    by_model = [message for message in _messages(body) if message.get("role") == "assistant"]
    return [text for message in by_model for text in _texts(message.get("content"))]


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: Any = body.get("messages") or body.get("input") or []
    return [{"role": "user", "content": found}] if isinstance(found, str) else found


def _texts(content: Any) -> list[str]:
    """The texts of a message, whatever their form; results of tools are none."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") in ("text", "input_text", "output_text")]
