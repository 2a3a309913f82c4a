"""Dialect of OpenAI's Chat Completions API: parses and builds the data of `/v1/chat/completions`.

Most other providers support this format too. Of several choices, only the first is read.
Does not send requests: `models.passthrough.relay` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects import base
from guildhall.models.dialects.base import CollectedEvent, Conversation, IncompleteAnswer, InvalidMessage, WireRequest
from guildhall.models.model import split_text

if TYPE_CHECKING:
    from pydantic_ai.messages import FinishReason, ModelResponsePart


API = "openai-chat"
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "length": "length",
    "content_filter": "content_filter",
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # of compatible servers, not of OpenAI
_STREAMED_FIELDS = ("content", *_REASONING_FIELDS)
_WIRE_REASONS = {"tool_call": "tool_calls", "length": "length", "content_filter": "content_filter"}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
SYSTEM_ROLES = ("system", "developer")


class ChatCollector:
    """Builds a completion from its chunks. Of several choices, only the first counts."""

    def __init__(self, *, wants_usage: bool) -> None:
        self._wants_usage = wants_usage
        self._fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        self._chunks: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._is_holding = False

    def add(self, data: Mapping[str, Any] | str) -> CollectedEvent:
        if data == base.DONE or isinstance(data, str):
            self._is_holding = True
            return CollectedEvent(action="hold")
        if data.get("error"):
            raise IncompleteAnswer(data)
        text = ""
        for choice, path in base.objects(data, "choices"):
            if not choice.get("index"):
                text += self._add_delta(base.optional_mapping(choice, "delta", path))
                self._choice.update({k: v for k, v in choice.items() if k != "delta" and v is not None})
                self._is_holding = self._is_holding or choice.get("finish_reason") is not None
        self._fields.update({k: v for k, v in data.items() if k != "choices" and v is not None})
        if not data.get("choices") and data.get("usage") and not self._wants_usage:
            return CollectedEvent(text, "drop")
        return CollectedEvent(text, "hold" if self._is_holding else "forward")

    def answer(self) -> dict[str, Any]:
        message = {**self._message, **{name: "".join(chunks) for name, chunks in self._chunks.items()}}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(self._arguments[index])}}
                for index, call in sorted(self._calls.items())
            ]
        return {**self._fields, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _add_delta(self, delta: Mapping[str, Any]) -> str:
        for call, path in base.objects(delta, "tool_calls"):
            self._is_holding = True  # programs execute a call as soon as its arguments could be complete
            self._add_call(call, path)
        for name, value in delta.items():
            if name == "role" or (isinstance(value, str) and name not in self._chunks and name not in _STREAMED_FIELDS):
                self._message[name] = value
            elif isinstance(value, str):
                self._chunks.setdefault(name, []).append(value)
            elif value is not None and name != "tool_calls":
                self._message[name] = value
        content = delta.get("content")
        return content if isinstance(content, str) else ""

    def _add_call(self, call: Mapping[str, Any], path: str) -> None:
        index = call.get("index", len(self._calls))
        if not isinstance(index, int):
            raise InvalidMessage(f"{path}.index: expected an integer")
        function = base.optional_mapping(call, "function", path)
        collected = self._calls.setdefault(index, {"type": "function", "function": {}})
        self._arguments.setdefault(index, []).append(base.text(function, "arguments", path, default=""))
        collected.update({k: v for k, v in call.items() if k not in ("index", "function") and v})
        collected["function"].update({k: v for k, v in function.items() if k != "arguments" and v})


def _response_parts(message: Mapping[str, Any]) -> Iterator[ModelResponsePart]:
    for name in _REASONING_FIELDS:
        if isinstance(thought := message.get(name), str) and thought:
            yield ThinkingPart(thought, id=name, provider_name="openai")
            break
    if field := next((name for name in ("content", "refusal") if message.get(name)), None):
        yield TextPart(base.text(message, field))
    for call, path in base.objects(message, "tool_calls"):
        function = base.mapping(call, "function", path)
        name, id = base.text(function, "name", path), base.text(call, "id", path)
        yield ToolCallPart(name, base.text(function, "arguments", path, default="{}"), id)


def openai_usage(usage: Mapping[str, Any], input_field: str, output_field: str) -> RequestUsage:
    """Convert the usage. The parameters are the fields of the token counts, which both APIs name differently."""
    cached = base.optional_mapping(usage, f"{input_field}_details")
    reasoning = base.optional_mapping(usage, f"{output_field}_details")
    input_tokens = base.token_count(usage.get(input_field))
    read = min(input_tokens, base.token_count(cached.get("cached_tokens")))
    return RequestUsage(
        input_tokens=input_tokens,
        cache_read_tokens=read,
        cache_write_tokens=min(input_tokens - read, base.token_count(cached.get("cache_write_tokens"))),
        output_tokens=base.token_count(usage.get(output_field)),
        output_reasoning_tokens=base.token_count(reasoning.get("reasoning_tokens")),
    )


def _message_deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    fields = ("content", "tool_calls", *_REASONING_FIELDS)
    others = {name: value for name, value in message.items() if name not in fields and value is not None}
    yield {**others, "content": ""}
    for name in (*_REASONING_FIELDS, "content"):
        for chunk in split_text(message.get(name) or ""):
            yield {name: chunk}
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]}
        for chunk in split_text(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": chunk}}]}


def openai_error(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error body in the format of both OpenAI APIs."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "invalid_api_key" if status == 401 else "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class OpenAIChat:
    api: ClassVar[str] = API
    path: ClassVar[str] = "/chat/completions"

    def parse_request(self, body: Mapping[str, Any]) -> WireRequest:
        conversation = Conversation()
        for message, path in base.objects(body, "messages"):
            _append_message(conversation, message, path)
        limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        options = base.optional_mapping(body, "stream_options")
        tools = [
            base.tool_definition(base.mapping(tool, "function", path), "parameters", f"{path}.function")
            for tool, path in base.objects(body, "tools")
            if base.text(tool, "type", path) == "function"
        ]
        return WireRequest(
            model=base.text(body, "model"),
            messages=conversation.finish(),
            settings=base.request_settings(body, limit),
            parameters=base.request_parameters(tools),
            stream=base.flag(body, "stream"),
            stream_usage=base.flag(options, "include_usage", "stream_options"),
        )

    def build_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        if (answer := base.recorded_answer(response, API)) is not None:
            return _rename_calls(answer, base.call_names(response))
        calls, usage = base.tool_calls(response), response.usage
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
        if calls:
            functions = [{"name": call.tool_name, "arguments": call.args_as_json_str()} for call in calls]
            message["tool_calls"] = [
                {"id": call.tool_call_id, "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
        reason = _WIRE_REASONS.get(response.finish_reason or "", "stop")
        return {
            "id": f"chatcmpl-{answer_id}",
            "object": "chat.completion",
            "created": int(response.timestamp.timestamp()),
            "model": request.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.input_tokens + usage.output_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
                "completion_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
            },
        }

    def stream_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        answer = self.build_answer(request, response, answer_id)
        chunk = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
        chunk["object"] = "chat.completion.chunk"
        choice = answer["choices"][0]
        for delta in _message_deltas(choice["message"]):
            part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            yield base.encode_event({**chunk, "choices": [part]})
        final_choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield base.encode_event({**chunk, "choices": [final_choice]})
        if request.stream_usage:
            yield base.encode_event({**chunk, "choices": [], "usage": answer.get("usage")})
        yield f"data: {base.DONE}\n\n"

    def error_body(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def error_event(self, status: int, message: str) -> str:
        return base.encode_event(self.error_body(status, message))

    def create_collector(self, *, wants_usage: bool) -> ChatCollector:
        return ChatCollector(wants_usage=wants_usage)

    def parse_answer(self, answer: Mapping[str, Any]) -> ModelResponse:
        if answer.get("error"):
            raise IncompleteAnswer(answer)
        choices = [choice for choice, _ in base.objects(answer, "choices")]
        reason = choices[0].get("finish_reason") if choices else None
        if not isinstance(reason, str):
            raise IncompleteAnswer
        parts = list(_response_parts(base.mapping(choices[0], "message")))
        has_tool_calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = openai_usage(base.optional_mapping(answer, "usage"), "prompt_tokens", "completion_tokens")
        finish = _FINISH_REASONS.get(reason, "tool_call" if has_tool_calls else "stop")
        return base.build_response(answer, parts, API, "openai", usage, finish)

    def system_prompt(self, body: Mapping[str, Any]) -> str:
        messages = [(m, path) for m, path in base.objects(body, "messages") if m.get("role") in SYSTEM_ROLES]
        return "\n".join(base.text_content(message, "content", path) for message, path in messages)

    def trim(self, body: Mapping[str, Any], rules: base.TrimRules) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "system", "content": rules.prompt}] if rules.prompt else []
        messages += [m for m, _ in base.objects(body, "messages") if m.get("role") not in SYSTEM_ROLES]
        tools = [
            {**tool, "function": rules.define_tool(function, "parameters")}
            for tool, path in base.objects(body, "tools")
            if base.tool_name(function := base.optional_mapping(tool, "function", path)) in rules.tools
        ]
        removed_fields = {*base.FORBIDDEN_FIELDS, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
        trimmed = {**body, "messages": messages, "tools": tools}
        return {name: value for name, value in trimmed.items() if name not in removed_fields}

    def upstream_body(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            limit = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
            sent[limit] = min(max_tokens, body.get(limit) or max_tokens)
        if body.get("stream"):  # the hall needs the token counts, even if the client does not
            sent["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return sent


def _append_message(conversation: Conversation, message: Mapping[str, Any], path: str) -> None:
    role = base.text(message, "role", path)
    if role == "user":
        conversation.add_user(base.user_content(message, path, _decode_file))
        return
    text = base.text_content(message, "content", path)
    if role in SYSTEM_ROLES:
        conversation.add_system(text)
    elif role == "tool":
        call_id = base.text(message, "tool_call_id", path)
        conversation.add_result(call_id, text, f"{path}.tool_call_id")
    elif role == "assistant":
        conversation.add_text(text)
        for call, call_path in base.objects(message, "tool_calls", path):
            function = base.mapping(call, "function", call_path)
            conversation.add_call(
                base.text(call, "id", call_path),
                base.text(function, "name", f"{call_path}.function"),
                base.text(function, "arguments", f"{call_path}.function"),
                f"{call_path}.id",
            )
        conversation.end_turn()
    else:
        raise InvalidMessage(f"{path}.role: expected system, developer, user, assistant or tool", f"{path}.role")


def _decode_file(block: Mapping[str, Any], path: str) -> BinaryContent | None:
    """Return the image or file of a block, or None if the block does not contain its data."""
    match block.get("type"):
        case "image_url":
            return base.decode_data_url(base.mapping(block, "image_url", path), "url", f"{path}.image_url")
        case "file":
            return base.decode_data_url(base.mapping(block, "file", path), "file_data", f"{path}.file")
        case _:
            return None


def _rename_calls(answer: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    choice = answer["choices"][0]
    calls = [
        {**call, "function": {**call["function"], "name": names.get(call.get("id"), call["function"].get("name"))}}
        for call in choice["message"].get("tool_calls") or ()
    ]
    message = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    return {**answer, "choices": [{**choice, "message": message}]}
