"""Dialect of OpenAI's Responses API: reads and writes `/v1/responses` and its event stream.

OpenAI's own clients and Codex use this format. It also removes the context that Codex adds to requests by itself.
Does not store responses: each request contains the whole conversation.
Does not send requests: `models.passthrough.request` does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import BinaryContent, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects import base
from guildhall.models.dialects.base import BrokenOff, Conversation, Malformed, Piece, Trim, WireRequest
from guildhall.models.dialects.openai_chat import SYSTEM_ROLES, openai_error
from guildhall.models.model import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.tools import ToolDefinition


API = "openai-responses"
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_ENDS = ("response.completed", "response.incomplete")
_ON, _HELD = Piece(), Piece(fate="held")
_OPENED: Mapping[str, Mapping[str, Any]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
_RESULTS = {"function_call_output", "custom_tool_call_output"}
# Text that Codex adds by itself in the place of the user, and before the result of a tool.
_CONTEXT = re.compile(r"(?s)<(environment_context|user_instructions|permissions instructions|skills_instructions)>.*")
_TIMED = re.compile(r"Wall time: [0-9.]+ seconds\n(?:Output:\n?)?")


class ResponsesCollector:
    """Hears the events of one response. Its last event has all of it; some servers leave the items out there."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._held = False

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        if isinstance(data, str):
            return _HELD
        kind = data.get("type")
        if kind == "response.output_text.delta":
            heard = base.text(data.get("delta"), "delta")
            return Piece(heard, "held") if self._held else Piece(heard)
        if kind in ("error", "response.failed") or (kind is None and data.get("error")):
            raise BrokenOff(base.mapping(data.get("response") or data, "response"))
        if kind in ("response.created", "response.in_progress", "response.queued", *_ENDS):
            self._response = dict(base.mapping(data.get("response"), "response"))
            self._held = self._held or kind in _ENDS
        elif kind == "response.output_item.done":
            self._item(data)
        elif kind in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            self._held = True
        return _HELD if self._held else _ON

    def answer(self) -> dict[str, Any]:
        items = self._response.get("output") or [item for _, item in sorted(self._items.items())]
        return {**self._response, "output": items} if self._response else {}

    def _item(self, data: Mapping[str, Any]) -> None:
        index = data.get("output_index", len(self._items))
        if not isinstance(index, int):
            raise Malformed("output_index: expected a number")
        item = dict(base.mapping(data.get("item"), "item"))
        self._items[index] = item
        self._held = self._held or item.get("type") in CALLS


def _parts(item: Mapping[str, Any], place: str) -> Iterator[ModelResponsePart]:
    kind = str(item.get("type"))
    if kind == "message":
        for block, inner in base.objects(item.get("content"), f"{place}.content"):
            said = block.get("text", block.get("refusal"))
            if said:
                yield TextPart(base.text(said, inner))
    elif kind in CALLS:
        name, id = base.text(item.get("name"), f"{place}.name"), base.text(item.get("call_id"), f"{place}.call_id")
        space = item.get("namespace")
        shown = name if space is None else joined(base.text(space, f"{place}.namespace"), name)
        yield ToolCallPart(shown, base.text(item.get(CALLS[kind]) or "{}", f"{place}.{CALLS[kind]}"), id)
    elif kind == "reasoning":
        summary = [str(block.get("text") or "") for block, _ in base.objects(item.get("summary"), f"{place}.summary")]
        sealed = item.get("encrypted_content")
        yield ThinkingPart(
            "\n".join(summary),
            id=str(item.get("id") or ""),
            signature=sealed if isinstance(sealed, str) else None,
            provider_name="openai",
        )


def joined(space: str, name: str) -> str:
    """The name of a tool in a namespace, in one word."""
    return f"{space.removesuffix('__')}__{name}"


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    cached = base.mapping(usage.get("input_tokens_details") or {}, "input_tokens_details")
    thought = base.mapping(usage.get("output_tokens_details") or {}, "output_tokens_details")
    sent = base.count_of(usage.get("input_tokens"))
    read = min(sent, base.count_of(cached.get("cached_tokens")))
    return RequestUsage(
        input_tokens=sent,
        cache_read_tokens=read,
        cache_write_tokens=min(sent - read, base.count_of(cached.get("cache_write_tokens"))),
        output_tokens=base.count_of(usage.get("output_tokens")),
        output_reasoning_tokens=base.count_of(thought.get("reasoning_tokens")),
    )


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {**answer, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    for index, item in enumerate(answer["output"]):
        place = {"item_id": item.get("id"), "output_index": index}
        opened = {**item, "status": "in_progress", **_OPENED[kind]} if (kind := item.get("type")) in _OPENED else item
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        if kind == "message":
            yield from _message_events(item, place)
        elif kind == "function_call":
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": dict(answer)}


def _message_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, whole in enumerate(item["content"]):
        part = {**place, "content_index": index}
        if whole.get("type") == "output_text":
            yield {"type": "response.content_part.added", **part, "part": {**whole, "text": ""}}
            for piece in pieces(whole["text"]):
                yield {"type": "response.output_text.delta", **part, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **part, "text": whole["text"], "logprobs": []}
        else:
            yield {"type": "response.content_part.added", **part, "part": whole}
        yield {"type": "response.content_part.done", **part, "part": whole}


class OpenAIResponses:
    """OpenAI's Responses API. The whole conversation comes with each request: nothing is stored here."""

    api: ClassVar[str] = API
    path: ClassVar[str] = "/responses"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        for stored in ("previous_response_id", "conversation"):
            if body.get(stored) is not None:
                raise Malformed(f"{stored}: nothing is stored here; send the whole conversation as `input`", stored)
        conversation = Conversation()
        if instructions := base.shown(body.get("instructions"), "instructions"):
            conversation.system(instructions)
        asked = body.get("input")
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        for item, place in base.objects(asked, "input"):
            _read_item(conversation, item, place)
        tools, namespaces = _read_tools(body)
        return WireRequest(
            model=base.text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=base.settings(body, "max_output_tokens"),
            parameters=base.parameters(tools),
            stream=base.flag(body.get("stream"), "stream"),
            namespaces=namespaces,
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        if (answer := base.kept(response, API)) is not None:
            names = base.names_of(response)
            return {**answer, "output": [_renamed(item, names, request) for item in answer["output"]]}
        cut, usage = response.finish_reason == "length", response.usage
        return {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(response.timestamp.timestamp()),
            "status": "incomplete" if cut else "completed",
            "model": request.model,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": {},
            "output": list(_items(request, response, answer_id)),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cache_read_tokens,
                    "cache_write_tokens": usage.cache_write_tokens,
                },
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
        }

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        for number, data in enumerate(_events(self.whole(request, response, answer_id))):
            yield base.event({**data, "sequence_number": number}, data["type"])

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def broken(self, status: int, message: str) -> str:
        return base.event({"type": "error", **self.error(status, message)["error"]}, "error")

    def collector(self, *, usage: bool) -> ResponsesCollector:
        return ResponsesCollector()

    def response(self, answer: Mapping[str, Any]) -> ModelResponse:
        status = answer.get("status")
        if answer.get("error") or status == "failed":
            raise BrokenOff(answer)
        if status not in ("completed", "incomplete"):
            raise BrokenOff
        items = base.objects(answer.get("output"), "output")
        parts = [part for item, place in items for part in _parts(item, place)]
        why = base.mapping(answer.get("incomplete_details") or {}, "incomplete_details").get("reason")
        called = any(isinstance(part, ToolCallPart) for part in parts)
        cut = "content_filter" if why == "content_filter" else "length"
        usage = _usage(base.mapping(answer.get("usage") or {}, "usage"))
        finish = cut if status == "incomplete" else "tool_call" if called else "stop"
        return base.whole_response(answer, parts, API, "openai", usage, finish)

    def system(self, body: Mapping[str, Any]) -> str:
        items = body.get("input")
        said = [base.shown(body.get("instructions"), "instructions")]
        for item, place in base.objects(items, "input") if isinstance(items, list) else ():
            said += [base.shown(item.get("content"), f"{place}.content")] if item.get("role") in SYSTEM_ROLES else []
        return "\n".join(said)

    def trimmed(self, body: Mapping[str, Any], trim: Trim) -> dict[str, Any]:
        items = body.get("input")
        tools = [left for tool, place in base.objects(body.get("tools"), "tools") if (left := _left(tool, place, trim))]
        trimmed = {**body, "instructions": trim.prompt, "tools": tools}
        if isinstance(items, list):
            trimmed["input"] = _without_context([item for item, _ in base.objects(items, "input")])
        without = {*base.NOT_PASSED, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
        without |= set() if trim.prompt else {"instructions"}
        without |= {"client_metadata"}  # who asks, as the program counts: nothing of the question
        without |= {"reasoning"} if body.get("reasoning") == {} else set()
        return {name: value for name, value in trimmed.items() if name not in without}

    def sent(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            sent["max_output_tokens"] = min(max_tokens, body.get("max_output_tokens") or max_tokens)
        return sent


def _left(tool: Mapping[str, Any], place: str, trim: Trim) -> dict[str, Any] | None:
    """What is left of a tool, or of a namespace of tools; None: nothing of it is the run's."""
    if tool.get("type") == "function":
        return trim.defined(tool, "parameters") if base.tool_name(tool) in trim.tools else None
    if tool.get("type") != "namespace":
        return None
    space = base.text(tool.get("name"), f"{place}.name")
    inner = [one for one, _ in base.objects(tool.get("tools"), f"{place}.tools")]
    names = [joined(space, base.tool_name(one)) for one in inner]
    inner = [
        trim.defined(one, "parameters", name) for one, name in zip(inner, names, strict=True) if name in trim.tools
    ]
    return {**tool, "tools": inner} if inner else None


def _without_context(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without what the program says by itself, before a result too. What is asked last is never that."""
    last = max((place for place, item in enumerate(items) if item.get("role") == "user"), default=-1)
    left: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        is_earlier = item.get("role") == "user" and place < last
        if item.get("role") in SYSTEM_ROLES or (
            is_earlier and _CONTEXT.fullmatch(base.shown(item.get("content"), "content").strip())
        ):
            continue
        left.append({**item, "output": _bare(item.get("output"))} if str(item.get("type")) in _RESULTS else item)
    return left


def _bare(output: Any) -> Any:
    """A result without the line that says how long it took, which is another one each time."""
    if isinstance(output, str):
        return _TIMED.sub("", output, count=1)
    blocks = [dict(block) for block, _ in base.objects(output, "output")]
    if blocks and isinstance(said := blocks[0].get("text"), str) and _TIMED.match(said):
        blocks[0]["text"] = _TIMED.sub("", said, count=1)
        return blocks if blocks[0]["text"] else blocks[1:]
    return blocks


def _renamed(item: dict[str, Any], names: Mapping[str, str], request: WireRequest) -> dict[str, Any]:
    """An item as it was; a call is named as it is shown now."""
    if item.get("type") not in CALLS or (name := names.get(str(item.get("call_id")))) is None:
        return item
    space, short = request.namespaces.get(name, (None, name))
    bare = {field: value for field, value in item.items() if field != "namespace"}
    return {**bare, "name": short, **({} if space is None else {"namespace": space})}


def _read_item(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    kind = base.text(item.get("type", "message"), f"{place}.type")
    if kind == "message":
        _read_message(conversation, item, place)
    elif kind in CALLS:
        name = base.text(item.get("name"), f"{place}.name")
        space = item.get("namespace")
        conversation.called(
            base.text(item.get("call_id"), f"{place}.call_id"),
            name if space is None else joined(base.text(space, f"{place}.namespace"), name),
            base.text(item.get(CALLS[kind]), f"{place}.{CALLS[kind]}"),
            f"{place}.call_id",
        )
    elif kind in _RESULTS:
        call_id = base.text(item.get("call_id"), f"{place}.call_id")
        conversation.result(call_id, base.shown(item.get("output"), f"{place}.output"), f"{place}.call_id")


def _read_message(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    role = base.text(item.get("role"), f"{place}.role")
    said = item.get("content")
    if role in SYSTEM_ROLES:
        conversation.system(base.shown(said, f"{place}.content"))
    elif role == "user":
        conversation.user(base.content(said, f"{place}.content", _file))
    elif role == "assistant":
        conversation.said(base.shown(said, f"{place}.content"))
        conversation.end_turn()
    else:
        raise Malformed(f"{place}.role: expected system, developer, user or assistant", f"{place}.role")


def _file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """The image or the file in a block, where it comes with the request."""
    field = {"input_image": "image_url", "input_file": "file_data"}.get(str(block.get("type")), "")
    return base.data_url(block[field], f"{place}.{field}") if field in block else None


def _read_tools(body: Mapping[str, Any]) -> tuple[list[ToolDefinition], dict[str, tuple[str, str]]]:
    """The tools that are functions, and for those in a namespace how the client wants them named in a call."""
    tools: list[ToolDefinition] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for tool, place in base.objects(body.get("tools"), "tools"):
        kind = base.text(tool.get("type"), f"{place}.type")
        if kind == "function":
            tools.append(base.tool_definition(tool, "parameters", place))
        elif kind == "namespace":
            space = base.text(tool.get("name"), f"{place}.name")
            for inner, inner_place in base.objects(tool.get("tools"), f"{place}.tools"):
                definition = base.tool_definition(inner, "parameters", inner_place, joined(space, ""))
                tools.append(definition)
                namespaces[definition.name] = (space, base.text(inner.get("name"), f"{inner_place}.name"))
    return tools, namespaces


def _items(request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(response.parts):
        if isinstance(part, TextPart) and part.content:
            content: list[dict[str, Any]] = [
                {"type": "output_text", "text": part.content, "annotations": [], "logprobs": []}
            ]
            yield {
                "id": f"msg_{answer_id}_{index}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        elif isinstance(part, ToolCallPart):
            space, name = request.namespaces.get(part.tool_name, (None, part.tool_name))
            yield {
                "id": f"fc_{answer_id}_{index}",
                "type": "function_call",
                "call_id": part.tool_call_id,
                "name": name,
                "arguments": part.args_as_json_str(),
                "status": "completed",
                **({} if space is None else {"namespace": space}),
            }
