"""Process of a run: executes an assignment with the pydantic runtime and reaches both doors over a socket.

The process has no key, no database and no open file. It exits when the hall has exited.
The module also contains the practice runs that warm up the fork server.
Does not fork: `fork_server` does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.forked.fork_server import BROKE, DONE, HALL_GONE, OUT_OF_MEMORY
from guildhall.runtimes.forked.protocol import (
    MAX_LINE_BYTES,
    CallModel,
    CallTool,
    Done,
    Failed,
    NextMessage,
    Reply,
    Start,
    decode_message,
)
from guildhall.runtimes.pydantic import OUTPUT_TOOL, PydanticRuntime
from guildhall.tools.model import ToolCall, ToolResult

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters


class HallGone(Exception):
    """The hall has closed the connection."""


class SocketDoors:
    """The doors over a socket. Only messages that the hall does not have are sent."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._lines: list[bytes] = []

    async def call_model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse:
        known = next((n for n in range(len(messages), 0, -1) if messages[n - 1].kind == "response"), 1)
        new: list[ModelRequest] = [message for message in messages[known:] if message.kind == "request"]
        return await self._request(CallModel(id=next(self._numbers), key=key, after=known, requests=new), "response")

    async def call_tool(self, call: ToolCall) -> ToolResult:
        return ToolResult.from_dict(await self._request(CallTool(id=next(self._numbers), key=call.key), "result"))

    async def next_message(self, key: str) -> str:
        return await self._request(NextMessage(id=next(self._numbers), key=key), "text")

    async def _request(self, line: CallModel | CallTool | NextMessage, field: str) -> Any:
        """Send a request and return this field of the reply. Raise HallGone if the reply does not have it."""
        loop = asyncio.get_running_loop()
        reply = self._pending[line.id] = loop.create_future()
        if not self._lines:
            loop.call_soon(self._send)
        self._lines.append(line.encode())
        if (value := getattr(await reply, field)) is None:
            raise HallGone
        return value

    def _send(self) -> None:
        """Send all calls of one response together, so that the hall knows all of them when one has to wait."""
        self._writer.write(b"".join(self._lines))
        self._lines.clear()

    async def receive_replies(self, reader: asyncio.StreamReader) -> None:
        """Deliver replies until the connection ends, then raise HallGone."""
        while line := await reader.readline():
            reply = Reply.decode(line)
            self._pending.pop(reply.id).set_result(reply)
        raise HallGone


async def execute_run(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
    try:
        if not (line := await reader.readline()):
            raise HallGone
        doors = SocketDoors(writer)
        listening = asyncio.create_task(doors.receive_replies(reader))
        working = asyncio.create_task(_execute(Start.decode(line), doors))
        done, _ = await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listening, working):
            task.cancel()
        if working not in done:
            listening.result()
        writer.write(working.result().encode())
        await writer.drain()
    finally:
        writer.close()


async def _execute(start: Start, doors: SocketDoors) -> Done | Failed:
    try:
        outcome = await PydanticRuntime().execute(start.assignment(), doors)
        return Done(output=outcome.output)
    except RuntimeFailed as error:
        return Failed(message=error.message, hint=error.hint)
    except (MemoryError, HallGone):
        raise
    except Exception as error:  # noqa: BLE001 - the hall reports every error
        return Failed(message=f"internal error in the process of the run: {type(error).__name__}: {error}")


def main(connection: socket.socket) -> NoReturn:
    """Execute the run and exit. Nothing is cleaned up, because the server waits for the exit."""
    code = BROKE
    try:
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(_exit_on_loop_error)
            runner.run(execute_run(connection))
            os._exit(DONE)
    except MemoryError:
        code = OUT_OF_MEMORY
    except (HallGone, OSError):  # a killed hall with unread data resets the connection
        code = HALL_GONE
    finally:
        os._exit(code)


def _exit_on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exit after an error in a callback, such as a MemoryError while bytes were received."""
    os._exit(OUT_OF_MEMORY if isinstance(context.get("exception"), MemoryError) else BROKE)


_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
_TOOL: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
_CALL = ModelResponse(parts=[TextPart("I look."), ToolCallPart("look", {}, "c1")])


async def warm_up() -> None:
    """Execute two runs: one with text as its output and one with an output schema."""
    await _practice_run(None, ModelResponse(parts=[TextPart("Seen.")]))
    await _practice_run(_SCHEMA, ModelResponse(parts=[ToolCallPart(OUTPUT_TOOL, {"n": 1}, "c2")]))


async def _practice_run(schema: dict[str, Any] | None, last: ModelResponse) -> None:
    ours, theirs = socket.socketpair()
    run = asyncio.create_task(execute_run(theirs))
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(Start(system_prompt="Be.", first_message="Go.", tools=[_TOOL], output_schema=schema).encode())
    while line := await reader.readline():
        match decode_message(line):
            case CallModel(id=number, after=after):
                writer.write(Reply(id=number, response=_CALL if after == 1 else last).encode())
            case CallTool(id=number):
                writer.write(Reply(id=number, result=ToolResult.of("It is there.").as_dict()).encode())
            case _:
                break
    await run
    writer.close()
