"""Following a run: its events as they come, its asks answered at the terminal, its result at the end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.format.jobs import by_job, id_of
from guildhall.cli.format.rooms import TOLD, line_of
from guildhall.cli.format.runs import how_to_go_on, result_of, text_of, used
from guildhall.cli.prompt import NoAnswer, ask_person
from guildhall.cli.screen import ReaderGone, one_line, plain
from guildhall.core.errors import Conflict, Interrupted
from guildhall.core.events import Event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from guildhall.cli.screen import Screen
    from guildhall.hall.client import HallClient, Shown

_WHOLE = 1_000_000  # characters of a line that no terminal cuts
_LOOKS, _BETWEEN = 20, 0.05  # how often it is looked whether a run was ended, and seconds between


@dataclass(frozen=True, kw_only=True)
class _CalledRun:
    """A run that another run has called."""

    worker: str
    number: int  # among the runs of this worker, starting at 1
    depth: int

    @property
    def prefix(self) -> str:
        """Return the text before each line of this run."""
        name = one_line(self.worker, 40)
        label = f"{name} {self.number}" if self.number > 1 else name
        return f"{'  ' * self.depth}[{label}] "


class Follower:
    """Follows one run in the foreground."""

    def __init__(self, client: HallClient, screen: Screen) -> None:
        self._client = client
        self._screen = screen
        self._run: str | None = None
        self._held: dict[str, HeldBack] = {}  # by run
        self._called: dict[str, _CalledRun] = {}  # by run: those that other runs have called
        self._error: Mapping[str, Any] = {}  # what the events said last, for a run whose record could not be kept
        self._calls: dict[tuple[str, str], str] = {}  # those of the last answers, by run and id, with their arguments
        self._turn_over = False
        self._streamed = ""  # the text of the last answer, as it was shown while it was written
        self._said = ""  # the last message of the room

    async def follow(self, stream: AsyncIterator[Event]) -> int:
        """Follow to the end, or until the person stops it; the exit code."""
        stopped: int | None = None
        self._screen.last_words = "Whether a run has begun, `guild ls` shows."
        try:
            async with aclosing(cast("AsyncGenerator[Event]", stream)) as events:
                async for event in events:
                    await self.tell(event)
        except (asyncio.CancelledError, ReaderGone):
            stopped = exit_codes.INTERRUPTED
            calm()
        except NoAnswer:
            stopped = exit_codes.NEEDS_YOU
        if self._run is None:
            raise Interrupted("interrupted before anything began")
        return await self._finish(self._run, stopped=stopped)

    # while it runs

    async def tell(self, event: Event) -> None:
        """Shows an event; a person who is there is asked what it asks."""
        self._learn(event)
        self._tell(event)
        if event.type == "ask_opened" and self._screen.interactive:
            await self._ask(event.data["ask"])

    def _learn(self, event: Event) -> None:
        """Keeps what later lines need to know."""
        if self._run is None:
            self._run = event.run
            self._screen.last_words = f"{event.run} ends where it is. Go on with: guild resume {event.run}"
        if event.type == "run_started" and event.run != self._run:
            self._called[event.run] = self._called_run(event)
        if event.type == "turn_end":
            self._calls = {call: told for call, told in self._calls.items() if call[0] != event.run}
        if event.type == "tool_use":
            said = _arguments(self._screen.scrubbed(event.data.get("arguments")))
            self._calls[event.run, str(event.data.get("id"))] = said
        if event.run != self._run:
            return
        if event.type == "message":
            self._said = str(event.data.get("content"))
        if event.type == "turn_end":
            self._turn_over = True
        elif event.type == "text_delta":
            self._streamed = ("" if self._turn_over else self._streamed) + event.data.get("text", "")
            self._turn_over = False
        elif event.type == "error" and not event.data.get("transient"):
            self._error = event.data

    def _called_run(self, event: Event) -> _CalledRun:
        """Return the depth of a run that another run has called, and its number among the runs of its worker."""
        parent, worker = self._called.get(str(event.data.get("parent"))), str(event.data.get("worker"))
        number = 1 + sum(run.worker == worker for run in self._called.values())
        return _CalledRun(worker=worker, number=number, depth=parent.depth + 1 if parent else 1)

    def _tell(self, event: Event) -> None:
        held = self._held.setdefault(event.run, HeldBack())
        if event.type == "text_delta":
            self._piece(event, held.add(event.data.get("text", "")))
            return
        self._piece(event, held.rest())
        if self._screen.wanted.form == "stream-json":
            self._screen.json(event.as_dict())
            return
        data = self._screen.scrubbed(event.data)  # before anything of it is cut
        if (
            event.type == "tool_result"
            and data.get("tool") not in TOLD
            and sum(call[0] == event.run for call in self._calls) > 1
        ):
            said = self._calls.get((event.run, str(data.get("id"))), "")
            data["tool"] = f"{data.get('tool')} {one_line(said, 40)}"
        called = self._called.get(event.run)
        before = called.prefix if called else ""
        if (told := line_of(event.type, data)) is not None:
            self._screen.note(told, None if event.type in ("message", "held") else "dim")
            return
        width = self._screen.width - len(before) if self._screen.err.isatty() else _WHOLE
        if (line := _line(event, data, width)) is not None:
            failed = bool(data.get("is_error") or data.get("refused"))
            self._screen.note(before + line, "red" if failed else None if event.type == "run_started" else "dim")

    def _piece(self, event: Event, text: str) -> None:
        if not text:
            return
        if self._screen.wanted.form == "stream-json":
            piece = Event(type="text_delta", run=event.run, root=event.root, at=event.at, data={"text": text})
            self._screen.json(piece.as_dict())
        elif event.run == self._run:  # texts that are written side by side cannot be read
            self._screen.delta(text)

    async def _ask(self, ask: Mapping[str, Any]) -> None:
        try:
            await self._client.answer(ask["ask"], await ask_person(ask, self._screen))
        except TimeoutError:
            self._screen.note("The time for this answer is over; the worker is told so.", "yellow")
        except Conflict as error:
            self._screen.note(error.message, "yellow")

    # at the end

    async def _finish(self, run: str, *, stopped: int | None) -> int:
        shown = await self._client.show(run)
        for _ in range(_LOOKS):  # parked, and not from here: somebody is ending it for good
            if stopped is not None or shown.run.pause != "user":
                break
            await asyncio.sleep(_BETWEEN)
            shown = await self._client.show(run)
        self._screen.end_line()
        self._say_how_it_stands(shown)
        if shown.run.status == "parked":
            await self._say_what_was_cut_off(run)
        with suppress(ReaderGone) if stopped else nullcontext():
            await self._print(shown)
        if stopped is not None and shown.run.status != "completed":
            return stopped
        return exit_codes.of_run(shown.run.status, (shown.run.error or {}).get("code"))

    async def _print(self, shown: Shown) -> None:
        if self._screen.wanted.form != "text":
            self._screen.last(await result_of(shown, self._client))
        elif shown.run.status == "completed" and (text := text_of(shown.run.output)) and not self._stands_there(text):
            self._screen.result(text)

    def _stands_there(self, text: str) -> bool:
        """Whether the person has seen the text on this very screen while it was written."""
        return self._screen.one_terminal and text in (self._streamed, self._said)

    def _say_how_it_stands(self, shown: Shown) -> None:
        run = shown.run
        self._screen.note(f"{id_of(run)} {run.status}: {used(shown)}", "dim")
        if error := run.error or self._error:
            said = error.get("message") or run.reason or "no reason given"
            where = f"{error['where']}: " if error.get("where") else ""
            self._screen.note(f"guild: {id_of(run)} {run.status}: {where}{said}", "red")
            if hint := error.get("hint"):
                self._screen.note(by_job(str(hint), run))
        for line in how_to_go_on(shown, self._screen):
            self._screen.note(line)

    async def _say_what_was_cut_off(self, run: str) -> None:
        shown = await self._client.show(run)
        for one in (shown.run, *shown.below):
            entries = await self._client.journal(one.id)
            harmless = {"worker_call", *(entries[0].data.get("repeatable", ()) if entries else ())}
            calls = {entry.key: entry for entry in entries if entry.kind.startswith("tool_")}
            for entry in calls.values():
                if entry.kind != "tool_started" or entry.data.get("tool") in harmless:
                    continue
                self._screen.note(
                    f"{entry.data.get('tool')} was cut off before its end; "
                    "when the run goes on you may be asked whether it took effect.",
                    "yellow",
                )


def calm() -> None:
    """What comes after a cancellation that was heeded is not cancelled itself."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        task.uncancel()


class HeldBack:
    """Text that comes in pieces, handed on by whole words: a secret cut in two would not be recognised."""

    def __init__(self) -> None:
        self._kept = ""

    def add(self, piece: str) -> str:
        text = self._kept + piece
        end = max(text.rfind(" "), text.rfind("\n")) + 1
        self._kept = text[end:]
        return text[:end]

    def rest(self) -> str:
        text, self._kept = self._kept, ""
        return text


def _line(event: Event, data: Mapping[str, Any], width: int) -> str | None:
    """An event in one line; None where there is nothing to say yet."""
    match event.type:
        case "run_started":
            plan = data.get("plan") or f"{data.get('worker')} on {data.get('model')}"
            return f"{event.run} {'goes on' if data.get('resumed') else 'starts'}: {plain(str(plan))}"
        case "tool_use" if data.get("tool") in TOLD and not data.get("refused"):
            return None
        case "tool_result" if data.get("tool") in TOLD and not data.get("is_error"):
            return None
        case "tool_use":
            call = f"{data.get('tool')} {_arguments(data.get('arguments'))}"
            return one_line(f"not called: {call}" if data.get("refused") else f"→ {call}", width - 1)
        case "tool_output":
            lines = str(data.get("text", "")).rstrip("\n").splitlines()
            return "\n".join(f"  {one_line(line, width - 3)}" for line in lines)
        case "tool_result":
            mark = "✗" if data.get("is_error") else "←"
            return one_line(f"{mark} {data.get('tool')}: {data.get('text') or '(nothing)'}", width - 1)
        case "memory_condensed":
            return one_line(str(data.get("text")), 500)
        case "error" if data.get("renewed"):
            return one_line(str(data.get("message")), 2 * width)
        case "error" if data.get("transient"):
            return one_line(f"{_retrying(data)}: {data.get('message')}", 2 * width)
        case _:
            return None


def _retrying(data: Mapping[str, Any]) -> str:
    """That it is tried again, when, and for which time, as far as that is known."""
    pause, attempt = data.get("pause"), data.get("attempt")
    said = "retrying" if pause is None else f"retrying in {pause:g} s"
    return said if attempt is None else f"{said} ({attempt} of {data.get('attempts')})"


def _arguments(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return "" if arguments is None else str(arguments)
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in cast("dict[str, Any]", arguments).items()
    )
