"""A run that is none: all that a child will do, once, on a socket of its own, so that the next time it is quick."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.runtimes.child import live
from guildhall.runtimes.judge import OUTPUT_TOOL
from guildhall.runtimes.wire import Answered, Asked, Called, Given, said
from guildhall.tools.model import ToolResult

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
_TOOL: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
_CALL = ModelResponse(parts=[TextPart("I look."), ToolCallPart("look", {}, "c1")])


async def rehearse() -> None:
    """Two runs: one that answers in words, one with an output schema."""
    await _run(None, ModelResponse(parts=[TextPart("Seen.")]))
    await _run(_SCHEMA, ModelResponse(parts=[ToolCallPart(OUTPUT_TOOL, {"n": 1}, "c2")]))


async def _run(schema: dict[str, Any] | None, last: ModelResponse) -> None:
    ours, theirs = socket.socketpair()
    living = asyncio.create_task(live(theirs))
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(Given(system_prompt="Be.", first_message="Go.", tools=[_TOOL], output_schema=schema).line())
    while line := await reader.readline():
        match said(line):
            case Asked(id=number, after=after):
                writer.write(Answered(id=number, response=_CALL if after == 1 else last).line())
            case Called(id=number):
                writer.write(Answered(id=number, result=ToolResult.of("It is there.").as_dict()).line())
            case _:
                break
    await living
    writer.close()
