"""Requests of Claude Code, and answers of Anthropic to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.models.dialects.anthropic import Anthropic
from tests.models.passthrough_run import PassthroughRun, read_body

if TYPE_CHECKING:
    from guildhall.models.passthrough.session import PassthroughSession, Reply


API = Anthropic()
HEADERS = {"x-api-key": "the-token-of-the-run", "anthropic-version": "2023-06-01", "anthropic-beta": "thinking-x"}
ENVIRONMENT = "# Environment\nYou have been invoked in /tmp, today is Monday."
CLAUDES_LINES = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325"},
    {"type": "text", "text": "You are a Claude agent, built on Anthropic's Claude Agent SDK."},
]


def claude_request(text: str = "Say hello.", *more: Any, stream: bool = True, **changes: Any) -> bytes:
    """Return a request as Claude Code writes it."""
    body = {
        "model": "claude-of-the-program",
        "max_tokens": 32000,
        "system": [*CLAUDES_LINES, {"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": text}, {"role": "system", "content": ENVIRONMENT}, *more],
        "tools": [
            {"name": "mcp__tools__memory_read", "description": "d", "input_schema": {"type": "object"}},
            {"name": "Bash", "description": "d", "input_schema": {"type": "object"}},
        ],
        "metadata": {"user_id": "u"},
        "stream": stream,
    }
    return json.dumps({**body, **changes}).encode()


def sse(*events: dict[str, Any]) -> list[bytes]:
    return [f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode() for data in events]


USAGE = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    },
}


def delta(index: int, **data: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": data}


def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    start = {"type": "content_block_start", "index": index, "content_block": opened}
    return [start, *deltas, {"type": "content_block_stop", "index": index}]


def end(reason: str = "end_turn", tokens: int = 7) -> list[dict[str, Any]]:
    last = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
    return [{**last, "usage": {"output_tokens": tokens}}, {"type": "message_stop"}]


THINKING = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    delta(0, type="thinking_delta", thinking="hm "),
    delta(0, type="thinking_delta", thinking="hm"),
    delta(0, type="signature_delta", signature="c2lnbmVk"),
)
UNKNOWN_BLOCK = block(1, {"type": "of_the_future", "payload": {"a": [1]}})
TEXT = block(
    2, {"type": "text", "text": ""}, delta(2, type="text_delta", text="Hel"), delta(2, type="text_delta", text="lo ü.")
)
CALL = block(
    3,
    {"type": "tool_use", "id": "toolu_1", "name": "mcp__tools__memory_read", "input": {}},
    delta(3, type="input_json_delta", partial_json=""),
    delta(3, type="input_json_delta", partial_json='{"name": '),
    delta(3, type="input_json_delta", partial_json='"a"}'),
)
TEXT_EVENTS = [START, {"type": "ping"}, *TEXT, *end()]
CALL_EVENTS = [START, *THINKING, *UNKNOWN_BLOCK, *TEXT, *CALL, *end("tool_use")]
MESSAGE = {
    **START["message"],
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {**USAGE, "output_tokens": 7},
}


async def ask(session: PassthroughSession, body: bytes | None = None) -> tuple[Reply, bytes]:
    reply = await session.answer(API, claude_request() if body is None else body, HEADERS)
    return reply, await read_body(reply)


async def ask_once(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
    return await ask(session)
