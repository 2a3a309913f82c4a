"""Program runtime: executes an assignment with a vendor's program, as its driver defines, between the two doors.

Each segment of a run starts the program again. The doors return the recorded answers, so that the program repeats
the recorded part. The program's own sessions are not needed after a crash, an approval or a restart.
The output is the model response at the model door. The program only reports that it is done.
A program that is silent for five minutes without a running call is killed.
Does not know command lines or formats: the drivers (`claude`, `codex`, `opencode`, `cursor`) do.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import GuildError, RuntimeCrashed, RuntimeFailed, RuntimeUnusable
from guildhall.runtimes.model import Assignment, DoorAccess, Doors, HttpDoors, Outcome, ProgramHooks
from guildhall.runtimes.programs import process
from guildhall.runtimes.pydantic import OUTPUT_TOOL, OutputJudge, input_content, response_text
from guildhall.tools.model import Text, ToolResult

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from guildhall.rpc.listener import Listener
    from guildhall.runtimes.catalog import RuntimeInfo
    from guildhall.runtimes.discovery import Programs
    from guildhall.runtimes.programs.process import Launch, Program


_IDLE_TIMEOUT_S = 300.0
_IDLE_CHECKS = 10  # within that time
_EXIT_TIMEOUT_S = 10.0  # of a program that is started again
_RESULT_ACCEPTED = "Result accepted."


@dataclass(frozen=True)
class TurnEnd:
    """The end of a program's turn: done, or failed with `error`."""

    error: GuildError | None = None
    text: str | None = None  # the final text, if the runtime does not use the model door


class Driver(ABC):
    """Drives one run of a program. By default it restarts the program for each further message."""

    info: ClassVar[RuntimeInfo]
    _session = ""  # the program's id of the session
    _next_message: str | None = None  # the user message for which the program is started again

    @abstractmethod
    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        """Return how to start the program, with the doors at `url`. An empty `model` means any model.

        The method is called again with the existing home for each further message.
        """

    @abstractmethod
    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        """Return the end of the turn if a line reports it."""

    @abstractmethod
    def tool_name(self, server: str, tool: str) -> str:
        """Return the name under which the program shows a tool to its model."""

    def next_input(self, text: str) -> bytes | None:
        """Return the input for a further user message, or None if the program must be restarted."""
        self._next_message = text
        return None

    def exit_error(self, manner: str) -> GuildError | None:
        """Return the error for a program that exited too early, or None if it crashed."""
        return None


class ProgramRuntime:
    """Executes each assignment with a program, as its driver defines."""

    def __init__(
        self,
        create_driver: Callable[[], Driver],
        programs: Programs,
        listen: Callable[[socket], Awaitable[Listener]],
        *,
        idle_timeout_s: float = _IDLE_TIMEOUT_S,
    ) -> None:
        """`listen` serves the doors on a socket. A program that is silent for `idle_timeout_s` is killed."""
        self._create_driver = create_driver
        self._programs = programs
        self._listen = listen
        self._idle_timeout_s = idle_timeout_s

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        driver = self._create_driver()
        installed = await self._programs.find(driver.info)
        exchange = _Exchange(assignment, driver, self._idle_timeout_s, doors)
        provider, _, name = assignment.model.rpartition(":")
        model = "" if provider in ("script", "replay") or name == "auto" else name  # as the provider names it
        with closing(doors.register(exchange.hooks())) as access:
            async with process.temporary_home() as home:
                while True:
                    async with AsyncExitStack() as opened:
                        started = await process.start(
                            installed,
                            home,
                            lambda url: driver.launch(assignment, access, url, home, model),
                            network=driver.info.needs_network,
                        )
                        opened.callback(started.door.close)
                        opened.push_async_callback(started.end)
                        listener = await self._listen(started.door)
                        opened.push_async_callback(listener.close, 0)
                        opened.push_async_callback(started.end)  # before the doors are closed
                        try:
                            outcome = await exchange.outcome(started, access)
                        except RuntimeCrashed:
                            await started.end()
                            await access.wait_for_calls()  # so that the next process finds them recorded
                            raise
                        except BaseException:
                            access.close()
                            raise
                        if outcome is not None:
                            access.close()
                            return outcome


class _Exchange:
    """The exchange between a program, its model and the user, until the run has an output."""

    def __init__(self, assignment: Assignment, driver: Driver, idle_timeout_s: float, doors: Doors) -> None:
        self._doors = doors
        self._message_numbers = count(1)
        self._is_waiting = False
        self._is_conversation = assignment.is_conversation
        self._schema = assignment.output_schema
        self._driver = driver
        self._idle_timeout_s = idle_timeout_s
        self._judge = OutputJudge(assignment)
        self._last_answer: ModelResponse | None = None
        self._truncated_text = ""  # the text of earlier truncated responses that the program continued
        self._problem: str | None = None  # the problem of the last final result
        self._pending_outcome: Outcome | None = None  # while other calls of its response are running
        self._active_at = time.monotonic()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def hooks(self) -> ProgramHooks:
        names, result = self._driver.tool_name, None if self._schema is None else self._on_result
        return ProgramHooks(name_tool=names, on_answer=self._on_answer, on_result=result, is_finished=self._is_finished)

    async def outcome(self, started: Program, access: DoorAccess) -> Outcome | None:
        """Return the outcome, or None if the program must be restarted. Raise the error that ended the run."""
        tasks = [asyncio.create_task(task) for task in (self._follow_lines(started), self._watch_idle(started, access))]
        try:
            await asyncio.wait({self._outcome, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if self._outcome.done():
                return self._outcome.result()
            await next(task for task in tasks if task.done())
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_answer(self, response: ModelResponse) -> None:
        self._active_at = time.monotonic()
        if self._last_answer is not None and self._last_answer.finish_reason == "length":
            self._truncated_text += response_text(self._last_answer)
        self._last_answer = response
        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        final = [call for call in calls if self._judge.is_output_call(call)]
        if calls:
            self._truncated_text = ""
        if not final:
            if calls:
                self._judge.reset()
            return
        self._problem, output = self._judge.check(response, final)
        if self._problem is not None:
            self._record_miss(self._problem)
            return
        self._pending_outcome = Outcome(output=output, messages=())
        if len(calls) == 1:
            self._set_outcome(self._pending_outcome)

    async def _on_result(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Reply to a final result, which was checked with its model response.

        If the runtime does not use the model door, the result is checked here.
        """
        if not self._driver.info.uses_model_door:
            self._on_answer(ModelResponse(parts=[ToolCallPart(tool_name=OUTPUT_TOOL, args=dict(arguments))]))
        problem = self._problem if self._pending_outcome is None else None
        return ToolResult(content=(Text(problem or _RESULT_ACCEPTED),), is_error=problem is not None)

    def _is_finished(self) -> bool:
        """Return True if the output is known. Its response has no running calls when the program calls the model."""
        if self._pending_outcome is not None:
            self._set_outcome(self._pending_outcome)
        return self._pending_outcome is not None

    async def _follow_lines(self, started: Program) -> None:
        lines = started.lines()
        async for line in lines:
            self._active_at = time.monotonic()
            end = self._driver.read(line)
            if end is None:
                continue
            if end.error is not None:
                raise end.error
            if end.text is not None:
                self._on_answer(ModelResponse(parts=[TextPart(end.text)]))
            if await self._end_turn(started):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_TIMEOUT_S):  # it saves its session before it exits
                        async for _ in lines:
                            pass
                return
        raise self._exit_error(await started.wait_exit())

    def _exit_error(self, manner: str) -> GuildError:
        return self._driver.exit_error(manner) or RuntimeCrashed(f"{self._driver.info.title} {manner}")

    async def _end_turn(self, started: Program) -> bool:
        """Use the last response as the output, or send its problem or the next user message to the program.

        Return True if the program must be restarted for that.
        """
        if self._last_answer is None:
            raise RuntimeFailed(f"{self._driver.info.title} ended its turn without a model call")
        if self._pending_outcome is not None:
            self._set_outcome(self._pending_outcome)
            return False
        problem, output = self._judge.check(self._last_answer, [])
        if self._is_conversation and (problem is None or self._judge.is_last_try()):
            return self._send(started, await self._wait_for_message())
        if problem is None:
            text = f"{self._truncated_text}{output}" if self._schema is None else output
            self._set_outcome(Outcome(output=text, messages=()))
            return False
        self._record_miss(problem)
        return self._send(started, problem)

    async def _wait_for_message(self) -> str:
        """Wait for the next user message. The program may be silent meanwhile."""
        self._judge.reset()
        self._is_waiting = True
        try:
            return await self._doors.next_message(f"u{next(self._message_numbers)}")
        finally:
            self._is_waiting = False
            self._active_at = time.monotonic()

    def _send(self, started: Program, text: str) -> bool:
        self._last_answer, self._truncated_text = None, ""
        data = self._driver.next_input(text)
        if data is not None:
            started.write(data)
        return data is None

    async def _watch_idle(self, started: Program, access: DoorAccess) -> None:
        while True:
            await asyncio.sleep(self._idle_timeout_s / _IDLE_CHECKS)
            if access.has_calls() or self._is_waiting:
                self._active_at = time.monotonic()
            if time.monotonic() - self._active_at > self._idle_timeout_s:
                raise self._exit_error(f"was silent for {self._idle_timeout_s:g} s and was killed{started.output_tail}")

    def _record_miss(self, problem: str) -> None:
        try:
            self._judge.record_miss(problem)
        except RuntimeFailed as error:
            if not self._outcome.done():
                self._outcome.set_exception(error)

    def _set_outcome(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)


def message_text(assignment: Assignment) -> str:
    """Return the first message and its text attachments, marked as data, as one text. Images are left out."""
    first = input_content(assignment)
    items = [first] if isinstance(first, str) else first
    return "\n\n".join(text for item in items if isinstance(text := getattr(item, "content", item), str))


def normal_name(name: str) -> str:
    """Replace the characters that programs do not accept in names of servers and tools."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def check_attachments(info: RuntimeInfo, assignment: Assignment, accepted: Collection[str] = ()) -> None:
    """Raise RuntimeFailed if the program cannot show an attachment to its model."""
    rejected = [file.label for file in assignment.attachments if not file.is_text and file.media_type not in accepted]
    if rejected:
        raise RuntimeFailed(
            f"runtime {info.name}: {info.title} cannot send attachments of this type: {', '.join(rejected)}",
            hint="Attach text, or use `runtime: pydantic` or `runtime: claude`.",
        )


def driver_factory(runtime: str, environ: Mapping[str, str]) -> Callable[[], Driver]:
    """Return a function that creates the driver of a run. Raise RuntimeUnusable for an unknown runtime."""
    from guildhall.runtimes.programs import claude, codex, cursor, opencode

    drivers: dict[str, Callable[[], Driver]] = {
        "claude": claude.Claude,
        "codex": codex.Codex,
        "opencode": opencode.OpenCode,
        "cursor": lambda: cursor.Cursor(environ),
    }
    if runtime not in drivers:
        raise RuntimeUnusable(f"unknown runtime {runtime!r}", hint=f"Programs: {', '.join(drivers)}.")
    return drivers[runtime]
