"""The sessions of a meeting: start, resume or renew its run, and deliver user messages to the run.

A message is recorded first. Then the listening run is woken, or the stopped run is resumed. Unanswered messages are
looked up again when a segment of the run ends, because a message may arrive at that instant.
Does not store messages (`records.py`) and does not define the worker's tools (`assignee_tools.py`).

Invariant: a recorded message is answered even if the run stops while the message arrives.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import Conflict, ContextTooLong, GuildError, Refused, RuntimeFailed
from guildhall.core.events import ErrorData, Event, ListeningData, TextDeltaData
from guildhall.projects.meetings import assignee_tools, records
from guildhall.projects.meetings.artifact import render_notes
from guildhall.projects.meetings.assignee_tools import SERVER, MeetingTools, meeting_profile, meeting_tools
from guildhall.projects.meetings.context import MeetingContext, Summary, render_transcript
from guildhall.projects.meetings.model import Meeting, Session, branch_name
from guildhall.projects.meetings.states import check_open
from guildhall.runs.execution.segment import record_cut_off_response
from guildhall.runs.limits import Spent, current_bounds
from guildhall.runs.model import Run, RunRequest, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks
from guildhall.runs.purpose import MeetingPurpose
from guildhall.runs.record.entries import ModelAnswered
from guildhall.tools.definition import call_method

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.runs.record.queries import History
    from guildhall.tools.model import Tool, ToolCall, ToolResult

_log = logging.getLogger("guildhall.meetings")
_MAX_BUFFERED_EVENTS = 1_000  # for a slow reader
_KEEP_ALIVE_S = 60.0  # after an answer, while a user at a terminal may be typing
# A run that failed with one of these errors would fail again if it were resumed. A new session is needed.
_NOT_RESUMABLE = (ContextTooLong.code, RuntimeFailed.code)
# Events that a caller receives even while an earlier message is answered.
_ALWAYS_FORWARDED = ("ask_opened", "ask_closed", "error", "run_started", "run_ended")
_MIN_BUDGET_USD = 1e-6  # of a session whose budget is used up: its first model call reports the limit


class Sessions:
    """Starts, resumes, renews and stops the runs of meetings."""

    def __init__(self, context: MeetingContext) -> None:
        self._context = context
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by meeting
        self._message_added: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by meeting
        self._follower_counts: defaultdict[str, int] = defaultdict(int)  # by meeting: callers of `turn`
        self._keep_alive_timers: dict[str, asyncio.TimerHandle] = {}  # by run
        self._partial_answers: dict[str, str] = {}  # by run
        self._tasks: set[asyncio.Task[None]] = set()

    # a turn

    async def turn(
        self,
        id: str,
        first: int,
        last: int,
        frame: Frame,
        *,
        renew: bool = False,
        grant: Grant | None = None,
        is_daemon: bool = True,
    ) -> AsyncGenerator[Event]:
        """Yield the events of the messages from number `first` until `last` is answered and the worker listens again.

        `renew`: start a new session. `grant`: new limits. `is_daemon`: the hall outlives this call, so the run is kept
        alive for the next message of a user at a terminal.
        """
        self._follower_counts[id] += 1
        try:
            must_continue = True
            while must_continue:
                must_continue = False
                segment = self._segment(id, first, last, frame, renew=renew, grant=grant, is_daemon=is_daemon)
                async with aclosing(segment) as events:
                    async for event in events:
                        yield event
                        must_continue = event.type == "run_ended" and self._must_continue(id, event)
                renew, grant = False, None
        finally:
            self._follower_counts[id] -= 1

    async def _segment(
        self, id: str, first: int, last: int, frame: Frame, *, renew: bool, grant: Grant | None, is_daemon: bool
    ) -> AsyncGenerator[Event]:
        """Yield the events of the run until the turn is over or the run has stopped."""
        context = self._context
        with ExitStack() as stack:
            async with self.locks[id]:
                meeting = context.get(id)
                check_open(meeting)
                if not renew and context.unanswered_messages(id) is None:
                    _check_no_grant(grant, f"meeting {id} has no unanswered message")
                    return
                prepared, first_events = await self._prepare(meeting, frame, renew=renew, grant=grant)
                session = context.list_sessions(id)[-1]
                run, before = session.run, session.last_message_number
                events = stack.enter_context(context.bus.listening(run, _MAX_BUFFERED_EVENTS))
                stack.callback(self._attend(run, frame, is_launched=prepared is not None, is_daemon=is_daemon))
                is_forwarding = prepared is not None or context.run_position(run) >= first - before
                if prepared is not None:
                    context.runs().launch(prepared)
                self._message_added[id].set()
            for event in first_events:
                yield event
            async for event in events:
                self._collect_answer(run, event)
                listening = event.read(ListeningData) if event.run == run else None
                answered_number = listening["number"] - 1 + before if listening is not None else -1
                if is_forwarding or event.type in _ALWAYS_FORWARDED:
                    yield event
                is_forwarding = is_forwarding or answered_number >= first - 1
                if answered_number >= last or (event.type == "run_ended" and event.run == run):
                    return

    def _collect_answer(self, run: str, event: Event) -> None:
        """Keep the text of the answer in progress, in case the user interrupts it."""
        if event.run == run and (piece := event.read(TextDeltaData)) is not None:
            self._partial_answers[run] = self._partial_answers.get(run, "") + piece["text"]
        elif event.run == run and event.type in ("turn_end", "run_started", "listening", "run_ended"):
            self._partial_answers.pop(run, None)

    def _must_continue(self, id: str, ended: Event) -> bool:
        """Return True if a stopped run has to be resumed or renewed for an unanswered message."""
        context = self._context
        meeting = context.get(id)
        if meeting.status != "open" or ended.run != meeting.run or context.unanswered_messages(id) is None:
            return False
        run = context.history.get(ended.run)
        if run.status == "failed":  # a session without a model response would fail again
            has_answered = bool(context.history.journal(run.id).all(ModelAnswered))
            return run.error_code == ContextTooLong.code and has_answered
        return run.pause == "message"

    def _attend(self, run: str, frame: Frame, *, is_launched: bool, is_daemon: bool) -> Callable[[], None]:
        """Add the user as a client of a run, and return the function that removes the client."""
        context = self._context
        if (timer := self._keep_alive_timers.pop(run, None)) is not None:
            timer.cancel()
            self._leave(run)
        if not frame.interactive:
            return lambda: None
        if not is_launched:  # a launched run counts the user who launches it
            context.runs().adjust_client_count(run, 1)

        def leave() -> None:
            if not context.is_alive(run):
                return
            if is_daemon:
                self._keep_alive_timers[run] = asyncio.get_running_loop().call_later(_KEEP_ALIVE_S, self._leave, run)
            else:
                self._leave(run)

        return leave

    def _leave(self, run: str) -> None:
        """Remove the user as a client of a run, which may have been stopped and resumed meanwhile."""
        self._keep_alive_timers.pop(run, None)
        if self._context.is_alive(run) and self._context.runs().is_attended(run):
            self._context.runs().adjust_client_count(run, -1)

    # the run

    async def _prepare(
        self, meeting: Meeting, frame: Frame, *, renew: bool, grant: Grant | None
    ) -> tuple[Prepared | None, list[Event]]:
        """Return the run to launch, or None if the run is alive, and the events to yield first."""
        context = self._context
        if meeting.run is None:
            _check_no_grant(grant, f"meeting {meeting.id} has not started")
            number, text = self._next_message(meeting.id)
            message = assignee_tools.first_message(meeting, text)
            return await self._prepare_run(
                meeting, frame, message, number, "the first session starts", **meeting.limits
            ), []
        if renew:
            await context.runs().pause(meeting.run, "user")
        await context.runs().wait_stopped(meeting.run)
        if context.is_alive(meeting.run):
            _check_no_grant(grant, f"meeting {meeting.id} is running")
            return None, []
        run = context.history.get(meeting.run)
        context.check_trust(run.id, frame)
        try:
            _check_resumable(run, renew=renew)
            return await self.resume(run.id, frame, grant), []
        except (Conflict, Refused, ContextTooLong, RuntimeFailed) as error:
            prepared = await self._renew(meeting, frame, reason=error.message, grant=grant)
            return prepared, [self._renewed_event(prepared.run_id, error)]

    def _renewed_event(self, run: str, error: GuildError) -> Event:
        message = f"started a new session with a summary of the conversation: {error.message}"
        data: ErrorData = {"code": error.code, "message": message, "transient": True, "renewed": True}
        return Event.of(ErrorData, data, run=run, root=run, at=self._context.now())

    async def _renew(self, meeting: Meeting, frame: Frame, *, reason: str, grant: Grant | None) -> Prepared:
        """Prepare a new session of a meeting. Its input contains a summary and the last exchanges."""
        context = self._context
        limits = remaining_limits(context.history, meeting.run, grant) if meeting.run else meeting.limits
        all_exchanges = context.list_exchanges(meeting.id)
        last = context.history.get(meeting.run) if meeting.run else None
        if frame.model is None and last is not None:  # keep the model that the user chose for the last session
            frame = replace(frame, model=last.request.model)
        model = last.model if last else None
        transcript = render_transcript(all_exchanges, meeting.worker)
        summary = await context.summarise(transcript, context.project_frame(meeting, frame), model)
        numbers = {message.number for message in context.unanswered_messages(meeting.id) or ()}
        before = [exchange for exchange in all_exchanges if exchange.number not in numbers]
        number, text = self._next_message(meeting.id)
        message = assignee_tools.renewed_message(meeting, summary.text, before, text)
        problem = "" if summary.text else f" (without a summary: {summary.problem})"
        return await self._prepare_run(meeting, frame, message, number, f"renewed: {reason}{problem}", **limits)

    def _next_message(self, id: str) -> tuple[int, str | None]:
        """Return the number and the text of the first unanswered message, or of the last message without its text."""
        pending = self._context.unanswered_messages(id)
        return (pending[0].number, pending[0].text) if pending else (self._context.last_message_number(id), None)

    async def _prepare_run(
        self, meeting: Meeting, frame: Frame, message: str, number: int, reason: str, **limits: Any
    ) -> Prepared:
        """Prepare a new session. `number`: the number of the last user message in its input."""
        context = self._context
        worker = context.find_worker(meeting.worker, context.project_frame(meeting, frame))
        if meeting.branch is None:
            branch, now = branch_name(meeting.id), context.now()
            meeting = await context.store.write(lambda c: records.update_fields(c, meeting.id, now, branch=branch))
        path = await context.check_out(meeting, worker.definition.checkout)
        purpose = MeetingPurpose(id=meeting.id, session=meeting.session_count + 1, last_message=number)
        request = RunRequest(worker=meeting.worker, input=message, model=frame.model, purpose=purpose, **limits)
        run_frame = context.project_frame(meeting, frame, path)
        hooks = self._hooks(purpose, reason)
        return await context.runs().prepare(request, run_frame, worker=meeting_profile(worker), hooks=hooks)

    async def resume(self, run: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Prepare a stopped run of a meeting to resume in its checkout."""
        context = self._context
        purpose = context.history.purpose(run, MeetingPurpose)
        meeting = context.get(purpose.id)
        check_open(meeting)
        await context.check_out(meeting, context.checkout_scope(meeting))
        hooks = self._hooks(purpose)
        return await context.runs().prepare_resume(run, frame, grant=grant, hooks=hooks)

    # the hooks of a session's run

    def _hooks(self, purpose: MeetingPurpose, reason: str = "") -> RunHooks:
        context, id, number = self._context, purpose.id, purpose.last_message

        def record_start(connection: Connection, run: str) -> None:
            session = Session(run=run, last_message_number=number)
            records.add_session(connection, id, session, reason, context.now())

        def call_tool(run: str, tool: Tool, call: ToolCall) -> Awaitable[ToolResult]:
            return call_method(MeetingTools(context=context, meeting_id=id, key=f"{run}/{call.key}"), tool, call)

        return RunHooks(
            tools=meeting_tools(),
            executor=lambda run: partial(call_tool, run),
            record_start=record_start,
            server=SERVER,
            adapt_worker=meeting_profile,
            on_stopped=partial(self._on_run_stopped, id),
            next_message=partial(self._wait_for_message, id, number),
        )

    async def interrupt(self, meeting: Meeting) -> None:
        """Stop the answer in progress. The text so far is recorded as the answer."""
        assert meeting.run is not None
        answer = self._partial_answers.get(meeting.run, "")
        await self._context.runs().pause(meeting.run, "user")
        await record_cut_off_response(self._context.history.journal(meeting.run), answer)

    async def _wait_for_message(self, id: str, first_number: int, position: int) -> str:
        """Wait for the message at this position in the session, and return its text.

        If the message is recorded already, the run does not publish a `listening` event. This function publishes the
        event, for callers that wait for the answer to an earlier message.
        """
        context = self._context
        self.start_task(asyncio.to_thread(self._write_transcript, id))
        has_waited = False
        while True:
            self._message_added[id].clear()
            messages = [message for message in context.list_messages(id) if message.number == first_number + position]
            if messages:
                break
            has_waited = True
            await self._message_added[id].wait()
        if not has_waited:
            run, at = context.list_sessions(id)[-1].run, context.now()
            context.bus.publish(Event.of(ListeningData, {"number": position}, run=run, root=run, at=at))
        return messages[0].text

    def _write_transcript(self, id: str) -> None:
        """Write the transcript of an open meeting, and render the notes, which stores their redacted texts."""
        context = self._context
        meeting = context.get(id)
        if meeting.status == "open":
            title = f"# {meeting.topic}\n\n{meeting.worker} in {meeting.project}, {meeting.id}\n\n"
            text = title + render_transcript(context.list_exchanges(id), meeting.worker)
            path = context.transcript_path(meeting)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, text.encode(), mode=0o666)
            except OSError as error:
                _log.warning("%s: the transcript cannot be written: %s", id, error)
        render_notes(context.details(id), Summary(), context.redact)

    async def _on_run_stopped(self, id: str, run: str, ending: SegmentEnd) -> None:
        """Resume a run that stopped while a message arrived, unless a caller of `turn` does."""
        await asyncio.to_thread(self._write_transcript, id)
        is_followed = self._follower_counts[id] > 0
        if ending.pause == "message" and not is_followed and self._context.unanswered_messages(id) is not None:
            self.start_task(self._answer_in_background(id))

    async def _answer_in_background(self, id: str) -> None:
        context = self._context
        try:
            frame = context.hall_frame(context.get(id))
            last = context.last_message_number(id)
            async for _ in self.turn(id, last, last, frame, is_daemon=True):
                pass
        except GuildError as error:
            _log.warning("%s: the last message is not answered: %s", id, error)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def close(self) -> None:
        for timer in self._keep_alive_timers.values():
            timer.cancel()
        self._keep_alive_timers.clear()
        for task in self._tasks:
            task.cancel()


def remaining_limits(history: History, run: str, grant: Grant | None) -> dict[str, Any]:
    """Return the limits of the session that follows a run: its limits minus the usage of the run and its child runs."""
    last = history.journal(run)
    children = [history.journal(child.id) for child in history.descendants(run)]
    bounds, spent = current_bounds(last), Spent.in_journals([last, *children])
    limits: dict[str, Any] = {"max_turns": bounds.max_turns}
    dollars, tokens = None, None
    if grant is not None:
        grant.check_above_usage(last, children)
        dollars, tokens = grant.budget, grant.max_tokens
        limits["max_turns"] = grant.max_turns or bounds.max_turns
    for name in ("max_budget_usd", "budget"):
        if (maximum := getattr(bounds, name)) is not None:
            limits[name] = max(round((dollars or maximum) - spent.dollars, 9), _MIN_BUDGET_USD)
    if (maximum := tokens or bounds.max_tokens) is not None:
        limits["max_tokens"] = max(maximum - spent.tokens, 1)
    return limits


def _check_resumable(run: Run, *, renew: bool) -> None:
    """Raise Conflict if a new session must be started instead."""
    if renew:
        raise Conflict("requested by the user")
    code = run.error_code
    if run.status == "failed" and code in _NOT_RESUMABLE:
        is_too_long = code == ContextTooLong.code
        raise Conflict("the conversation is too long for the model" if is_too_long else "the runtime of the run failed")
    if run.status in ("completed", "cancelled"):
        raise Conflict(f"its run is {run.status}")


def _check_no_grant(grant: Grant | None, reason: str) -> None:
    """Raise Conflict if new limits are given to a meeting that cannot use them."""
    if grant is not None:
        raise Conflict(f"cannot raise limits: {reason}", hint="Omit the limits.")
