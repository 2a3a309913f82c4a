"""Replay: executes recorded runs offline on their recorded answers, and finds the first difference.

Assembly, the judgement of the gate and the runtime are the current code. Model answers and tool results come from the
journal, and can also be supplied to other runs. A replay of a run includes its called runs.

Invariant: no tool handler runs, no model is called and nothing is written.
"""

from __future__ import annotations

import asyncio
import difflib
import json
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
from guildhall.runs.execution.access import ProgramAccess
from guildhall.runs.execution.prepare import recorded_frame
from guildhall.runs.execution.tokens import TokenRegistry, servers_of
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import records
from guildhall.runs.record.entries import (
    Answered,
    Ended,
    Entry,
    ModelAnswered,
    ModelAsked,
    Payload,
    Said,
    ToolAsked,
    ToolBegan,
    ToolEnded,
    ToolRefused,
    ToolStarted,
)
from guildhall.runs.record.messages import load_response, request_parts, tools_fingerprint
from guildhall.tools.gate import CLOSED, Approval, Doubt, Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.core.frame import Frame
    from guildhall.models.passthrough.request import Through
    from guildhall.policy.rules import Verdict
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.runs import RuntimeOf
    from guildhall.runs.hooks import RunHooks
    from guildhall.runs.model import Run
    from guildhall.runs.record.history import History
    from guildhall.runs.record.journal import Journal
    from guildhall.runtimes.model import Entry as Entrance
    from guildhall.runtimes.model import Outcome, ProgramHooks, Runtime
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

    Gave = Callable[[str], tuple[str, ToolResult] | None]  # of a call the run that it made, and what that one gave

_SHOWN = {
    "system_prompt": "the system prompt",
    "first_message": "the first message",
    "attachments": "what is attached",
    "tools": "the tools that the model is shown",
    "output_schema": "the output schema",
}
_SAID = {"model": "the worker's model", "sandboxes": "the worker's sandboxes", "limits": "the worker's limits"}
_CALLS = (ModelAnswered, ToolAsked, ToolStarted, ToolRefused, Said)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first thing that is not as it was."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What a replay found: how many steps it took, and the first difference, if any."""

    run: str  # the run of the tree in which the difference is, else the one that was asked for
    steps: int
    difference: Difference | None = None
    worker_gone: bool = False  # a recorded definition was used, because there is none today

    @property
    def matches(self) -> bool:
        return self.difference is None


class Over(Exception):
    """The record has nothing more to compare with."""


async def replay(
    journal: Journal, assembled: Assembled, runtime: Runtime, gave: Gave, program_access: ProgramAccess
) -> Difference | None:
    """Return the first difference between the record and a run today on the recorded answers, or None.

    Raise if the program of the runtime is missing or cannot be used. The runtime executes in this process, so that the
    order of the calls of one answer is always the same.
    """
    record = _Record(journal)
    try:
        record.compare_assembly(assembled)
        outcome = await _ReplayDoors(record, assembled, gave, program_access).played(runtime)
        record.compare_end(outcome.output)
    except (Over, ReplayDiffers):
        pass
    except (RuntimeMissing, RuntimeOutdated, RuntimeUnusable):
        raise  # nothing was played, so nothing can be said of it
    except GuildError as error:
        record.compare_failure(error)
    return record.first_difference()


class _Record:
    """The journal in a replay: the calls that were made again, and the differences.

    Calls of one answer are concurrent, and each may differ. The first of them in the record is the one to report.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._met: set[str] = set()
        self._found: list[Difference] = []

    @property
    def end(self) -> Entry[Payload]:
        """The last entry; the end as the runtime brought it about, before anybody else had a word in it."""
        last = self.journal.entries[-1]
        if not isinstance(last.data, Ended) or last.data.unjudged is None:
            return last
        return replace(last, data=replace(last.data, **vars(last.data.unjudged)))

    def meet(self, key: str) -> None:
        self._met.add(key)

    def before(self, said: Entry[Said]) -> None:
        """All that was answered and said before these words has come before them now too."""
        spoken = (entry for entry in self.journal.entries if isinstance(entry.data, ModelAnswered | Said))
        earlier = (entry for entry in spoken if entry.seq < said.seq)
        if missing := next((entry for entry in earlier if entry.key not in self._met), None):
            text = f"here is {_what(missing)}; now what was said later is waited for instead"
            raise self.differs(missing, text)

    def differs(self, entry: Entry[Payload], text: str) -> ReplayDiffers:
        self._found.append(Difference(step=entry.seq, text=text))
        return ReplayDiffers(text, where=f"step {entry.seq}")

    def over(self, entry: Entry[Payload], what: str) -> Exception:
        """Nothing more is on record: of a run that stopped here that is as it should be, of one that went on not."""
        end = self.end.data
        completed = isinstance(end, Ended) and end.status == "completed"
        if completed or any(answer.key not in self._met for answer in self.journal.all(ModelAnswered)):
            return self.differs(entry, f"the run went on from here; now {what}, of which nothing is on record")
        return Over()

    def compare(self, entry: Entry[Payload], label: str, recorded: Any, now: Any) -> None:
        if recorded != now:
            raise self.differs(entry, describe_difference(label, recorded, now))

    def compare_assembly(self, assembled: Assembled) -> None:
        """Compare what the model is shown and what the worker file declares. Rules are compared at each call."""
        first = self.journal.entries[0]
        then_shown = self.journal.assembly
        now = assembled.as_shown()
        for name, label in _SHOWN.items():
            self.compare(first, label, getattr(then_shown, name) or None, now[name] or None)
        then = then_shown.worker["definition"]
        today = assembled.worker.definition.model_dump(mode="json")
        said = {**_SAID, "attachment_policy": "the worker's attachment policy"} if assembled.attachments else _SAID
        for name, label in said.items():
            self.compare(first, label, then.get(name), today.get(name))

    def compare_end(self, output: Any) -> None:
        end = self.end.data
        if not isinstance(end, Ended):
            return
        if end.status != "completed":
            if end.error is not None and end.error["code"] == RuntimeCrashed.code:
                return  # it came as far as its process lived
            raise self.differs(self.end, f"the run was {end.status}; now it is completed")
        self.compare(self.end, "the output", end.output, output)

    def compare_failure(self, error: GuildError) -> None:
        end = self.end.data
        if not isinstance(end, Ended) or end.error is None or end.error["code"] != error.code:
            self.differs(self.end, f"now the run fails: {error}")

    def first_difference(self) -> Difference | None:
        """The first thing that was not as it was, a call on record that is not made any more included."""
        for entry in self.journal.entries:
            if isinstance(entry.data, _CALLS) and entry.key not in self._met:
                text = f"here is {_what(entry)}; now the run does not come to it"
                self._found.append(Difference(step=entry.seq, text=text))
                break
        return min(self._found, key=lambda difference: difference.step, default=None)


class _ReplayDoors:
    """Both doors, answered by the journal."""

    is_open = True

    def __init__(self, record: _Record, assembled: Assembled, gave: Gave, program_access: ProgramAccess) -> None:
        self._record = record
        self._gave = gave
        self._program_access = program_access
        self._broken: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        ledger = _ReplayLedger(record)
        self._gate = Gate(
            assembled.tools, assembled.rules, assembled.mode, ledger, self._recorded, closed=ledger.closed
        )

    async def played(self, runtime: Runtime) -> Outcome:
        """What comes of it; what went wrong at a door that was come to from outside is raised too."""
        playing = asyncio.ensure_future(runtime.execute(self._program_access.assignment, self))
        try:
            await asyncio.wait({playing, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            return self._broken.result() if self._broken.done() else playing.result()
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    def register(self, hooks: ProgramHooks) -> Entrance:
        return self._program_access.register(self, hooks)

    def is_other_call(self, call: ToolCall) -> bool:
        return False  # what is not as it was is told of the call itself

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Only where a further question is on record at the same place; else it is a difference."""
        first, _, number = key.partition(".")
        asked = self._record.journal.last(key, ModelAsked)
        further = self._record.journal.of(f"{first}.{int(number or 1) + 1}")
        return bool(further) and asked is not None and asked.data.message != request_parts(messages[-1])

    def expect_calls(self, count: int) -> None:
        return None  # nothing waits for a person here

    def upstream(self, api: str) -> None:
        return None

    def fail(self, error: Exception) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    async def model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        through: Through | None = None,
    ) -> ModelResponse:
        record = self._record
        record.meet(key)
        asked = record.journal.last(key, ModelAsked)
        answer = record.journal.last(key, ModelAnswered)
        if asked is None:
            raise record.over(record.end, "the model is asked once more")
        record.compare(asked, "what the model is asked", asked.data.message, request_parts(messages[-1]))
        if asked.data.tools != tools_fingerprint(parameters):
            raise record.differs(asked, "the tools that the model is shown are not the same")
        if asked.data.answers != record.journal.answers(before=asked.seq):
            raise record.differs(asked, "an answer on record above is not the one that the model was reminded of here")
        if answer is None:
            raise record.over(asked, "an answer is waited for")
        try:
            return load_response(answer.data.response)
        except ValueError:
            raise record.differs(answer, "the answer on record cannot be read") from None

    async def tool(self, call: ToolCall) -> ToolResult:
        self._record.meet(call.key)
        return await self._gate.call(call)

    async def said(self, key: str) -> str:
        """What the person said then, after the same answers."""
        record = self._record
        said = record.journal.last(key, Said)
        if said is None:
            raise record.over(record.end, "what the person says next is waited for")
        record.before(said)
        record.meet(key)
        return said.data.words

    async def _recorded(self, tool: Tool, call: ToolCall) -> ToolResult:
        """Takes the place of execution: what came of the call then."""
        end = self._record.journal.last(call.key, ToolEnded)
        if end is None:
            raise self._record.over(self._record.journal.of(call.key)[0], f"the result of {call.tool} is waited for")
        try:
            result = ToolResult.from_dict(end.data.result)
        except (ValueError, KeyError, TypeError):
            raise self._record.differs(end, f"the result of {call.tool} on record cannot be read") from None
        if (given := self._gave(call.key)) is not None:
            run, its_own = given
            self._record.compare(end, f"the result, and what is on record of {run},", result.text, its_own.text)
        return result


class _ReplayLedger:
    """What the gate is told in a replay: nothing is finished, everything is compared."""

    def __init__(self, record: _Record) -> None:
        self._record = record

    def finished(self, call: ToolCall) -> ToolResult | None:
        return None

    def interrupted(self, call: ToolCall) -> bool:
        return False

    def closed(self, call: ToolCall) -> str | None:
        """Why others kept the call from being made: what they did is not played again here."""
        refused = self._record.journal.last(call.key, ToolRefused)
        return refused.data.reason if refused is not None and refused.data.rule == CLOSED else None

    async def approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        began = self._began(call)
        asked = self._record.journal.last(call.key, ToolAsked)
        if asked is None and not (isinstance(began.data, ToolStarted) and began.data.decision == "ask"):
            raise self._record.differs(began, f"{call.tool} {_said(began)}; now it needs approval: {verdict.reason}")
        if isinstance(began.data, ToolAsked):
            raise self._record.over(began, f"{call.tool} waits for approval")
        if not isinstance(began.data, ToolRefused):
            return "approved", None
        answer = self._record.journal.last(call.key, Answered)
        return ("timed_out", None) if answer is None else ("denied", answer.data.note)

    async def doubt(self, call: ToolCall, tool: Tool) -> tuple[Doubt, str | None]:
        raise AssertionError

    async def refused(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None:
        began = self._began(call)
        if not isinstance(began.data, ToolRefused):
            raise self._record.differs(began, f"{call.tool} {_said(began)}; now it is refused: {verdict.reason}")
        self._record.compare(began, f"the refusal of {call.tool}", began.data.result, result.as_dict())

    async def started(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        began = self._began(call)
        if isinstance(began.data, ToolRefused):
            raise self._record.differs(began, f"{call.tool} {_said(began)}; now it is made")
        demanded = isinstance(began.data, ToolAsked) or began.data.rule is not None
        if demanded and verdict.rule is None:
            raise self._record.differs(began, f"{call.tool} needed approval; now it needs none")
        if verdict.rule is not None and not demanded:
            raise self._record.differs(began, f"{call.tool} needed no approval; now it does: {verdict.reason}")

    async def ended(self, call: ToolCall, result: ToolResult) -> None:
        """Nothing to compare: the result is the recorded one."""

    def _began(self, call: ToolCall) -> Entry[ToolBegan]:
        """How far the call came; where it was only asked about, that."""
        journal = self._record.journal
        began: Entry[ToolBegan] | None = journal.last(call.key, ToolStarted, ToolRefused)
        began = began or journal.last(call.key, ToolAsked)
        if began is None:
            answer = journal.last(call.key.partition("/")[0], ModelAnswered)
            raise self._record.over(answer or self._record.end, f"{call.tool} is called")
        recorded = {"tool": began.data.tool, "arguments": began.data.arguments}
        self._record.compare(began, "the call", recorded, {"tool": call.tool, "arguments": call.arguments})
        return began


def _what(entry: Entry[Payload]) -> str:
    match entry.data:
        case Said():
            return "something that the person said"
        case ToolStarted(tool=tool) | ToolRefused(tool=tool) | ToolAsked(tool=tool):
            return f"a call of {tool}"
        case _:
            return "an answer of the model"


def _said(began: Entry[ToolBegan]) -> str:
    if isinstance(began.data, ToolRefused):
        return f"was refused ({began.data.reason})"
    return "waited for approval" if isinstance(began.data, ToolAsked) else "was allowed"


def describe_difference(label: str, recorded: Any, now: Any) -> str:
    """What differs, and the lines: `-` on record, `+` now."""
    before, after = _lines(recorded), _lines(now)
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    return "\n".join([f"{label} is not the same", *changed[:40]])


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    return text.replace("\\n", "\n").splitlines()


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """The recorded runs of a hall."""

    store: Store
    history: History
    assembler: Assembler
    recorded_hooks: Callable[[Run], RunHooks | None]  # the hooks for a replay of a run at the top of its tree
    runtime_of: RuntimeOf
    tokens: TokenRegistry

    def source(self, run: str) -> RecordingSource:
        """The model answers of a recorded run, and of those that it has called, in order."""
        tree = self.history.tree(run)
        answers = {(one.worker, one.ordinal): self.history.journal(one.id).all(ModelAnswered) for one in tree}
        loaded = {whose: [load_response(one.data.response) for one in of_run] for whose, of_run in answers.items()}
        return RecordingSource(run, loaded)

    async def replay(self, run: str, frame: Frame) -> ReplayResult:
        """Plays a run and all that it has called again on their records, up to the first difference."""
        steps, gone = 0, False
        for one in self.history.tree(run):
            played = await self.replay_one(one, frame)
            steps += played.steps
            gone = gone or played.worker_gone
            if not played.matches:
                return replace(played, steps=steps, worker_gone=gone)
        return ReplayResult(run=run, steps=steps, worker_gone=gone)

    async def replay_one(
        self,
        run: Run,
        frame: Frame,
        *,
        worker: Worker | None = None,
        hooks: RunHooks | None = None,
        runtime: Runtime | None = None,
    ) -> ReplayResult:
        """Replay one run without the runs that it called. Worker, hooks and runtime are looked up if not given."""
        journal = self.history.journal(run.id)
        then = recorded_frame(run.frame, frame)
        hooks = hooks or self.recorded_hooks(run)
        assembled, gone = await self.assembler.assemble_replay(
            run.request, journal.assembly, then, run=run.id, worker=worker, hooks=hooks
        )
        call = run.purpose_as(CallPurpose)
        if runtime is None:
            check_replayable(assembled.worker, run.id)
            own = assembled.worker.definition.runtime
            runtime = delegation.SingleCallRuntime(call.arguments()) if call else self.runtime_of(own, then)
        servers = servers_of(assembled, hooks)
        program_access = ProgramAccess(run=run.id, tokens=self.tokens, servers=servers, assignment=assembled.assignment)
        difference = await replay(journal, assembled, runtime, partial(self._gave, run.id), program_access)
        return ReplayResult(run=run.id, steps=len(journal.entries), difference=difference, worker_gone=gone)

    def _gave(self, caller: str, call: str) -> tuple[str, ToolResult] | None:
        """The run that a call has made, and what it gave by its own record, if it came to that."""
        made = self.store.read(lambda connection: records.find_call_run(connection, caller, call))
        end = self.history.entries(made.id)[-1].data if made else None
        if made is None or not isinstance(end, Ended):
            return None
        ended = replace(made, status=end.status, reason=end.reason, error=end.error, output=end.output)
        return None if delegation.is_at_parent_limit(ended) else (made.id, delegation.call_result(ended))
