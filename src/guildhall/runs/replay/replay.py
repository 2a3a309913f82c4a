"""Replay: executes recorded runs offline on their recorded model responses, and finds the first difference.

Assembly, gate and runtime are the current code. Model responses and tool results come from the journal. The responses
can also be the model of another run. A replay of a run includes its child runs.

Invariant: no tool handler runs, no model is called and nothing is written.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.core.errors import (
    GuildError,
    ReplayDiffers,
    RuntimeCrashed,
    RuntimeMissing,
    RuntimeOutdated,
    RuntimeUnusable,
)
from guildhall.models.catalog import RecordingSource
from guildhall.runs.assembly.preflight import check_replayable
from guildhall.runs.execution import delegation
from guildhall.runs.execution.preparation import recorded_frame
from guildhall.runs.execution.program_access import ProgramAccess
from guildhall.runs.execution.repeated_calls import with_repeat_note, without_repeat_note
from guildhall.runs.execution.tokens import TokenRegistry, servers_of
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import entries, records
from guildhall.runs.record.messages import load_response, request_parts, requested_calls, tools_fingerprint
from guildhall.tools.gate import CLOSED, Approval, EffectChoice, Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.core.request_frame import Frame
    from guildhall.models.passthrough.relay import PassthroughRequest
    from guildhall.policy.rules import Verdict
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.runs import RuntimeOf
    from guildhall.runs.model import Run
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.runs.record.entries import Entry, Payload, ToolBegan
    from guildhall.runs.record.journal import Journal
    from guildhall.runs.record.queries import History
    from guildhall.runtimes.model import DoorAccess, Outcome, ProgramHooks, Runtime
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

    ChildResult = Callable[[str], tuple[str, ToolResult] | None]  # the child run of a call, and its recorded result

_SHOWN = {
    "system_prompt": "the system prompt",
    "first_message": "the first message",
    "attachments": "the attachments",
    "tools": "the tools of the model",
    "output_schema": "the output schema",
}
_DECLARED = {
    "model": "the worker's model",
    "model_settings": "the worker's model settings",
    "sandboxes": "the worker's sandboxes",
    "limits": "the worker's limits",
}
_CALLS = (entries.ModelAnswered, entries.ToolAsked, entries.ToolStarted, entries.ToolRefused, entries.Said)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first step that differs from the record."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """The result of a replay."""

    run: str  # the run with the difference, or the replayed run
    steps: int
    difference: Difference | None = None
    worker_gone: bool = False  # the recorded definition was used, because the worker file is missing

    @property
    def matches(self) -> bool:
        return self.difference is None


class RecordEnded(Exception):
    """The record ends here, so the rest of the replay cannot be compared."""


async def replay(
    journal: Journal,
    assembled: Assembled,
    runtime: Runtime,
    child_result: ChildResult,
    program_access: ProgramAccess,
    hooks: RunHooks | None = None,
) -> Difference | None:
    """Return the first difference between the record and a run today on the recorded responses, or None.

    Raise if the program of the runtime is missing or cannot be used. The runtime executes in this process, so that the
    calls of a response always have the same order.
    """
    record = _Record(journal)
    try:
        record.compare_assembly(assembled)
        outcome = await _ReplayDoors(record, assembled, child_result, program_access, hooks).execute(runtime)
        record.compare_end(outcome.output)
    except (RecordEnded, ReplayDiffers):
        pass
    except (RuntimeMissing, RuntimeOutdated, RuntimeUnusable):
        raise  # nothing was compared
    except GuildError as error:
        record.compare_failure(error)
    return record.first_difference()


class _Record:
    """The journal in a replay, with the calls that were repeated and the differences.

    The calls of a response are concurrent, and each may differ. The replay reports the first difference in the journal.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._replayed: set[str] = set()
        self._differences: list[Difference] = []

    @property
    def end(self) -> Entry[Payload]:
        """Return the last entry. An end has the status and output of the runtime, before hooks judged them."""
        last = self.journal.entries[-1]
        if not isinstance(last.data, entries.Ended) or last.data.unjudged is None:
            return last
        return replace(last, data=replace(last.data, **vars(last.data.unjudged)))

    def mark_replayed(self, key: str) -> None:
        self._replayed.add(key)

    def check_order(self, said: Entry[entries.Said]) -> None:
        """Raise if a model response or a user message before this message was not replayed."""
        for entry in self.journal.entries[: said.seq]:
            if isinstance(entry.data, entries.ModelAnswered | entries.Said) and entry.key not in self._replayed:
                raise self.add_difference(entry, f"recorded: {_describe(entry)}; now: waits for a later user message")

    def add_difference(self, entry: Entry[Payload], text: str) -> ReplayDiffers:
        """Add a difference, and return the error that ends the replay."""
        self._differences.append(Difference(step=entry.seq, text=text))
        return ReplayDiffers(text, where=f"step {entry.seq}")

    def end_or_difference(self, entry: Entry[Payload], now: str) -> Exception:
        """Return RecordEnded if the run stopped here, or a difference if it continued in another way."""
        end = self.end.data
        completed = isinstance(end, entries.Ended) and end.status == "completed"
        if completed or any(answer.key not in self._replayed for answer in self.journal.all(entries.ModelAnswered)):
            return self.add_difference(entry, f"recorded: the run continued; now: {now}, which is not in the journal")
        return RecordEnded()

    def compare(self, entry: Entry[Payload], label: str, recorded: Any, now: Any) -> None:
        if recorded != now:
            raise self.add_difference(entry, describe_difference(label, recorded, now))

    def compare_assembly(self, assembled: Assembled) -> None:
        """Compare the input of the model and the declarations of the worker file. Rules are compared at each call."""
        first, recorded, now = self.journal.entries[0], self.journal.assembly, assembled.as_shown()
        for name, label in _SHOWN.items():
            self.compare(first, label, getattr(recorded, name) or None, now[name] or None)
        before = recorded.worker["definition"]
        after = assembled.worker.definition.model_dump(mode="json")
        policy = {"attachment_policy": "the worker's attachment policy"} if assembled.attachments else {}
        for name, label in {**_DECLARED, **policy}.items():
            self.compare(first, label, before.get(name), after.get(name))

    def compare_end(self, output: Any) -> None:
        end = self.end.data
        if not isinstance(end, entries.Ended):
            return
        if end.status != "completed":
            if end.error is not None and end.error["code"] == RuntimeCrashed.code:
                return  # the crash is not repeated
            raise self.add_difference(self.end, f"recorded: the run {end.status}; now: the run completes")
        self.compare(self.end, "the output", end.output, output)

    def compare_failure(self, error: GuildError) -> None:
        end = self.end.data
        if not isinstance(end, entries.Ended) or end.error is None or end.error["code"] != error.code:
            self.add_difference(self.end, f"now: the run fails: {error}")

    def first_difference(self) -> Difference | None:
        """Return the first difference. A recorded call that was not repeated is one too."""
        for entry in self.journal.entries:
            if isinstance(entry.data, _CALLS) and entry.key not in self._replayed:
                self.add_difference(entry, f"recorded: {_describe(entry)}; now: the run does not reach this step")
                break
        return min(self._differences, key=lambda difference: difference.step, default=None)


class _ReplayDoors:
    """Model door and tool door that answer from the journal."""

    is_open = True

    def __init__(
        self,
        record: _Record,
        assembled: Assembled,
        child_result: ChildResult,
        program_access: ProgramAccess,
        hooks: RunHooks | None,
    ) -> None:
        self._record = record
        self._hooks = hooks
        self._child_result = child_result
        self._program_access = program_access
        self._failure: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        ledger = _ReplayLedger(record)
        tools, rules, mode = assembled.tools, assembled.rules, assembled.mode
        self._gate = Gate(tools, rules, mode, ledger, self._recorded_result, block_reason=ledger.block_reason)

    async def execute(self, runtime: Runtime) -> Outcome:
        """Return the outcome. Errors raised by calls over HTTP are raised here."""
        task = asyncio.ensure_future(runtime.execute(self._program_access.assignment, self))
        try:
            await asyncio.wait({task, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            return self._failure.result() if self._failure.done() else task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def register(self, hooks: ProgramHooks) -> DoorAccess:
        return self._program_access.register(self, hooks)

    def is_other_call(self, call: ToolCall) -> bool:
        return False  # a difference is reported for the call itself

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Return True if the journal has a further request with this key. Otherwise a change is a difference."""
        first, _, number = key.partition(".")
        asked = self._record.journal.last(key, entries.ModelAsked)
        further = self._record.journal.of(f"{first}.{int(number or 1) + 1}")
        return bool(further) and asked is not None and asked.data.message != request_parts(messages[-1])

    def expect_calls(self, count: int) -> None:
        return None  # nothing waits for the user in a replay

    def upstream(self, api: str) -> None:
        return None

    def fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def call_model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        passthrough: PassthroughRequest | None = None,
    ) -> ModelResponse:
        record = self._record
        record.mark_replayed(key)
        asked = record.journal.last(key, entries.ModelAsked)
        answer = record.journal.last(key, entries.ModelAnswered)
        if asked is None:
            if self._hooks is not None and self._hooks.final_tools & record.journal.successful_tools():
                raise RecordEnded  # the run completed here, without another model call
            raise record.end_or_difference(record.end, "another model call")
        if self._hooks is not None:
            parameters = self._hooks.hide_deferred_tools(parameters, record.journal.successful_tools(before=asked.seq))
        record.compare(asked, "the message to the model", asked.data.message, request_parts(messages[-1]))
        if asked.data.tools != tools_fingerprint(parameters):
            raise record.add_difference(asked, "the tools of the model differ")
        if asked.data.answers != record.journal.responses_fingerprint(before=asked.seq):
            raise record.add_difference(asked, "an earlier model response differs from the response in this request")
        if answer is None:
            raise record.end_or_difference(asked, "a model response")
        try:
            return load_response(answer.data.response)
        except ValueError:
            raise record.add_difference(answer, "the recorded model response is not valid") from None

    async def call_tool(self, call: ToolCall) -> ToolResult:
        self._record.mark_replayed(call.key)
        return await self._gate.call(call)

    async def next_message(self, key: str) -> str:
        """Return the recorded user message."""
        record = self._record
        said = record.journal.last(key, entries.Said)
        if said is None:
            raise record.end_or_difference(record.end, "waits for a user message")
        record.check_order(said)
        record.mark_replayed(key)
        return said.data.words

    async def _recorded_result(self, tool: Tool, call: ToolCall) -> ToolResult:
        end = self._record.journal.last(call.key, entries.ToolEnded)
        if end is None:
            raise self._record.end_or_difference(self._record.journal.of(call.key)[0], f"waits for {call.tool}")
        try:
            result = ToolResult.from_dict(end.data.result)
        except (ValueError, KeyError, TypeError):
            raise self._record.add_difference(end, f"the recorded result of {call.tool} is not valid") from None
        if (child := self._child_result(call.key)) is not None:
            run_id, own = child
            recorded = without_repeat_note(end.data)
            self._record.compare(end, f"the result of {call.tool} (recorded by {run_id})", recorded.text, own.text)
        return result


class _ReplayLedger:
    """The ledger of the gate in a replay, which compares each call with the journal."""

    def __init__(self, record: _Record) -> None:
        self._record = record

    def find_result(self, call: ToolCall) -> ToolResult | None:
        return None

    def is_interrupted(self, call: ToolCall) -> bool:
        return False

    def answer_calls(self, call: ToolCall) -> list[ToolCall]:
        return requested_calls(self._record.journal, call)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def block_reason(self, call: ToolCall) -> str | None:
        """Return the recorded reason if other code than the rules refused the call. Such code does not run here."""
        refused = self._record.journal.last(call.key, entries.ToolRefused)
        return refused.data.reason if refused is not None and refused.data.rule == CLOSED else None

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        began = self._began(call)
        asked = self._record.journal.last(call.key, entries.ToolAsked)
        if asked is None and not (isinstance(began.data, entries.ToolStarted) and began.data.decision == "ask"):
            raise self._record.add_difference(
                began, f"{call.tool} {_decision(began)}; now it needs approval: {verdict.reason}"
            )
        if isinstance(began.data, entries.ToolAsked):
            raise self._record.end_or_difference(began, f"{call.tool} waits for approval")
        if not isinstance(began.data, entries.ToolRefused):
            return "approved", None
        answer = self._record.journal.last(call.key, entries.Answered)
        return ("timed_out", None) if answer is None else ("denied", answer.data.note)

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        raise AssertionError

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
        began = self._began(call)
        if not isinstance(began.data, entries.ToolRefused):
            raise self._record.add_difference(
                began, f"{call.tool} {_decision(began)}; now it is refused: {verdict.reason}"
            )
        result = with_repeat_note(result, began.data.repeats)
        self._record.compare(began, f"the refusal of {call.tool}", began.data.result, result.as_dict())
        return result

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        began = self._began(call)
        if isinstance(began.data, entries.ToolRefused):
            raise self._record.add_difference(began, f"{call.tool} {_decision(began)}; now it is allowed")
        needed_approval = isinstance(began.data, entries.ToolAsked) or began.data.rule is not None
        if needed_approval and verdict.rule is None:
            raise self._record.add_difference(began, f"{call.tool} needed approval; now it needs none")
        if verdict.rule is not None and not needed_approval:
            raise self._record.add_difference(began, f"{call.tool} needed no approval; now it does: {verdict.reason}")

    async def record_end(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return result  # nothing to compare, because it is the recorded result

    def _began(self, call: ToolCall) -> Entry[ToolBegan]:
        """Return the start or refusal of a call, or its approval request if the run stopped there."""
        journal = self._record.journal
        began: Entry[ToolBegan] | None = journal.last(call.key, entries.ToolStarted, entries.ToolRefused)
        began = began or journal.last(call.key, entries.ToolAsked)
        if began is None:
            answer = journal.last(call.key.partition("/")[0], entries.ModelAnswered)
            raise self._record.end_or_difference(answer or self._record.end, f"{call.tool} is called")
        recorded = {"tool": began.data.tool, "arguments": began.data.arguments}
        self._record.compare(began, "the call", recorded, {"tool": call.tool, "arguments": call.arguments})
        return began


def _describe(entry: Entry[Payload]) -> str:
    match entry.data:
        case entries.Said():
            return "a user message"
        case entries.ToolStarted(tool=tool) | entries.ToolRefused(tool=tool) | entries.ToolAsked(tool=tool):
            return f"a call of {tool}"
        case _:
            return "a model response"


def _decision(began: Entry[ToolBegan]) -> str:
    if isinstance(began.data, entries.ToolRefused):
        return f"was refused ({began.data.reason})"
    return "waited for approval" if isinstance(began.data, entries.ToolAsked) else "was allowed"


def describe_difference(label: str, recorded: Any, now: Any) -> str:
    """Return a label and the different lines, marked `-` (recorded) or `+` (now)."""
    before, after = _lines(recorded), _lines(now)
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    return "\n".join([f"{label} changed", *changed[:40]])


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    return text.replace("\\n", "\n").splitlines()


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """The recorded runs of a hall."""

    store: Store
    history: History
    assembler: Assembler
    find_replay_hooks: Callable[[Run], RunHooks | None]
    runtime_of: RuntimeOf
    tokens: TokenRegistry

    def source(self, run_id: str) -> RecordingSource:
        """Return a model that repeats the responses of a recorded run and its child runs."""
        tree = self.history.tree(run_id)
        responses = {
            (run.worker, run.ordinal): [
                load_response(entry.data.response) for entry in self.history.journal(run.id).all(entries.ModelAnswered)
            ]
            for run in tree
        }
        return RecordingSource(run_id, responses)

    async def replay(self, run_id: str, frame: Frame) -> ReplayResult:
        """Replay a run and its child runs up to the first difference."""
        steps, worker_gone = 0, False
        for run in self.history.tree(run_id):
            result = await self.replay_one(run, frame)
            steps += result.steps
            worker_gone |= result.worker_gone
            if not result.matches:
                return replace(result, steps=steps, worker_gone=worker_gone)
        return ReplayResult(run=run_id, steps=steps, worker_gone=worker_gone)

    async def replay_one(
        self,
        run: Run,
        frame: Frame,
        *,
        worker: Worker | None = None,
        hooks: RunHooks | None = None,
        runtime: Runtime | None = None,
    ) -> ReplayResult:
        """Replay one run without its child runs. Worker, hooks and runtime are looked up if not given."""
        journal = self.history.journal(run.id)
        frame = recorded_frame(run.frame, frame)
        hooks = hooks or self.find_replay_hooks(run)
        assembled, worker_gone = await self.assembler.assemble_replay(
            run.request, journal.assembly, frame, run_id=run.id, worker=worker, hooks=hooks
        )
        call = run.purpose_as(CallPurpose)
        if runtime is None:
            check_replayable(assembled.worker, run.id)
            own = assembled.worker.definition.runtime
            runtime = delegation.SingleCallRuntime(call.arguments()) if call else self.runtime_of(own, frame)
        servers = servers_of(assembled, hooks)
        program_access = ProgramAccess(run=run.id, tokens=self.tokens, servers=servers, assignment=assembled.assignment)
        difference = await replay(
            journal, assembled, runtime, partial(self._child_result, run.id), program_access, hooks
        )
        return ReplayResult(run=run.id, steps=len(journal.entries), difference=difference, worker_gone=worker_gone)

    def _child_result(self, caller: str, call: str) -> tuple[str, ToolResult] | None:
        """Return the child run of a call and its recorded result, or None if it has not ended."""
        child = self.store.read(lambda connection: records.find_call_run(connection, caller, call))
        end = self.history.entries(child.id)[-1].data if child else None
        if child is None or not isinstance(end, entries.Ended):
            return None
        ended = replace(child, status=end.status, reason=end.reason, error=end.error, output=end.output)
        return None if delegation.is_at_parent_limit(ended) else (child.id, delegation.call_result(ended))
