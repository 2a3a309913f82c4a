"""Program runtime: executes an assignment with a vendor's program, as its driver defines, between the two doors.

The program starts anew for each segment of a run. The doors return the recorded answers, so that the program repeats
the recorded part. The program's own sessions are not needed after a crash, an approval or a restart.
The output is the model's answer at the model door. The program only reports that it is done.
A program that is silent for five minutes, with no call under way, is ended.
Does not know command lines or formats: the drivers (`claude`, `codex`, `opencode`, `cursor`) do.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import GuildError, RuntimeCrashed, RuntimeFailed, RuntimeUnusable
from guildhall.runtimes.model import Assignment, Doors, Entry, OpenDoors, Outcome, ProgramHooks
from guildhall.runtimes.programs import process
from guildhall.runtimes.pydantic import OUTPUT_TOOL, OutputJudge, asked, text_of
from guildhall.tools.model import Text, ToolResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from pathlib import Path
    from socket import socket

    from guildhall.rpc.listener import Listener
    from guildhall.runtimes.catalog import Row
    from guildhall.runtimes.discovery import Installed, Programs
    from guildhall.runtimes.programs.process import Launch, Program


_QUIET = 300.0  # seconds in which a program that has nothing under way says nothing: it hangs
_LOOKS = 10  # how often it is looked at in that time
_FAREWELL = 10.0  # seconds for a program to end that is to be started anew
_TAKEN = "The result is taken."


@dataclass(frozen=True)
class Ended:
    """A program has said that it is done; `error`: or why it cannot go on."""

    error: GuildError | None = None
    text: str | None = None  # its last words, where its model is not asked at the model door


class Driver(ABC):
    """Drives one run of a program. By default it starts the program again for each further message."""

    row: ClassVar[Row]
    _session = ""  # the program's id of the conversation
    _further: str | None = None  # the further message, when the program is started again

    @abstractmethod
    def launch(self, assignment: Assignment, entry: Entry, url: str, home: Path, model: str) -> Launch:
        """Return how to start the program, with the doors at `url`. An empty `model` accepts any.

        Called again when the program is started again, in the same home, for a further message.
        """

    @abstractmethod
    def read(self, line: Mapping[str, Any]) -> Ended | None:
        """Return what a line of the program means for the run, if anything."""

    @abstractmethod
    def names(self, server: str, tool: str) -> str:
        """Return the name that the program gives its model for a tool of a server."""

    def again(self, words: str) -> bytes | None:
        """Return the input for a further message of the user, or None if the program must be started again."""
        self._further = words
        return None

    def broke(self, manner: str) -> GuildError | None:
        """Return the error for a program that ended before it was done, or None if it crashed."""
        return None


class CliRuntime:
    """Executes each assignment in a program of its own, as its driver says."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        programs: Programs,
        listen: Callable[[socket], Awaitable[Listener]],
        *,
        quiet: float = _QUIET,
    ) -> None:
        """`listen` serves the doors on a socket. `quiet`: seconds after which a program that says nothing hangs."""
        self._driver = driver
        self._programs = programs
        self._listen = listen
        self._quiet = quiet

    async def execute(self, assignment: Assignment, doors: OpenDoors) -> Outcome:
        driver = self._driver()
        installed = await self._programs.find(driver.row)
        talk = _Talk(assignment, driver, self._quiet, doors)
        entry = doors.register(talk.hooks())
        try:
            return await self._execute(assignment, driver, installed, talk, entry)
        finally:
            entry.close()

    async def _execute(
        self, assignment: Assignment, driver: Driver, installed: Installed, talk: _Talk, entry: Entry
    ) -> Outcome:
        provider, _, name = assignment.model.rpartition(":")
        model = "" if provider in ("script", "replay") or name == "auto" else name  # as its provider names it
        async with process.home() as home:
            while True:
                async with AsyncExitStack() as opened:
                    started = await process.start(
                        installed,
                        home,
                        lambda url: driver.launch(assignment, entry, url, home, model),
                        network=driver.row.network,
                    )
                    opened.callback(started.door.close)
                    opened.push_async_callback(started.end)
                    serving = await self._listen(started.door)
                    opened.push_async_callback(serving.close, 0)
                    opened.push_async_callback(started.end)  # before its doors are shut
                    try:
                        outcome = await talk.outcome(started, entry)
                    except RuntimeCrashed:
                        await started.end()
                        await entry.settle()  # what it has begun is on record then, and found there by the next
                        raise
                    except BaseException:
                        entry.close()  # first of all
                        raise
                    if outcome is not None:
                        entry.close()
                        return outcome


class _Talk:
    """What is said between a program, its model and us, until there is an output."""

    def __init__(self, assignment: Assignment, driver: Driver, quiet: float, doors: Doors) -> None:
        self._doors = doors
        self._words = count(1)  # what the person says, in a conversation
        self._listening = False
        self._converses = assignment.converses
        self._schema = assignment.output_schema
        self._driver = driver
        self._quiet = quiet
        self._judge = OutputJudge(assignment.output_schema)
        self._last: ModelResponse | None = None
        self._cut = ""  # what was said before it, in answers that were cut off and that the program let go on
        self._problem: str | None = None  # of the final result in the last answer
        self._found: Outcome | None = None  # the output, while calls beside it are still to be made
        self._active = time.monotonic()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def hooks(self) -> ProgramHooks:
        result = None if self._schema is None else self._result
        return ProgramHooks(name_of=self._driver.names, heard=self._heard, result=result, over=self._over)

    async def outcome(self, started: Program, entry: Entry) -> Outcome | None:
        """The outcome; None when the program is to be started anew. Raises what went wrong."""
        tasks = [asyncio.create_task(self._follow(started)), asyncio.create_task(self._watch(started, entry))]
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

    def _heard(self, response: ModelResponse) -> None:
        self._active = time.monotonic()
        if self._last is not None and self._last.finish_reason == "length":
            self._cut += text_of(self._last)
        self._last = response
        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        final = [call for call in calls if self._judge.expects(call)]
        if calls:
            self._cut = ""
        if not final:
            if calls:
                self._judge.went_on()
            return
        self._problem, output = self._judge.read(response, final)
        if self._problem is not None:
            self._missed(self._problem)
            return
        self._found = Outcome(output=output, messages=())
        if len(calls) == 1:
            self._done(self._found)

    async def _result(self, arguments: Mapping[str, Any]) -> ToolResult:
        """What the program is told when it hands over a final result: the answer that it stands in was judged.

        Where no answer is heard, because its model is not asked at the model door, this is the answer.
        """
        if not self._driver.row.routed:
            self._heard(ModelResponse(parts=[ToolCallPart(tool_name=OUTPUT_TOOL, args=dict(arguments))]))
        problem = self._problem if self._found is None else None
        return ToolResult(content=(Text(problem or _TAKEN),), is_error=problem is not None)

    def _over(self) -> bool:
        """All calls beside the result were made when the program asks its model again."""
        if self._found is not None:
            self._done(self._found)
        return self._found is not None

    async def _follow(self, started: Program) -> None:
        lines = started.lines()
        async for line in lines:
            self._active = time.monotonic()
            said = self._driver.read(line)
            if said is None:
                continue
            if said.error is not None:
                raise said.error
            if said.text is not None:
                self._heard(ModelResponse(parts=[TextPart(said.text)]))
            if await self._ended(started):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FAREWELL):  # what was said has to be in its home by then
                        async for _ in lines:
                            pass
                return
        raise self._broke(await started.manner())

    def _broke(self, manner: str) -> GuildError:
        return self._driver.broke(manner) or RuntimeCrashed(f"{self._driver.row.title} {manner}")

    async def _ended(self, started: Program) -> bool:
        """Take the last answer as the output, or tell the program what is wrong with it.

        In a conversation, tell it what the user says next. Return True if it must be started again for that.
        """
        if self._last is None:
            raise RuntimeFailed(f"{self._driver.row.title} said that it was done, and had asked nothing")
        if self._found is not None:
            self._done(self._found)
            return False
        problem, output = self._judge.read(self._last, [])
        if self._converses and (problem is None or self._judge.gives_up()):
            return self._tell(started, await self._said())
        if problem is None:
            self._done(Outcome(output=f"{self._cut}{output}" if self._schema is None else output, messages=()))
            return False
        self._missed(problem)
        return self._tell(started, problem)

    async def _said(self) -> str:
        """What the person says next; until then nothing is expected of the process."""
        self._judge.went_on()
        self._listening = True
        try:
            return await self._doors.said(f"u{next(self._words)}")
        finally:
            self._listening = False
            self._active = time.monotonic()

    def _tell(self, started: Program, words: str) -> bool:
        self._last, self._cut = None, ""
        further = self._driver.again(words)
        if further is not None:
            started.tell(further)
        return further is None

    async def _watch(self, started: Program, entry: Entry) -> None:
        """Ends when the program does nothing any more."""
        while True:
            await asyncio.sleep(self._quiet / _LOOKS)
            if entry.busy() or self._listening:
                self._active = time.monotonic()
            if time.monotonic() - self._active > self._quiet:
                raise self._broke(f"said and asked nothing for {self._quiet:g} s, and was ended{started.said}")

    def _missed(self, problem: str) -> None:
        try:
            self._judge.missed(problem)
        except RuntimeFailed as error:
            if not self._outcome.done():
                self._outcome.set_exception(error)

    def _done(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)


def words_of(assignment: Assignment) -> str:
    """The first message and its attachments as our own runtime tells them: as data, fenced. Pictures go beside it."""
    first = asked(assignment)
    items = [first] if isinstance(first, str) else first
    return "\n\n".join(text for item in items if isinstance(text := getattr(item, "content", item), str))


def normal_name(name: str) -> str:
    """Return a name with only the characters that programs accept in the names of servers and tools."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def refuse_unseen(row: Row, assignment: Assignment, takes: Collection[str] = ()) -> None:
    """Says no to what the program could not show to its model."""
    unseen = [one.label for one in assignment.attachments if not one.is_text and one.media_type not in takes]
    if unseen:
        raise RuntimeFailed(
            f"runtime {row.name}: {row.title} cannot hand this over to its model: {', '.join(unseen)}",
            hint="Attach text, or let a worker with `runtime: pydantic` or `runtime: claude` look at it.",
        )


def driver_of(runtime: str, environ: Mapping[str, str]) -> Callable[[], Driver]:
    """Return what creates the driver of a run."""
    from guildhall.runtimes.programs import claude, codex, cursor, opencode

    drivers: dict[str, Callable[[], Driver]] = {
        "claude": claude.Claude,
        "codex": codex.Codex,
        "opencode": opencode.OpenCode,
        "cursor": lambda: cursor.Cursor(environ),
    }
    if runtime not in drivers:
        raise RuntimeUnusable(f"runtime {runtime} cannot be provided by this version")
    return drivers[runtime]
