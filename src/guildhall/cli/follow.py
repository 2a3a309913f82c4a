"""Follower: prints the events of a run, asks the user for answers, and prints the result at the end.

Does not format results or journal entries (see `cli.format.runs`) or read answers (see `cli.prompt`).

Invariant: pieces of text are joined to whole words before they are printed, so that secrets are redacted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.format.jobs import id_of
from guildhall.cli.format.runs import print_error, print_next_steps, result_data, text_of, usage_line
from guildhall.cli.format.workflows import SHOWN_AS_EVENTS, event_line
from guildhall.cli.prompt import NoAnswer, ask_user
from guildhall.cli.screen import OutputFailed, Screen, one_line, plain
from guildhall.core import events
from guildhall.core.errors import Conflict, HallGone, Interrupted
from guildhall.runs.record.entries import Assembly, ToolStarted
from guildhall.workflow.instance import SETUP_KEY_PREFIX

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import RunDetails

_MAX_LINE_CHARS = 2_000  # of a line that is not printed at a terminal
_MAX_OUTPUT_LINES = 100  # of the output of a running command
_MAX_POLLS, _POLL_S = 20, 0.05  # until the cancellation of a paused run is recorded


@dataclass(frozen=True, kw_only=True)
class _ChildRun:
    """A run that another run has called."""

    worker: str
    depth: int
    prefix: str  # of each printed line of this run


class Follower:
    """Follows one run in the foreground."""

    def __init__(self, client: HallClient, screen: Screen) -> None:
        self._client = client
        self._screen = screen
        self._run: str | None = None
        self._buffers: dict[str, WordBuffer] = {}  # by run
        self._children: dict[str, _ChildRun] = {}  # by run
        self._error: events.ErrorData | None = None  # of the last error event, if the run could not be recorded
        self._hall_error: HallGone | None = None  # why the hall stops, if the home is lost
        self._calls: dict[tuple[str, str], str] = {}  # arguments of the calls of the last turn, by run and call id
        self._output_lines: dict[tuple[str, str], int] = {}  # lines of output that have arrived, by run and call id
        self._is_turn_over = False
        self._streamed = ""  # text of the last model response, as it was printed while it arrived
        self._last_message = ""  # in the room

    async def follow(self, stream: AsyncGenerator[events.Event]) -> int:
        """Follow until the run ends or the user stops it, and return the exit code."""
        stopped: int | None = None
        self._screen.abort_note = "`guild ls` shows whether a run was started."
        try:
            async with aclosing(stream):
                async for event in stream:
                    await self.handle(event)
        except (asyncio.CancelledError, OutputFailed):
            stopped = exit_codes.INTERRUPTED
            clear_cancellation()
        except NoAnswer:
            stopped = exit_codes.NEEDS_YOU
        except HallGone as error:
            if self._run is None:
                raise
            hint = f"Continue from the last recorded step: guild resume {self._run}"
            raise self._hall_error or HallGone(error.message, hint=hint) from None
        if self._hall_error is not None:
            raise self._hall_error
        if self._run is None:
            raise Interrupted("interrupted before a run was started")
        return await self._finish(self._run, stopped=stopped)

    # while it runs

    async def handle(self, event: events.Event) -> None:
        """Print an event. If an ask was opened and the terminal is interactive, ask the user for the answer."""
        self._update_state(event)
        self._print_event(event)
        if not self._screen.is_interactive or (opened := event.read(events.AskOpenedData)) is None:
            return
        ask: Mapping[str, Any] = opened["ask"]
        try:
            await self._client.asks.answer(ask["ask"], await ask_user(ask, self._client, self._screen))
        except TimeoutError:
            self._screen.note("Too late: the ask has expired. The worker was informed.", "yellow")
        except Conflict as error:
            self._screen.note(error.message, "yellow")

    def _update_state(self, event: events.Event) -> None:
        """Store the facts of an event that later lines need."""
        if self._run is None:
            self._run = event.run
            self._screen.abort_note = f"Stopped {event.run}. Continue: guild resume {event.run}"
        if event.run != self._run and (started := event.read(events.RunStartedData)) is not None:
            parent, worker = self._children.get(started["parent"] or ""), started["worker"]
            number = 1 + sum(run.worker == worker for run in self._children.values())
            depth, label = parent.depth + 1 if parent else 1, one_line(worker, 40)
            prefix = f"{'  ' * depth}[{label} {number}] " if number > 1 else f"{'  ' * depth}[{label}] "
            self._children[event.run] = _ChildRun(worker=worker, depth=depth, prefix=prefix)
        if event.type == "turn_end":
            self._calls = {call: arguments for call, arguments in self._calls.items() if call[0] != event.run}
        if (use := event.read(events.ToolUseData)) is not None:
            self._calls[event.run, use["id"]] = _format_arguments(self._screen.redact_value(use["arguments"]))
        if event.run != self._run:
            return
        if event.type == "message" and (message := event.read(events.MessageData)) is not None:
            self._last_message = message["content"]
        if event.type == "turn_end":
            self._is_turn_over = True
        elif (piece := event.read(events.TextDeltaData)) is not None:
            self._streamed = ("" if self._is_turn_over else self._streamed) + piece["text"]
            self._is_turn_over = False
        elif (error := event.read(events.ErrorData)) is not None and not error.get("transient"):
            self._error = error
            if error["code"] == HallGone.code:
                self._hall_error = HallGone(error["message"], hint=error.get("hint"))

    def _print_event(self, event: events.Event) -> None:
        buffer = self._buffers.setdefault(event.run, WordBuffer())
        if (piece := event.read(events.TextDeltaData)) is not None:
            self._print_piece(event, buffer.add(piece["text"]))
            return
        self._print_piece(event, buffer.flush())
        if self._screen.form == "stream-json":
            self._screen.json(event.as_dict())
            return
        data = self._screen.redact_value(event.data)  # before it is shortened
        if (
            event.type == "tool_result"
            and data.get("tool") not in SHOWN_AS_EVENTS
            and sum(call[0] == event.run for call in self._calls) > 1
        ):
            arguments = self._calls.get((event.run, str(data.get("id"))), "")
            data["tool"] = f"{data.get('tool')} {one_line(arguments, 40)}"
        if (output := event.read(events.ToolOutputData)) is not None:
            data["text"] = self._limit_output((event.run, output["id"]), str(data["text"]))
        elif event.type == "tool_result" and (event.run, str(data.get("id"))) in self._output_lines:
            data["text"] = str(data.get("text")).rpartition("\n")[2]  # the exit code; the output was printed before
        child = self._children.get(event.run)
        prefix = child.prefix if child else ""
        if (text := event_line(event.type, data)) is not None:
            self._screen.note(text, None if event.type in ("message", "held") else "dim")
            return
        width = self._screen.width - len(prefix) if self._screen.err.isatty() else _MAX_LINE_CHARS
        if (line := _format_event(event, data, width)) is not None:
            is_failed = bool(data.get("is_error") or data.get("refused"))
            self._screen.note(prefix + line, "red" if is_failed else None if event.type == "run_started" else "dim")

    def _limit_output(self, call: tuple[str, str], text: str) -> str:
        """Return the part of a command's output that is printed: its first lines."""
        lines, earlier = text.splitlines(), self._output_lines.get(call, 0)
        self._output_lines[call] = earlier + len(lines)
        free = max(0, _MAX_OUTPUT_LINES - earlier)
        return "\n".join([*lines[:free], "…"] if len(lines) > free > 0 else lines[:free])

    def _print_piece(self, event: events.Event, text: str) -> None:
        if not text:
            return
        if self._screen.form == "stream-json":
            piece = events.Event.of(events.TextDeltaData, {"text": text}, run=event.run, root=event.root, at=event.at)
            self._screen.json(piece.as_dict())
        elif event.run == self._run:  # the texts of two runs would be mixed
            self._screen.delta(text)

    # at the end

    async def _finish(self, run: str, *, stopped: int | None) -> int:
        details = await self._client.runs.get(run)
        for _ in range(_MAX_POLLS):  # paused, but not by this command: it is being cancelled
            if stopped is not None or details.run.pause != "user":
                break
            await asyncio.sleep(_POLL_S)
            details = await self._client.runs.get(run)
        self._screen.end_line()
        self._screen.note(f"{id_of(details.run)} {details.run.status}: {usage_line(details)}", "dim")
        if error := details.run.error or self._error:
            print_error(details.run, error, self._screen)
        print_next_steps(details, self._screen)
        if details.run.status == "paused":
            await self._print_interrupted_calls(details)
        with suppress(OutputFailed) if stopped else nullcontext():
            await self._print_result(details)
        if stopped is not None and details.run.status != "completed":
            return stopped
        return exit_codes.run_exit_code(details.run.status, details.run.error_code)

    async def _print_result(self, details: RunDetails) -> None:
        """Print the result, unless the user has seen it while it arrived."""
        text, screen = text_of(details.run.output), self._screen
        if screen.form != "text":
            screen.print_final(await result_data(details, self._client))
        elif details.run.status != "completed" or not text:
            return
        elif not screen.is_one_terminal or text not in (self._streamed, self._last_message):
            screen.result(text)

    async def _print_interrupted_calls(self, details: RunDetails) -> None:
        for run in (details.run, *details.below):
            entries = await self._client.runs.journal(run.id)
            first = entries[0].data if entries else None
            repeatable = {"worker_call", *(first.repeatable if isinstance(first, Assembly) else ())}
            calls = {entry.key: entry.data for entry in entries if entry.kind.startswith("tool_")}
            for call in calls.values():
                if isinstance(call, ToolStarted) and call.tool not in repeatable:
                    note = (
                        f"{call.tool} was interrupted. When the run resumes, you may be asked if the call took effect."
                    )
                    self._screen.note(note, "yellow")


def clear_cancellation() -> None:
    """Reset the cancellation of this task, so that it can await the end of the run."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        task.uncancel()


class WordBuffer:
    """Joins pieces of text to whole words, because a secret in two pieces cannot be redacted."""

    def __init__(self) -> None:
        self._pending = ""

    def add(self, piece: str) -> str:
        text = self._pending + piece
        end = max(text.rfind(" "), text.rfind("\n")) + 1
        self._pending = text[end:]
        return text[:end]

    def flush(self) -> str:
        text, self._pending = self._pending, ""
        return text


def _format_event(event: events.Event, data: Mapping[str, Any], width: int) -> str | None:
    """Return an event as one line, or None if it is not printed."""
    match event.type:
        case "run_started":
            plan = data.get("plan") or f"{data.get('worker')} on {data.get('model')}"
            return f"{'Resumed' if data.get('resumed') else 'Run'} {event.run}: {plain(str(plan))}"
        case "tool_use" if data.get("tool") in SHOWN_AS_EVENTS and not data.get("refused"):
            return None
        case "tool_result" if data.get("tool") in SHOWN_AS_EVENTS and not data.get("is_error"):
            return None
        case "tool_use":
            arguments: Any = data.get("arguments")
            if str(data.get("id")).startswith(SETUP_KEY_PREFIX) and isinstance(arguments, dict):
                arguments = cast("dict[str, Any]", arguments).get("command")  # the other arguments are internal
            call = f"{data.get('tool')} {_format_arguments(arguments)}"
            return one_line(f"✗ denied: {call}" if data.get("refused") else f"→ {call}", width - 1)
        case "tool_output":
            lines = str(data.get("text", "")).rstrip("\n").splitlines()
            return "\n".join(f"  {one_line(line, width - 3)}" for line in lines) or None
        case "tool_result":
            mark = "✗" if data.get("is_error") else "←"
            return one_line(f"{mark} {data.get('tool')}: {data.get('text') or '(nothing)'}", width - 1)
        case "memory_condensed":
            return one_line(str(data.get("text")), 500)
        case "error" if data.get("renewed"):
            return one_line(str(data.get("message")), 2 * width)
        case "error" if data.get("transient"):
            pause, attempt = data.get("pause"), data.get("attempt")
            retrying = "retrying" if pause is None else f"retrying in {pause:g} s"
            retrying += "" if attempt is None else f" ({attempt} of {data.get('attempts')})"
            return one_line(f"{retrying}: {data.get('message')}", 2 * width)
        case _:
            return None


def _format_arguments(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return "" if arguments is None else str(arguments)
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in cast("dict[str, Any]", arguments).items()
    )
