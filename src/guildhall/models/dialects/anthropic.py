"""Anthropic's Messages API: `/v1/messages`, and the counting of tokens beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

from guildhall.models.dialects.model import (
    Conversation,
    Malformed,
    WireRequest,
    event,
    file,
    flag,
    mapping,
    objects,
    parameters,
    settings,
    shown,
    text,
    tool_definition,
)
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import BinaryContent, ModelResponse
    from pydantic_ai.usage import RequestUsage

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOP_REASONS = {"tool_call": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class Anthropic:
    """Anthropic's Messages API."""

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        if "max_tokens" not in body:
            raise Malformed("max_tokens: Field required", "max_tokens")
        return self.read_for_counting(body)

    def read_for_counting(self, body: Mapping[str, Any]) -> WireRequest:
        """A request as it is counted: the same, without what only an answer needs."""
        conversation = Conversation()
        if system := shown(body.get("system"), "system"):
            conversation.system(system)
        for message, place in objects(body.get("messages"), "messages"):
            _read_message(conversation, message, place)
        return WireRequest(
            model=text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=settings(body, "max_tokens"),
            parameters=parameters(
                [tool_definition(tool, "input_schema", place) for tool, place in objects(body.get("tools"), "tools")]
            ),
            stream=flag(body.get("stream"), "stream"),
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        return {
            **_message(request, response, answer_id),
            "content": [block for block, _ in _blocks(response)],
            "stop_reason": _STOP_REASONS.get(response.finish_reason or "", "end_turn"),
        }

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        opening = _message(request, response, answer_id)
        opening["usage"] = {**opening["usage"], "output_tokens": 1}
        yield _event("message_start", message=opening)
        yield _event("ping")
        for index, (block, deltas) in enumerate(_blocks(response)):
            yield _event("content_block_start", index=index, content_block=_opened(block))
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        reason = _STOP_REASONS.get(response.finish_reason or "", "end_turn")
        yield _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage={"output_tokens": response.usage.output_tokens},
        )
        yield _event("message_stop")

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def _read_message(conversation: Conversation, message: Mapping[str, Any], place: str) -> None:
    role = text(message.get("role"), f"{place}.role")
    content = message.get("content")
    if role == "system":
        conversation.system(shown(content, f"{place}.content"))
        return
    if role not in {"user", "assistant"}:
        raise Malformed(f"{place}.role: expected user or assistant", f"{place}.role")
    if content is None:
        raise Malformed(f"{place}.content: Field required", f"{place}.content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    read_block = _read_answered if role == "assistant" else _read_asked
    for block, block_place in objects(content, f"{place}.content"):
        read_block(conversation, block, block_place)
    if role == "assistant":
        conversation.end_turn()


def _read_asked(conversation: Conversation, block: Mapping[str, Any], place: str) -> None:
    kind = text(block.get("type"), f"{place}.type")
    if kind == "tool_result":
        call_id = text(block.get("tool_use_id"), f"{place}.tool_use_id")
        result = shown(block.get("content"), f"{place}.content")
        failed = flag(block.get("is_error"), f"{place}.is_error")
        conversation.result(call_id, result, f"{place}.tool_use_id", failed=failed)
    else:
        words = text(block.get("text"), f"{place}.text") if kind == "text" else f"[{kind}]"
        sent = _file(block, place)
        conversation.user(words if sent is None else [sent])


def _file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """The image or the document in a block, where it comes with the request."""
    if block.get("type") not in ("image", "document"):
        return None
    source = mapping(block.get("source"), f"{place}.source")
    if source.get("type") != "base64":
        return None
    media_type = text(source.get("media_type"), f"{place}.source.media_type")
    return file(media_type, text(source.get("data"), f"{place}.source.data"), f"{place}.source.data")


def _read_answered(conversation: Conversation, block: Mapping[str, Any], place: str) -> None:
    kind = text(block.get("type"), f"{place}.type")
    if kind == "tool_use":
        call_id = text(block.get("id"), f"{place}.id")
        tool = text(block.get("name"), f"{place}.name")
        conversation.called(call_id, tool, mapping(block.get("input"), f"{place}.input"), f"{place}.id")
    elif kind == "text":
        conversation.said(text(block.get("text"), f"{place}.text"))


def _message(request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(response.usage),
    }


def _usage(usage: RequestUsage) -> dict[str, int]:
    """Here the cached tokens stand beside the input tokens, not among them."""
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
    }


def _blocks(response: ModelResponse) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block of the answer, whole and as the deltas that make it."""
    for part in response.parts:
        if isinstance(part, TextPart) and part.content:
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(part.content)]
            yield {"type": "text", "text": part.content}, deltas
        elif isinstance(part, ToolCallPart):
            block = {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": part.args_as_dict()}
            arguments = part.args_as_json_str()
            yield block, [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(arguments))]
        elif isinstance(part, ThinkingPart) and part.signature:
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(part.content)]
            deltas.append({"type": "signature_delta", "signature": part.signature})
            yield {"type": "thinking", "thinking": part.content, "signature": part.signature}, deltas


def _opened(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block before its first delta."""
    empty: dict[str, Any] = {"text": "", "input": {}, "thinking": "", "signature": ""}
    return {name: empty.get(name, value) for name, value in block.items()}


def _event(kind: str, **data: Any) -> str:
    return event({"type": kind, **data}, kind)
