"""Forked runtime, hall side: executes each assignment in a new process and serves that process at the doors.

A call that has begun is finished and recorded, even if the process dies. A run that resumes after a crash therefore
finds all completed calls.
Does not fork processes: `client` requests them from `server`. Does not drive the model: `child` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ToolCallPart

from guildhall.core.errors import RuntimeCrashed, RuntimeFailed
from guildhall.runtimes.forked.protocol import LONGEST, Answered, Asked, Called, Failed, Given, Listened, said
from guildhall.runtimes.forked.server import OUT_OF_MEMORY
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.runtimes.pydantic import call_of, opening, parameters_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from guildhall.runtimes.forked.client import Nursery
    from guildhall.tools.model import ToolCall

_GRACE = 1.0  # seconds between the last of a process and its end


class ChildRuntime:
    """Executes each assignment in a child of the nursery."""

    def __init__(self, nursery: Nursery, *, memory_bytes: int = 1024**3) -> None:
        """`memory_bytes`: what a run may use beside what its process is born with."""
        self._nursery = nursery
        self._memory_bytes = memory_bytes

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        child = await self._nursery.birth(self._memory_bytes)
        try:
            reader, writer = await asyncio.open_connection(sock=child.connection, limit=LONGEST)
        except BaseException:
            child.connection.close()
            await self._nursery.end(child)
            raise
        service = _Service(assignment, doors, reader, writer)
        try:
            return await service.outcome()
        except _Died as death:
            status = await self._nursery.end(child, _GRACE if death.what is None else 0)
            raise RuntimeCrashed(f"the process of the run {death.what or self._manner(status)}") from None
        finally:
            child.kill()
            writer.close()
            await service.stop()
            await self._nursery.end(child)

    def _manner(self, status: int | None) -> str:
        """How a process ended that should not have."""
        if status is None:
            return "was killed, with the warm parent of all runs"
        code = os.waitstatus_to_exitcode(status)
        if code == OUT_OF_MEMORY:
            return f"ran out of memory: it may use {self._memory_bytes // 1024**2:,} MB"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        told = {"SIGKILL": ", by somebody or because the machine was out of memory", "SIGABRT": ": out of memory?"}
        return f"was killed by {name}{told.get(name, '')}"


class _Died(Exception):
    """The process has ended, or has to; `what` says what it did, where that is known."""

    def __init__(self, what: str | None = None) -> None:
        super().__init__(what)
        self.what = what


class _Service:
    """Serves one process at the doors of its run."""

    def __init__(
        self, assignment: Assignment, doors: Doors, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._assignment = assignment
        self._doors = doors
        self._reader = reader
        self._writer = writer
        self._parameters = parameters_of(assignment)
        self._conversation: list[ModelMessage] = [opening(assignment)]
        self._asking = False
        self._callable: dict[str, ToolCall] = {}  # the calls in the model's answers that were not made yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None  # to a person
        self._heard_after = 0  # so many messages
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def outcome(self) -> Outcome:
        """What came of it; what went wrong at a door is raised as it is, and _Died when the process is no more."""
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            return reading.result()
        except _Died:
            await self._finish()
            raise
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading

    async def _finish(self) -> None:
        """Lets the calls under way come to their ends, so that none of them is in doubt.

        What a person says next is not waited for: the next process asks for it again.
        """
        if self._listening is not None:
            self._listening.cancel()
        while self._tasks and not self._broken.done():
            await asyncio.wait({*self._tasks, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broken.done() and not self._broken.cancelled():
            self._broken.exception()  # it was raised, or something else came first

    async def _read(self) -> Outcome:
        with suppress(OSError):
            self._writer.write(Given.of(self._assignment).line())
            while (line := await self._line()).endswith(b"\n"):
                try:
                    message = said(line)
                except (ValueError, RecursionError):
                    raise _Died(f"said what cannot be understood, and was ended: {line[:100]!r}") from None
                match message:
                    case Asked():
                        if self._asking or message.after != len(self._conversation):
                            raise _Died("asked the model out of turn, and was ended")
                        self._asking = True
                        self._conversation.extend(message.requests)
                        self._begin(self._model(message))
                    case Called(id=number, key=key):
                        if (call := self._callable.pop(key, None)) is None:
                            raise _Died(f"made a call that the model did not ask for ({key[:100]!r}), and was ended")
                        self._begin(self._tool(number, call))
                    case Listened():
                        self._check_listening()
                        self._listening = self._begin(self._said(message))
                    case Failed(message=text, hint=hint):
                        raise RuntimeFailed(text, hint=hint)
                    case done:
                        return Outcome(output=_plain(done.output), messages=self._conversation)
        raise _Died

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ValueError:
            raise _Died(f"said more than {LONGEST:,} bytes without an end, and was ended") from None

    def _begin(self, work: Coroutine[Any, Any, Answered]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._done(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _done(self, work: Coroutine[Any, Any, Answered]) -> None:
        try:
            answer = await work
            with suppress(OSError):  # whoever reads says why
                if not self._writer.is_closing():
                    self._writer.write(answer.line())
                    await self._writer.drain()
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits for the outcome
            if not self._broken.done():
                self._broken.set_exception(error)

    async def _model(self, asked: Asked) -> Answered:
        response = await self._doors.model(asked.key, self._conversation, self._parameters)
        self._conversation.append(response)
        self._asking = False
        calls = (call_of(asked.key, part) for part in response.parts if isinstance(part, ToolCallPart))
        self._callable = {call.key: call for call in calls}
        return Answered(id=asked.id, response=response)

    def _check_listening(self) -> None:
        """Raise if the process may not ask for the user's next message: it may, once after each answer."""
        place = len(self._conversation)
        in_turn = self._assignment.converses and not self._asking and self._conversation[-1].kind == "response"
        if not in_turn or self._heard_after == place:
            raise _Died("asked for what the person says next out of turn, and was ended")
        self._heard_after = place

    async def _said(self, listened: Listened) -> Answered:
        return Answered(id=listened.id, words=await self._doors.said(listened.key))

    async def _tool(self, number: int, call: ToolCall) -> Answered:
        return Answered(id=number, result=(await self._doors.tool(call)).as_dict())


def _plain(output: Any) -> Any:
    """The output, if it can be put on record."""
    try:
        json.dumps(output, allow_nan=False)
    except (ValueError, RecursionError):
        raise _Died("gave an output that cannot be put on record, and was ended") from None
    return output
