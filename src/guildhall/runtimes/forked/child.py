"""Process of a run: executes an assignment with the pydantic runtime and reaches both doors over a socket.

The process has no key, no database and no open file. It ends when the hall is gone.
The module also contains the practice runs that warm up the fork server.
Does not fork: `server` does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.forked.protocol import LONGEST, Answered, Asked, Called, Done, Failed, Given, Listened, said
from guildhall.runtimes.forked.server import BROKE, DONE, LEFT_ALONE, OUT_OF_MEMORY
from guildhall.runtimes.pydantic import OUTPUT_TOOL, PydanticRuntime
from guildhall.tools.model import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.models import ModelRequestParameters


class HallGone(Exception):
    """There is nobody at the other end any more."""


class SocketDoors:
    """The doors as the runtime sees them. What the hall knows from the assignment is not sent to it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[Answered]] = {}
        self._lines: list[bytes] = []

    async def model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse:
        known = next((n for n in range(len(messages), 0, -1) if messages[n - 1].kind == "response"), 1)
        new: list[ModelRequest] = [message for message in messages[known:] if message.kind == "request"]
        return await self._ask(Asked(id=next(self._numbers), key=key, after=known, requests=new), "response")

    async def tool(self, call: ToolCall) -> ToolResult:
        return ToolResult.from_dict(await self._ask(Called(id=next(self._numbers), key=call.key), "result"))

    async def said(self, key: str) -> str:
        return await self._ask(Listened(id=next(self._numbers), key=key), "words")

    async def _ask(self, line: Asked | Called | Listened, field: str) -> Any:
        """Send a message and return this field of the answer. Raise HallGone if the answer does not have it."""
        loop = asyncio.get_running_loop()
        answer = self._open[line.id] = loop.create_future()
        if not self._lines:
            loop.call_soon(self._send)
        self._lines.append(line.line())
        if (value := getattr(await answer, field)) is None:
            raise HallGone
        return value

    def _send(self) -> None:
        """The calls of one answer go together, so that the hall sees all of them when it asks what still goes on."""
        self._writer.write(b"".join(self._lines))
        self._lines.clear()

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Hands out the answers, until there is nobody who gives any."""
        while line := await reader.readline():
            answer = Answered.read(line)
            self._open.pop(answer.id).set_result(answer)
        raise HallGone


async def live(connection: socket.socket) -> None:
    """Reads what is to be done, does it, and says what came of it."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST)
    try:
        if not (line := await reader.readline()):
            raise HallGone
        doors = SocketDoors(writer)
        listening = asyncio.create_task(doors.listen(reader))
        working = asyncio.create_task(_executed(Given.read(line), doors))
        done, _ = await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in (listening, working):
            task.cancel()
        if working not in done:
            listening.result()
        writer.write(working.result().line())
        await writer.drain()
    finally:
        writer.close()


async def _executed(given: Given, doors: SocketDoors) -> Done | Failed:
    try:
        outcome = await PydanticRuntime().execute(given.assignment(), doors)
        return Done(output=outcome.output)
    except RuntimeFailed as error:
        return Failed(message=error.message, hint=error.hint)
    except (MemoryError, HallGone):
        raise
    except Exception as error:  # noqa: BLE001 - whatever broke, the hall is to hear of it
        return Failed(message=f"the runtime broke: {type(error).__name__}: {error}")


def main(connection: socket.socket) -> NoReturn:
    """The whole life of the process. Nothing is tidied up: whoever waits for it is waiting for its end."""
    code = BROKE
    try:
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(_left_to_the_loop)
            runner.run(live(connection))
            os._exit(DONE)
    except MemoryError:
        code = OUT_OF_MEMORY
    except (HallGone, OSError):  # a hall that dies with something unread resets the connection
        code = LEFT_ALONE
    finally:
        os._exit(code)


def _left_to_the_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong where nobody waits for it, such as while bytes were received."""
    os._exit(OUT_OF_MEMORY if isinstance(context.get("exception"), MemoryError) else BROKE)


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
