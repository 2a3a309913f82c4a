"""Answers of OpenAI's Chat Completions API: put together from their chunks, read, and told again as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects.events import DONE
from guildhall.models.dialects.model import BrokenOff, Piece, count_of, event, keeping
from guildhall.models.dialects.reading import Malformed, mapping, objects, text
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import FinishReason, ModelResponsePart

API = "openai-chat"
_FINISH: Mapping[str, FinishReason] = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "length": "length",
    "content_filter": "content_filter",
}
_THOUGHTS = ("reasoning_content", "reasoning")  # what servers of one's own call them
_STREAMED = ("content", *_THOUGHTS)


class ChatCollector:
    """Hears the chunks of one completion. Of several choices the first one is the answer."""

    def __init__(self, *, usage: bool) -> None:
        self._wants_usage = usage
        self._head: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        self._written: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._held = False

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        if data == DONE or isinstance(data, str):
            self._held = True
            return Piece(fate="held")
        if data.get("error"):
            raise BrokenOff(data)
        heard = ""
        for choice, place in objects(data.get("choices"), "choices"):
            if not choice.get("index"):
                heard += self._delta(mapping(choice.get("delta") or {}, f"{place}.delta"))
                self._choice.update({k: v for k, v in choice.items() if k != "delta" and v is not None})
                self._held = self._held or choice.get("finish_reason") is not None
        self._head.update({k: v for k, v in data.items() if k != "choices" and v is not None})
        if not data.get("choices") and data.get("usage") and not self._wants_usage:
            return Piece(heard, "dropped")
        return Piece(heard, "held" if self._held else "on")

    def answer(self) -> dict[str, Any]:
        message = {**self._message, **{name: "".join(written) for name, written in self._written.items()}}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(self._arguments[index])}}
                for index, call in sorted(self._calls.items())
            ]
        return {**self._head, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _delta(self, delta: Mapping[str, Any]) -> str:
        for call, place in objects(delta.get("tool_calls"), "tool_calls"):
            self._held = True  # programs make a call as soon as its arguments could be complete
            self._call(call, place)
        for name, value in delta.items():
            if name == "role" or (isinstance(value, str) and name not in self._written and name not in _STREAMED):
                self._message[name] = value
            elif isinstance(value, str):
                self._written.setdefault(name, []).append(value)
            elif value is not None and name != "tool_calls":
                self._message[name] = value
        content = delta.get("content")
        return content if isinstance(content, str) else ""

    def _call(self, call: Mapping[str, Any], place: str) -> None:
        index = call.get("index", len(self._calls))
        if not isinstance(index, int):
            raise Malformed(f"{place}.index: expected a number")
        function = mapping(call.get("function") or {}, f"{place}.function")
        known = self._calls.setdefault(index, {"type": "function", "function": {}})
        written = function.get("arguments")
        self._arguments.setdefault(index, []).append("" if written is None else text(written, f"{place}.arguments"))
        known.update({k: v for k, v in call.items() if k not in ("index", "function") and v})
        known["function"].update({k: v for k, v in function.items() if k != "arguments" and v})


def response_of(answer: Mapping[str, Any]) -> ModelResponse:
    """A completion of the API as a response."""
    if answer.get("error"):
        raise BrokenOff(answer)
    choices = [choice for choice, _ in objects(answer.get("choices"), "choices")]
    reason = choices[0].get("finish_reason") if choices else None
    if not isinstance(reason, str):
        raise BrokenOff
    message = mapping(choices[0].get("message"), "message")
    parts = list(_parts(message))
    called = any(isinstance(part, ToolCallPart) for part in parts)
    return ModelResponse(
        parts=parts,
        usage=_usage(mapping(answer.get("usage") or {}, "usage")),
        model_name=str(answer.get("model") or ""),
        provider_name="openai",
        provider_response_id=str(answer.get("id") or ""),
        provider_details=keeping(API, answer),
        finish_reason=_FINISH.get(reason, "tool_call" if called else "stop"),
    )


def _parts(message: Mapping[str, Any]) -> Iterator[ModelResponsePart]:
    for name in _THOUGHTS:
        if isinstance(thought := message.get(name), str) and thought:
            yield ThinkingPart(thought, id=name, provider_name="openai")
            break
    said = message.get("content") or message.get("refusal")
    if said:
        yield TextPart(text(said, "content"))
    for call, place in objects(message.get("tool_calls"), "tool_calls"):
        function = mapping(call.get("function"), f"{place}.function")
        name, id = text(function.get("name"), f"{place}.name"), text(call.get("id"), f"{place}.id")
        yield ToolCallPart(name, text(function.get("arguments") or "{}", f"{place}.arguments"), id)


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    cached = mapping(usage.get("prompt_tokens_details") or {}, "prompt_tokens_details")
    thought = mapping(usage.get("completion_tokens_details") or {}, "completion_tokens_details")
    sent = count_of(usage.get("prompt_tokens"))
    return RequestUsage(
        input_tokens=sent,
        cache_read_tokens=min(sent, count_of(cached.get("cached_tokens"))),
        output_tokens=count_of(usage.get("completion_tokens")),
        output_reasoning_tokens=count_of(thought.get("reasoning_tokens")),
    )


def events_of(answer: Mapping[str, Any], *, usage: bool) -> Iterator[str]:
    """A whole completion as the chunks that make it."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    choice = answer["choices"][0]
    for delta in _deltas(choice["message"]):
        yield event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
    yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if usage:
        yield event({**head, "choices": [], "usage": answer.get("usage")})
    yield f"data: {DONE}\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    beside = {k: v for k, v in message.items() if k not in ("content", "tool_calls", *_THOUGHTS) and v is not None}
    yield {**beside, "content": ""}
    for name in (*_THOUGHTS, "content"):
        for piece in pieces(message.get(name) or ""):
            yield {name: piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]}
        for piece in pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
