"""Run segment: drives a runtime from the start or resume of a run until the run ends, waits or is paused.

A segment passes the calls of the runtime to the model door and the gate, and restarts a crashed process of the
runtime. It ends when the runtime returns, the run is idle, paused or out of time, or a call fails fatally.

Does not judge the end for an owner: the hooks of the run do (`runs.owner_hooks`).

Invariant: a paused run starts no new call. The end of a segment is recorded before its owner is notified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import stamp
from guildhall.core.errors import (
    GuildError,
    LimitReached,
    NotReachable,
    Overloaded,
    RateLimited,
    RuntimeCrashed,
    RuntimeFailed,
    RuntimeToolless,
)
from guildhall.core.events import ErrorData, RunEndedData
from guildhall.core.text_checks import check_text
from guildhall.models.door import MAX_OUTPUT_TOKENS, ModelDoor
from guildhall.runs import limits
from guildhall.runs.model import PauseCause, SegmentEnd
from guildhall.runs.record import entries, records
from guildhall.runs.record.messages import dump_response

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from sqlalchemy import Connection

    from guildhall.models.model import Upstream
    from guildhall.models.passthrough.relay import PassthroughRequest
    from guildhall.runs.execution.call_ledger import CallLedger
    from guildhall.runs.execution.program_access import ProgramAccess
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.runs.record.journal import Journal
    from guildhall.runtimes.model import DoorAccess, Outcome, ProgramHooks, Runtime
    from guildhall.tools.gate import Gate
    from guildhall.tools.model import ToolCall, ToolResult


_GRACE_S = 2.0  # time for open calls to finish when a run is paused
_MAX_CRASHES = 3  # crashes of the runtime process in one segment
_StopKind = Literal["idle", "paused", "timeout", "error"]
# Hints for errors whose cause may be gone later.
RESUME_HINTS: Mapping[type[GuildError], str] = {
    RateLimited: "Wait a while, then: guild resume {root}",
    Overloaded: "Wait a while, then: guild resume {root}",
    NotReachable: "Check the network and the address, then: guild resume {root}",
    RuntimeCrashed: "Continue from the last recorded step: guild resume {root}",
    RuntimeToolless: "Start the program again: guild resume {root}",
}


class StopSegment(Exception):
    """Raised by a runtime to end the segment with this `end`."""

    def __init__(self, end: SegmentEnd) -> None:
        super().__init__(end.status)
        self.end = end


class Segment:
    """One segment of a run, and the doors of its runtime."""

    def __init__(
        self,
        *,
        ledger: CallLedger,
        runtime: Runtime,
        gate: Gate,
        model_door: ModelDoor,
        program_access: ProgramAccess,
        seconds_before: float,
        clean_up: Callable[[], Awaitable[object]],
        hooks: RunHooks | None = None,
    ) -> None:
        self.stopped = asyncio.Event()
        self._ledger = ledger
        self._runtime = runtime
        self._gate = gate
        self._model_door = model_door
        self._program_access = program_access
        self._idle_tracker = ledger.idle_tracker
        self._clock = ledger.clock
        self._seconds_before = seconds_before
        self._clean_up = clean_up
        self._hooks = hooks
        self._started_at = self._clock.monotonic()
        self._paused = asyncio.Event()
        self._pause_cause: PauseCause = "user"
        self._failed = asyncio.Event()
        self._error: Exception | None = None  # set with `_failed`
        self._in_time = asyncio.Event()
        self._in_time.set()
        self._open_calls: set[asyncio.Task[ToolResult]] = set()
        self._children: set[Segment] = set()
        self._parent: Segment | None = None
        self._is_listening = False  # for the user's next message
        self._is_ending = False

    # doors of the runtime

    async def call_model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        passthrough: PassthroughRequest | None = None,
    ) -> ModelResponse:
        await self.wait_until_open()
        if self._hooks is not None:
            # A resumed run repeats its recorded model calls. Later tool calls must not affect them.
            asked = self._ledger.journal.last(key, entries.ModelAsked)
            successful_tools = self._ledger.journal.successful_tools(before=asked.seq if asked is not None else None)
            if self._hooks.final_tools & successful_tools:
                self.fail(StopSegment(SegmentEnd(status="completed")))
                await asyncio.get_running_loop().create_future()
            parameters = self._hooks.hide_deferred_tools(parameters, successful_tools)
        with self._idle_tracker.open_call():
            return await self._model_door.call(key, messages, parameters, passthrough)

    async def call_tool(self, call: ToolCall) -> ToolResult:
        await self.wait_until_open()
        with self._idle_tracker.open_call():
            task = asyncio.create_task(self._gate.call(call))
            self._open_calls.add(task)
            try:
                return await task
            finally:
                self._open_calls.discard(task)

    async def next_message(self, key: str) -> str:
        """Return the recorded user message with this key, or wait for the next user message."""
        await self.wait_until_open()
        if (recorded := self._ledger.journal.last(key, entries.Said)) is not None:
            return recorded.data.words
        number = self._ledger.journal.message_number(key)
        next_message = self._hooks.next_message if self._hooks else None
        if next_message is None:
            raise RuntimeFailed("cannot wait for a user message: the run is not a conversation")
        with self._idle_tracker.open_call():
            text = check_text("message", await self._wait_for_message(next_message(number), number))
            await self.wait_until_open()
            await self._ledger.record_message(number, text)
        return text

    async def _wait_for_message(self, message: Awaitable[str], number: int) -> str:
        """Return the message. Publish that the run listens, unless the message has arrived already."""
        future = asyncio.ensure_future(message)
        try:
            await asyncio.sleep(0)
            if future.done():
                return future.result()
            await self._ledger.start_listening(number)
            self._is_listening = True
            with self._idle_tracker.waiting_call():
                return await future
        finally:
            self._is_listening = False
            future.cancel()

    def register(self, hooks: ProgramHooks) -> DoorAccess:
        return self._program_access.register(self, hooks)

    async def wait_until_open(self) -> None:
        """Block a new call forever if the run is paused, and until the user grants more time if it is out of time."""
        if self._paused.is_set():
            await asyncio.get_running_loop().create_future()
        await self._in_time.wait()
        if self._parent is not None:
            await self._parent.wait_until_open()

    @property
    def is_open(self) -> bool:
        return not self._paused.is_set() and not self._is_ending

    def is_other_call(self, call: ToolCall) -> bool:
        try:
            self._ledger.find_result(call)
        except RuntimeFailed:
            return True
        return False

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        return self._ledger.is_other_question(key, messages)

    def expect_calls(self, count: int) -> None:
        self._idle_tracker.expect_calls(count)

    def upstream(self, api: str) -> Upstream | None:
        return self._model_door.upstream(api)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._failed.set()

    # the segment

    def pause(self, cause: PauseCause = "user") -> None:
        """Pause the run and its child runs. The first cause counts."""
        if not self._paused.is_set():
            self._pause_cause = cause
        self._paused.set()
        for child in self._children:
            child.pause(cause)

    async def run_child(self, child: Segment) -> SegmentEnd:
        """Run a segment of a child run. It is paused and cancelled together with this segment."""
        self._children.add(child)
        child._parent = self
        try:
            if self._paused.is_set():
                child.pause(self._pause_cause)
            return await child.run()
        finally:
            self._children.discard(child)

    async def run(self) -> SegmentEnd:
        """Execute the run until it ends or stops, and record the end of the segment."""
        body = asyncio.create_task(self._execute())
        watchers: dict[asyncio.Task[Any], _StopKind] = {
            asyncio.create_task(self._idle_tracker.idle.wait()): "idle",
            asyncio.create_task(self._paused.wait()): "paused",
            asyncio.create_task(self._wait_for_timeout()): "timeout",
            asyncio.create_task(self._failed.wait()): "error",
        }
        try:
            stop = await self._wait_for_stop(body, watchers)
            if stop == "paused":
                await self._wait_for_calls()
            end = self._find_end(body, stop)
        except asyncio.CancelledError:  # an answer to a waiting run can still arrive
            end = self._waiting_end if self._idle_tracker.is_waiting else SegmentEnd.paused("cut_off")
            await self._finish(end, body, *watchers)
            raise
        return await self._finish(end, body, *watchers)

    async def _wait_for_stop(
        self, body: asyncio.Task[Any], watchers: dict[asyncio.Task[Any], _StopKind]
    ) -> _StopKind | None:
        """Return why the segment stops, or None if the runtime has returned."""
        while True:
            done, _ = await asyncio.wait({body, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if body in done:
                return None
            stop = watchers[watcher := next(iter(done))]
            if stop != "idle" or self._idle_tracker.is_waiting:
                return stop
            del watchers[watcher]  # the answer arrived in the meantime
            self._idle_tracker.idle.clear()
            watchers[asyncio.create_task(self._idle_tracker.idle.wait())] = stop

    async def _execute(self) -> Outcome:
        """Execute the runtime, again after a crash of its process. It continues at the end of the journal."""
        for crash in range(1, _MAX_CRASHES + 1):
            try:
                return await self._runtime.execute(self._program_access.assignment, self)
            except RuntimeCrashed as error:
                if crash == _MAX_CRASHES:
                    raise
                crashed = entries.Crashed(code=error.code, message=error.message, hint=error.hint, where=error.where)
                await self._ledger.journal.append(crashed)
                again = ErrorData(transient=True, attempt=crash + 1, attempts=_MAX_CRASHES, **error.as_dict())
                self._ledger.publish(ErrorData, again)
        raise AssertionError

    async def _finish(self, end: SegmentEnd, *tasks: asyncio.Task[Any]) -> SegmentEnd:
        """Stop the remaining tasks, have the owner judge the end, and record the end."""
        self._is_ending = True
        try:
            await self._cancel(*tasks, *self._open_calls)
            self._ledger.run_budget.settle_all()
            await self._clean_up()
            judged = end
            if self._hooks is not None and self._hooks.judge is not None:
                judged = await self._hooks.judge(self._ledger.run_id, end)
            await self._record(judged, None if judged == end else end)
            return judged
        finally:
            self.stopped.set()

    @property
    def _waiting_end(self) -> SegmentEnd:
        return SegmentEnd.waiting("message" if self._is_listening else "ask")

    def _find_end(self, body: asyncio.Task[Any], stop: _StopKind | None) -> SegmentEnd:
        if stop == "idle":
            return self._waiting_end
        if stop == "paused":  # a conversation that listens has nothing to resume with after a shutdown
            listens = self._pause_cause == "shutdown" and self._is_listening
            return self._waiting_end if listens else SegmentEnd.paused(self._pause_cause)
        if stop == "timeout":
            return _failed_end(self._ledger.make_limit_error("timeout"))
        error = self._error if stop == "error" else body.exception()
        if error is None:
            return SegmentEnd(status="completed", output=body.result().output)
        if isinstance(error, StopSegment):
            return error.end
        if isinstance(error, GuildError):
            return _failed_end(error, RESUME_HINTS.get(type(error), "").format(root=self._ledger.root))
        return _failed_end(
            RuntimeFailed(
                f"the runtime failed: {type(error).__name__}: {error}",
                hint=f"Continue from the last recorded step: guild resume {self._ledger.root}",
            )
        )

    async def _wait_for_timeout(self) -> None:
        """Return when the run has used its time. Waiting for the user does not count."""
        while (allowed := self._ledger.bounds.timeout) is not None:
            remaining_s = allowed - self._seconds_before - self._running_seconds()
            if remaining_s > 0:
                await self._clock.sleep(remaining_s)
                continue
            self._in_time.clear()
            if not await self._ledger.ask_for_time():
                return
            self._in_time.set()
        await asyncio.get_running_loop().create_future()

    def _running_seconds(self) -> float:
        return self._clock.monotonic() - self._started_at - self._idle_tracker.waited_s()

    async def _wait_for_calls(self) -> None:
        if self._open_calls:
            await asyncio.wait(self._open_calls, timeout=_GRACE_S)
        for child in tuple(self._children):
            await child.stopped.wait()

    async def _cancel(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def _record(self, end: SegmentEnd, unjudged: SegmentEnd | None = None) -> None:
        """Record the end, and notify the owner. `unjudged`: the end that the owner replaced."""
        ended = end.status in {"completed", "failed"}
        seconds = self._seconds_before + self._running_seconds()
        now = stamp(self._clock.now())
        columns: dict[str, Any] = {
            "status": end.status,
            "pause": end.pause,
            "reason": end.reason,
            "error": end.error,
            "output": end.output,
            "running_seconds": seconds,
            "ended_at": now if ended else None,
            "owner": None,
        }

        def also(connection: Connection) -> None:
            records.change_run(connection, self._ledger.run_id, **columns)
            records.pause_descendants(connection, self._ledger.run_id)
            if ended:
                records.withdraw_asks(connection, self._ledger.run_id, now, questions=False)
            if self._hooks is not None:
                self._hooks.record_stop(connection, self._ledger.run_id, end)

        await self._ledger.journal.append(_stop_entry(end, unjudged), also=also)
        if self._hooks is not None and self._hooks.on_stopped is not None:
            await self._hooks.on_stopped(self._ledger.run_id, end)
        if end.error is not None:
            self._ledger.publish(ErrorData, {**end.error})
        self._ledger.publish(RunEndedData, {"status": end.status, "reason": end.reason})


def _stop_entry(end: SegmentEnd, unjudged: SegmentEnd | None) -> entries.Payload:
    before = None if unjudged is None else entries.Unjudged.of(unjudged)
    if end.status in {"completed", "failed"}:
        return entries.Ended(status=end.status, reason=end.reason, error=end.error, output=end.output, unjudged=before)
    return entries.Paused(status=end.status, reason=end.reason, pause=end.pause, unjudged=before)


def _failed_end(error: GuildError, hint: str = "") -> SegmentEnd:
    """Return the end of a run that failed. `hint` follows the hint of the error itself."""
    reason = "limit" if isinstance(error, LimitReached) else error.code
    data = error.as_dict()
    if hint:
        data["hint"] = f"{error.hint} {hint}" if error.hint else hint
    return SegmentEnd(status="failed", reason=reason, error=data)


CUT_OFF = "[The user interrupted this response.]"


async def record_cut_off_response(journal: Journal, text: str) -> bool:
    """Record this text as the response to the open model call of a stopped run. Return False if no call is open."""
    from pydantic_ai.messages import ModelResponse, TextPart

    calls = journal.all(entries.ModelAsked)
    open_calls = [call for call in calls if not journal.last(call.key or "", entries.ModelAnswered)]
    if not open_calls:
        return False
    content = f"{text.rstrip()}\n\n{CUT_OFF}" if text.strip() else CUT_OFF
    usage, cost = _max_usage(journal, open_calls[-1])
    total = limits.usage_with(journal, usage, cost)
    await journal.append(
        entries.ModelAnswered(
            response=dump_response(ModelResponse(parts=[TextPart(content)])), usage=usage, cost_usd=cost, cut_off=True
        ),
        key=open_calls[-1].key,
        also=lambda connection: records.change_run(connection, journal.run_id, **asdict(total)),
    )
    return True


def _max_usage(journal: Journal, asked: entries.Entry[entries.ModelAsked]) -> tuple[entries.TokenUsage, float | None]:
    """Return the maximum usage of a cut off call, or none for a failed call, whose cost the journal already has."""
    if journal.last(asked.key or "", entries.ModelAsked, entries.ModelCallFailed) is not asked:
        return {"input_tokens": 0, "output_tokens": 0}, None
    reserved, max_tokens = asked.data.reserved_tokens, asked.data.max_tokens
    output_tokens = min(reserved, MAX_OUTPUT_TOKENS if max_tokens is None else max_tokens)
    return {"input_tokens": reserved - output_tokens, "output_tokens": output_tokens}, asked.data.reserved_usd
