"""Forked runtime, hall side: executes each assignment in a new process and serves that process at the doors.

A call that has begun is finished and recorded, even if the process dies. A resumed run therefore finds all completed
calls.
Does not fork processes: `fork_server_client` requests them. Does not drive the model: `child` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ToolCallPart

from guildhall.core.errors import RuntimeCrashed, RuntimeFailed
from guildhall.runtimes.forked.fork_server import OUT_OF_MEMORY
from guildhall.runtimes.forked.protocol import (
    MAX_LINE_BYTES,
    CallModel,
    CallTool,
    Failed,
    NextMessage,
    Reply,
    Start,
    decode_message,
)
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.runtimes.pydantic import first_request, request_parameters, to_tool_call

if TYPE_CHECKING:
    from guildhall.runtimes.forked.fork_server_client import ForkServer
    from guildhall.tools.model import ToolCall

_EXIT_GRACE_S = 1.0  # after a process has closed its connection


class ForkedRuntime:
    """Executes each assignment in a new process of the fork server."""

    def __init__(self, fork_server: ForkServer, *, memory_bytes: int = 1024**3) -> None:
        """`memory_bytes` limits a run in addition to the memory of the server."""
        self._fork_server = fork_server
        self._memory_bytes = memory_bytes

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        child = await self._fork_server.spawn(self._memory_bytes)
        try:
            reader, writer = await asyncio.open_connection(sock=child.connection, limit=MAX_LINE_BYTES)
        except BaseException:
            child.connection.close()
            await self._fork_server.end(child)
            raise
        service = _DoorService(assignment, doors, reader, writer)
        try:
            return await service.outcome()
        except _ProcessDied as death:
            status = await self._fork_server.end(child, _EXIT_GRACE_S if death.reason is None else 0)
            raise RuntimeCrashed(f"the process of the run {death.reason or self._describe_exit(status)}") from None
        finally:
            child.kill()
            writer.close()
            await service.stop()
            await self._fork_server.end(child)

    def _describe_exit(self, status: int | None) -> str:
        if status is None:
            return "was killed with the fork server"
        code = os.waitstatus_to_exitcode(status)
        if code == OUT_OF_MEMORY:
            return f"ran out of memory: its limit is {self._memory_bytes // 1024**2:,} MB"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        causes = {
            "SIGKILL": " (by a user, or because the machine ran out of memory)",
            "SIGABRT": " (maybe out of memory)",
        }
        return f"was killed by {name}{causes.get(name, '')}"


class _ProcessDied(Exception):
    """The process has exited or must be killed. `reason` is None if only the exit status is known."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class _DoorService:
    """Serves the doors of a run to its process."""

    def __init__(
        self, assignment: Assignment, doors: Doors, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._assignment = assignment
        self._doors = doors
        self._reader = reader
        self._writer = writer
        self._parameters = request_parameters(assignment)
        self._conversation: list[ModelMessage] = [first_request(assignment)]
        self._is_model_busy = False
        self._open_calls: dict[str, ToolCall] = {}  # of the last model response, by key
        self._tasks: set[asyncio.Task[None]] = set()
        self._message_task: asyncio.Task[None] | None = None  # waits for the user
        self._message_after = 0  # the length of the conversation at the last request for a message
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def outcome(self) -> Outcome:
        """Return the outcome. Raise errors of the doors unchanged, and _ProcessDied if the process ended."""
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return reading.result()
        except _ProcessDied:
            await self._wait_for_calls()
            raise
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading

    async def _wait_for_calls(self) -> None:
        """Wait for running calls, so that each one is recorded.

        A user message is not awaited, because the next process requests it again.
        """
        if self._message_task is not None:
            self._message_task.cancel()
        while self._tasks and not self._failure.done():
            await asyncio.wait({*self._tasks, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure.done() and not self._failure.cancelled():
            self._failure.exception()  # marks it as retrieved

    async def _read(self) -> Outcome:
        with suppress(OSError):
            self._writer.write(Start.model_validate(self._assignment, from_attributes=True).encode())
            while (line := await self._read_line()).endswith(b"\n"):
                try:
                    message = decode_message(line)
                except (ValueError, RecursionError):
                    raise _ProcessDied(f"sent an invalid message and was killed: {line[:100]!r}") from None
                match message:
                    case CallModel():
                        if self._is_model_busy or message.after != len(self._conversation):
                            raise _ProcessDied("called the model out of turn and was killed")
                        self._is_model_busy = True
                        self._conversation.extend(message.requests)
                        self._start(self._answer_model(message))
                    case CallTool(id=number, key=key):
                        if (call := self._open_calls.pop(key, None)) is None:
                            raise _ProcessDied(
                                f"made a tool call that no model response contains ({key[:100]!r}) and was killed"
                            )
                        self._start(self._answer_tool(number, call))
                    case NextMessage():
                        self._check_turn()
                        self._message_task = self._start(self._answer_message(message.id, message.key))
                    case Failed(message=text, hint=hint):
                        raise RuntimeFailed(text, hint=hint)
                    case done:
                        return Outcome(output=_check_output(done.output), messages=self._conversation)
        raise _ProcessDied

    async def _read_line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ValueError:
            raise _ProcessDied(f"sent a line of more than {MAX_LINE_BYTES:,} bytes and was killed") from None

    def _start(self, work: Coroutine[Any, Any, Reply]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reply(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reply(self, work: Coroutine[Any, Any, Reply]) -> None:
        try:
            reply = await work
            with suppress(OSError):  # the reader reports it
                if not self._writer.is_closing():
                    self._writer.write(reply.encode())
                    await self._writer.drain()
        except Exception as error:  # noqa: BLE001 - `outcome` raises it
            if not self._failure.done():
                self._failure.set_exception(error)

    async def _answer_model(self, request: CallModel) -> Reply:
        response = await self._doors.call_model(request.key, self._conversation, self._parameters)
        self._conversation.append(response)
        self._is_model_busy = False
        calls = (to_tool_call(request.key, part) for part in response.parts if isinstance(part, ToolCallPart))
        self._open_calls = {call.key: call for call in calls}
        return Reply(id=request.id, response=response)

    def _check_turn(self) -> None:
        """Raise _ProcessDied unless the process may request the next user message, once after each model response."""
        length = len(self._conversation)
        is_turn = not self._is_model_busy and self._conversation[-1].kind == "response"
        if not (self._assignment.is_conversation and is_turn) or self._message_after == length:
            raise _ProcessDied("requested the next user message out of turn and was killed")
        self._message_after = length

    async def _answer_message(self, number: int, key: str) -> Reply:
        return Reply(id=number, text=await self._doors.next_message(key))

    async def _answer_tool(self, number: int, call: ToolCall) -> Reply:
        return Reply(id=number, result=(await self._doors.call_tool(call)).as_dict())


def _check_output(output: Any) -> Any:
    try:
        json.dumps(output, allow_nan=False)
    except (ValueError, RecursionError):
        raise _ProcessDied("returned an output that cannot be recorded and was killed") from None
    return output
