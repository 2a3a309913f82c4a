"""Run segment: drives a runtime from the start or resume of a run until the run ends, waits or is paused.

Passes the calls of the runtime to the model door and the gate. Ends when the runtime returns, the run is idle, paused
or out of time, or a call fails fatally. Restarts a crashed process of the runtime.

Does not decide the outcome for an owner: the hooks of the run do (`runs.hooks`).

Invariant: a paused run starts no new call. The end of a segment is recorded before its owner is notified.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
from guildhall.core.text import check_text
from guildhall.models.door import OUTPUT_CEILING, ModelDoor
from guildhall.runs import limits
from guildhall.runs.model import PauseCause, SegmentEnd
from guildhall.runs.record import records
from guildhall.runs.record.entries import (
    Crashed,
    Ended,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    Paused,
    Payload,
    TokenUsage,
    Unjudged,
)
from guildhall.runs.record.messages import dump_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from sqlalchemy import Connection

    from guildhall.models.model import Upstream
    from guildhall.models.passthrough.request import Through
    from guildhall.runs.execution.access import ProgramAccess
    from guildhall.runs.execution.ledger import LiveLedger
    from guildhall.runs.hooks import RunHooks
    from guildhall.runs.record import entries
    from guildhall.runs.record.journal import Journal
    from guildhall.runtimes.model import Entry, Outcome, ProgramHooks, Runtime
    from guildhall.tools.gate import Gate
    from guildhall.tools.model import ToolCall, ToolResult


_GRACE = 2.0  # seconds that calls under way get to finish when a run is paused
_CRASHES = 3  # of its process, in one stretch: a run that brings it down again and again has failed
# What can be done about a run that failed by what may be over by now.
RESUME_HINTS: Mapping[type[GuildError], str] = {
    RateLimited: "Wait a while, then: guild resume {root}",
    Overloaded: "Wait a while, then: guild resume {root}",
    NotReachable: "Is the network there, and the address right? Then: guild resume {root}",
    RuntimeCrashed: "It goes on from the last step on record: guild resume {root}",
    RuntimeToolless: "The program is started anew by: guild resume {root}",
}


class StopSegment(Exception):
    """Raised by a runtime that stops for now, or ends, in a way of its own."""

    def __init__(self, end: SegmentEnd) -> None:
        super().__init__(end.status)
        self.end = end


class Segment:
    """Drives a runtime between the doors of one run, and is those doors for it."""

    def __init__(
        self,
        *,
        ledger: LiveLedger,
        runtime: Runtime,
        gate: Gate,
        model_door: ModelDoor,
        program_access: ProgramAccess,
        seconds_before: float,
        clean_up: Callable[[], Awaitable[object]],
        hooks: RunHooks | None = None,
    ) -> None:
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
        self._began = self._clock.monotonic()
        self._paused = asyncio.Event()
        self._pause_cause: PauseCause = "user"
        self._broken = asyncio.Event()
        self._error: Exception | None = None  # what has broken it from outside
        self._in_time = asyncio.Event()
        self._in_time.set()
        self._under_way: set[asyncio.Task[ToolResult]] = set()
        self._called: set[Segment] = set()
        self._caller: Segment | None = None
        self._listening = False  # for what the person says next
        self._ending = False
        self.stopped = asyncio.Event()

    # the doors, as the runtime sees them

    async def model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        through: Through | None = None,
    ) -> ModelResponse:
        await self.wait_until_open()
        with self._idle_tracker.call():
            return await self._model_door.ask(key, messages, parameters, through)

    async def tool(self, call: ToolCall) -> ToolResult:
        await self.wait_until_open()
        with self._idle_tracker.call():
            task = asyncio.create_task(self._gate.call(call))
            self._under_way.add(task)
            try:
                return await task
            finally:
                self._under_way.discard(task)

    async def said(self, key: str) -> str:
        """The same words again where they were heard before; else waits for the person, as long as that takes."""
        await self.wait_until_open()
        if (words := self._ledger.heard(key)) is not None:
            return words
        number = self._ledger.journal.message_number(key)
        next_message = self._hooks.next_message if self._hooks else None
        if next_message is None:
            raise RuntimeFailed("the run asked for what the person says next, and it is no conversation")
        with self._idle_tracker.call():
            words = check_text("message", await self._heard(asyncio.ensure_future(next_message(number)), number))
            await self.wait_until_open()
            await self._ledger.hears(number, words)
        return words

    async def _heard(self, hearing: asyncio.Future[str], number: int) -> str:
        """What is said, once it is; where it was said already nobody is told that it is waited for."""
        try:
            await asyncio.sleep(0)
            if hearing.done():
                return hearing.result()
            await self._ledger.listens(number)
            self._listening = True
            with self._idle_tracker.waiting():
                return await hearing
        finally:
            self._listening = False
            hearing.cancel()

    def register(self, hooks: ProgramHooks) -> Entry:
        return self._program_access.register(self, hooks)

    async def wait_until_open(self) -> None:
        """Block a new call of a paused run for good, and of a run out of time until the user grants more."""
        if self._paused.is_set():
            await asyncio.get_running_loop().create_future()
        await self._in_time.wait()
        if self._caller is not None:
            await self._caller.wait_until_open()

    @property
    def is_open(self) -> bool:
        return not self._paused.is_set() and not self._ending

    def is_other_call(self, call: ToolCall) -> bool:
        try:
            self._ledger.finished(call)
        except RuntimeFailed:
            return True
        return False

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        return self._ledger.asked_another(key, messages)

    def expects(self, calls: int) -> None:
        self._idle_tracker.expect_calls(calls)

    def upstream(self, api: str) -> Upstream | None:
        return self._model_door.upstream(api)

    def breaks(self, error: Exception) -> None:
        self._error = self._error or error
        self._broken.set()

    # the stretch

    def pause(self, cause: PauseCause = "user") -> None:
        """Pause the run and the runs that it has called. The first cause counts."""
        if not self._paused.is_set():
            self._pause_cause = cause
        self._paused.set()
        for called in self._called:
            called.pause(cause)

    async def carry_out(self, called: Segment) -> SegmentEnd:
        """Executes a run that this one has called. It is paused with this one, and cut off with it."""
        self._called.add(called)
        called._caller = self
        try:
            if self._paused.is_set():
                called.pause(self._pause_cause)
            return await called.run()
        finally:
            self._called.discard(called)

    async def run(self) -> SegmentEnd:
        """Executes until something ends the stretch, and puts the end on record."""
        body = asyncio.create_task(self._execute())
        watchers: dict[asyncio.Task[Any], str] = {
            asyncio.create_task(self._idle_tracker.idle.wait()): "stuck",
            asyncio.create_task(self._paused.wait()): "paused",
            asyncio.create_task(self._time_over()): "late",
            asyncio.create_task(self._broken.wait()): "broken",
        }
        try:
            first = await self._first(body, watchers)
            if first == "paused":
                await self._let_calls_finish()
            end = self._judge(body, first)
        except asyncio.CancelledError:  # of a run that waits the answer is still awaited
            cut_off = self._waiting if self._idle_tracker.is_waiting else SegmentEnd.paused("cut_off")
            await self._end(cut_off, body, *watchers)
            raise
        return await self._end(end, body, *watchers)

    async def _first(self, body: asyncio.Task[Any], watchers: dict[asyncio.Task[Any], str]) -> str | None:
        """What ends the stretch; None: the run itself."""
        while True:
            done, _ = await asyncio.wait({body, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if body in done:
                return None
            first = watchers[found := next(iter(done))]
            if first != "stuck" or self._idle_tracker.is_waiting:
                return first
            del watchers[found]  # what it waited for came in that very moment
            self._idle_tracker.idle.clear()
            watchers[asyncio.create_task(self._idle_tracker.idle.wait())] = first

    async def _execute(self) -> Outcome:
        """Executes; again when the process of the run died: what it had done is on record, and it goes on there."""
        for crash in range(1, _CRASHES + 1):
            try:
                return await self._runtime.execute(self._program_access.assignment, self)
            except RuntimeCrashed as error:
                if crash == _CRASHES:
                    raise
                crashed = Crashed(code=error.code, message=error.message, hint=error.hint, where=error.where)
                await self._ledger.journal.append(crashed)
                again: ErrorData = {"transient": True, "attempt": crash + 1, "attempts": _CRASHES, **error.as_dict()}
                self._ledger.publish(ErrorData, again)
        raise AssertionError

    async def _end(self, end: SegmentEnd, *tasks: asyncio.Task[Any]) -> SegmentEnd:
        self._ending = True
        try:
            await self._stop(*tasks)
            judged = end
            if self._hooks is not None and self._hooks.judge is not None:
                judged = await self._hooks.judge(self._ledger.run, end)
            await self._record(judged, None if judged == end else end)
            return judged
        finally:
            self.stopped.set()

    @property
    def _waiting(self) -> SegmentEnd:
        return SegmentEnd.waiting("message" if self._listening else "ask")

    def _judge(self, body: asyncio.Task[Any], first: str | None) -> SegmentEnd:
        if first == "stuck":
            return self._waiting
        if first == "paused" and self._pause_cause == "shutdown" and self._listening:
            return self._waiting  # there is nothing for it to go on with by itself
        if first == "paused":
            return SegmentEnd.paused(self._pause_cause)
        if first == "late":
            return _failed(self._ledger.limit_reached("timeout"))
        error = self._error if first == "broken" else body.exception()
        if error is None:
            return SegmentEnd(status="completed", output=body.result().output)
        if isinstance(error, StopSegment):
            return error.end
        if isinstance(error, GuildError):
            return _failed(error, RESUME_HINTS.get(type(error), "").format(root=self._ledger.root))
        return _failed(
            RuntimeFailed(
                f"the runtime broke: {type(error).__name__}: {error}",
                hint=f"`guild resume {self._ledger.root}` tries again from the last step on record.",
            )
        )

    async def _time_over(self) -> None:
        """Returns when the run has been running, waiting not counted, for as long as it may."""
        while (allowed := self._ledger.bounds.timeout) is not None:
            left = allowed - self._seconds_before - self._running_seconds()
            if left > 0:
                await self._clock.sleep(left)
                continue
            self._in_time.clear()
            if not await self._ledger.more_time():
                return
            self._in_time.set()
        await asyncio.get_running_loop().create_future()

    def _running_seconds(self) -> float:
        return self._clock.monotonic() - self._began - self._idle_tracker.idle_seconds()

    async def _let_calls_finish(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_GRACE)
        for called in tuple(self._called):
            await called.stopped.wait()

    async def _stop(self, *tasks: asyncio.Task[Any]) -> None:
        running = [*tasks, *self._under_way]
        for task in running:
            task.cancel()
        for task in running:
            with suppress(asyncio.CancelledError, Exception):
                await task
        self._ledger.run_budget.let_go()
        await self._clean_up()

    async def _record(self, end: SegmentEnd, unjudged: SegmentEnd | None = None) -> None:
        """Puts the end on record; `unjudged` is what it would have been in no seat, where that is something else."""
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
            records.change_run(connection, self._ledger.run, **columns)
            records.pause_children(connection, self._ledger.run)
            if ended:
                records.withdraw_asks(connection, self._ledger.run, now, questions=False)
            if self._hooks is not None:
                self._hooks.record_stop(connection, self._ledger.run, end)

        await self._ledger.journal.append(_stop(end, unjudged), also=also)
        if self._hooks is not None and self._hooks.on_stopped is not None:
            await self._hooks.on_stopped(self._ledger.run, end)
        if end.error is not None:
            self._ledger.publish(ErrorData, {**end.error})
        self._ledger.publish(RunEndedData, {"status": end.status, "reason": end.reason})


def _stop(end: SegmentEnd, unjudged: SegmentEnd | None) -> Payload:
    """Return the journal entry of the end of a run segment."""
    status, reason = end.status, end.reason
    by_itself = None if unjudged is None else Unjudged.of(unjudged)
    if status in {"completed", "failed"}:
        return Ended(status=status, reason=reason, error=end.error, output=end.output, unjudged=by_itself)
    return Paused(status=status, reason=reason, pause=end.pause, unjudged=by_itself)


def _failed(error: GuildError, hint: str = "") -> SegmentEnd:
    """Return the end of a run that failed. `hint` follows the hint of the error itself."""
    reason = "limit" if isinstance(error, LimitReached) else error.code
    data = error.as_dict()
    if hint:
        data["hint"] = f"{error.hint} {hint}" if error.hint else hint
    return SegmentEnd(status="failed", reason=reason, error=data)


CUT_OFF = "[The person interrupted here.]"


async def record_cut_off_answer(journal: Journal, text: str) -> bool:
    """Record this text as the answer to the open question of a stopped run. Return False if no question is open."""
    from pydantic_ai.messages import ModelResponse, TextPart

    open_ones = [asked for asked in journal.all(ModelAsked) if not journal.last(asked.key or "", ModelAnswered)]
    if not open_ones:
        return False
    said = f"{text.rstrip()}\n\n{CUT_OFF}" if text.strip() else CUT_OFF
    response = dump_response(ModelResponse(parts=[TextPart(said)]))
    usage, cost = _taken(journal, open_ones[-1])
    total = limits.usage_with(journal, **usage, cost=cost)
    await journal.append(
        ModelAnswered(response=response, usage=usage, cost_usd=cost, cut_off=True),
        key=open_ones[-1].key,
        also=lambda connection: records.change_run(connection, journal.run, **asdict(total)),
    )
    return True


def _taken(journal: Journal, asked: entries.Entry[ModelAsked]) -> tuple[TokenUsage, float | None]:
    """Return the most that an interrupted call can have used. The journal already has the cost of a failed call."""
    if journal.last(asked.key or "", ModelAsked, ModelCallFailed) is not asked:
        return {"input_tokens": 0, "output_tokens": 0}, None
    held, most = asked.data.reserved_tokens, asked.data.max_tokens
    answer = min(held, OUTPUT_CEILING if most is None else most)
    return {"input_tokens": held - answer, "output_tokens": answer}, asked.data.reserved_usd
