"""Replay: the run again, offline, on its recorded answers, until something is not as it was.

Assembly, the gate's judgement and the runtime are executed as they are today. Model answers and tool results come from
the journal: no handler runs, no socket opens, nothing is written.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ReplayDiffers
from guildhall.runs import shown
from guildhall.tools.gate import Gate
from guildhall.tools.model import ToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from guildhall.policy.model import Verdict
    from guildhall.runs.assemble import Assembled
    from guildhall.runs.journal import Journal
    from guildhall.runs.model import Entry
    from guildhall.runtimes.model import Assignment, Runtime
    from guildhall.tools.gate import Approval, Doubt
    from guildhall.tools.model import Tool, ToolCall


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first thing that is not as it was."""

    step: int
    text: str


class _Over(Exception):
    """The record has nothing more to compare with."""


async def replay(journal: Journal, assembled: Assembled, assignment: Assignment, runtime: Runtime) -> Difference | None:
    """The first difference between the record and a run of today on the same answers; None when there is none."""
    frozen = journal.entries[0].data
    try:
        _compare_assembly(frozen, assembled.shown())
        doors = _ReplayDoors(journal, assembled)
        try:
            outcome = await runtime.execute(assignment, doors)
        except _Over:
            return None
        _compare_end(journal, "completed", outcome.output)
    except ReplayDiffers as difference:
        step = int((difference.where or "0").removeprefix("step "))
        return Difference(step=step, text=difference.message)
    except GuildError as error:
        return _compare_failure(journal, error)
    return None


class _ReplayDoors:
    """Both doors, answered by the journal."""

    def __init__(self, journal: Journal, assembled: Assembled) -> None:
        self._journal = journal
        self._gate = Gate(assembled.tools, assembled.rules, assembled.mode, _ReplayLedger(journal), self._recorded)

    async def model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        asked = self._journal.last(key, "model_asked")
        answer = self._journal.last(key, "model_answered")
        if asked is None or answer is None:
            if _ended_as(self._journal) == "completed":
                raise _differs(_last(self._journal), "the run ended here; now the model is asked once more")
            raise _Over
        _compare(asked, "what the model is asked", asked.data["message"], shown.request(messages[-1]))
        if asked.data["tools"] != shown.tools(parameters):
            raise _differs(asked, "the tools that the model is shown are not the same")
        return shown.load_response(answer.data["response"])

    async def tool(self, call: ToolCall) -> ToolResult:
        return await self._gate.call(call)

    async def _recorded(self, tool: Tool, call: ToolCall) -> ToolResult:
        """Takes the place of execution: what came of the call then."""
        end = self._journal.last(call.key, "tool_ended")
        if end is None:
            raise _Over
        return ToolResult.from_dict(end.data["result"])


class _ReplayLedger:
    """What the gate is told in a replay: nothing is finished, everything is compared."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def finished(self, call: ToolCall) -> ToolResult | None:
        return None

    def interrupted(self, call: ToolCall) -> bool:
        return False

    async def approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        began = self._began(call)
        asked = self._journal.last(call.key, "tool_asked")
        if asked is None and (began.kind == "tool_refused" or began.data["decision"] != "ask"):
            raise _differs(began, f"{call.tool} was {_said(began)}; now it needs approval: {verdict.reason}")
        if began.kind != "tool_refused":
            return "approved", None
        answer = self._journal.last(call.key, "answered")
        return ("timed_out", None) if answer is None else ("denied", answer.data["note"])

    async def doubt(self, call: ToolCall, tool: Tool) -> tuple[Doubt, str | None]:
        raise AssertionError

    async def refused(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None:
        began = self._began(call)
        if began.kind != "tool_refused":
            raise _differs(began, f"{call.tool} was {_said(began)}; now it is refused: {verdict.reason}")
        _compare(began, f"the refusal of {call.tool}", began.data["result"], result.as_dict())

    async def started(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        began = self._began(call)
        if began.kind == "tool_refused":
            raise _differs(began, f"{call.tool} was refused ({began.data['reason']}); now it is made")
        if began.data["decision"] == "ask" and verdict.decision == "allow" and verdict.rule is None:
            raise _differs(began, f"{call.tool} needed approval ({began.data['reason']}); now it needs none")

    async def ended(self, call: ToolCall, result: ToolResult) -> None:
        """Nothing to compare: the result is the recorded one."""

    def _began(self, call: ToolCall) -> Entry:
        began = self._journal.last(call.key, "tool_started", "tool_refused")
        if began is None:
            raise _Over
        recorded = {"tool": began.data["tool"], "arguments": began.data["arguments"]}
        _compare(began, "the call", recorded, {"tool": call.tool, "arguments": call.arguments})
        return began


def _compare_assembly(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    names = {
        "system_prompt": "the system prompt",
        "first_message": "the first message",
        "tools": "the tools that the model is shown",
        "output_schema": "the output schema",
    }
    for name, label in names.items():
        if frozen[name] != now[name]:
            raise ReplayDiffers(_difference(label, frozen[name], now[name]), where="step 0")


def _compare(entry: Entry, label: str, recorded: Any, now: Any) -> None:
    if recorded != now:
        raise _differs(entry, _difference(label, recorded, now))


def _compare_end(journal: Journal, status: str, output: Any) -> None:
    end = _last(journal)
    if end.kind == "ended" and end.data["status"] != status:
        raise _differs(end, f"the run was {end.data['status']}; now it is {status}")
    if end.kind == "ended":
        _compare(end, "the output", end.data["output"], output)


def _compare_failure(journal: Journal, error: GuildError) -> Difference | None:
    end = _last(journal)
    recorded: dict[str, Any] = end.data.get("error") or {}
    if end.kind == "ended" and recorded.get("code") == error.code:
        return None
    return Difference(step=end.seq, text=f"now the run fails: {error}")


def _ended_as(journal: Journal) -> str | None:
    end = _last(journal)
    return end.data["status"] if end.kind == "ended" else None


def _last(journal: Journal) -> Entry:
    return journal.entries[-1]


def _said(began: Entry) -> str:
    return "refused" if began.kind == "tool_refused" else "allowed"


def _differs(entry: Entry, text: str) -> ReplayDiffers:
    return ReplayDiffers(text, where=f"step {entry.seq}")


def _difference(label: str, recorded: Any, now: Any) -> str:
    """What differs, and the lines: `-` on record, `+` now."""
    before, after = _lines(recorded), _lines(now)
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    return "\n".join([f"{label} is not the same", *changed[:40]])


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    return text.replace("\\n", "\n").splitlines()
