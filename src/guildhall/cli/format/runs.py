"""Run output: prints runs, asks, journal entries and results, with the commands that continue a stopped run.

Does not follow a live run (see `cli.follow`) or list runs (see `cli.commands.runs.ls`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.format.jobs import id_of, rename_run
from guildhall.cli.screen import Screen, money, one_line
from guildhall.core.clock import parse_stamp
from guildhall.core.errors import ErrorInfo
from guildhall.core.text import counted
from guildhall.runs.model import AMOUNT, DATE, FREE_TEXT, Ask, Run
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record import entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from guildhall.core.events import ErrorData
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import RunDetails

_MAX_SUMMARY_CHARS = 160
_CALLED_FIELDS = ("run", "parent", "worker", "status", "output", "error", "cost_usd")
# A resumed run replays its recorded answers, so these errors would occur again.
_FINAL_ERRORS = ("runtime_failed", "not_fulfilled", "context_too_long")
# The hints of these errors contain the command `guild resume`.
RESUME_HINTED = (
    "limit_reached",
    "rate_limited",
    "model_overloaded",
    "model_not_reachable",
    "runtime_crashed",
    "runtime_toolless",
)


def age(stamp: str, now: datetime) -> str:
    """Return how long ago a time was, in its largest unit."""
    span = _span((now - parse_stamp(stamp)).total_seconds())
    return f"{span} ago" if span else "just now"


def ahead(stamp: str, now: datetime) -> str:
    """Return how long it is until a time, in its largest unit."""
    return f"for {_span((parse_stamp(stamp) - now).total_seconds()) or 'a moment'}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return ""


def entry_line(entry: entries.Entry[entries.Payload]) -> str:
    """Return a journal entry as one line."""
    key = one_line(entry.key or "-", 20)
    told = one_line(_describe(entry.data), _MAX_SUMMARY_CHARS)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {told}".rstrip()


def _describe(data: entries.Payload) -> str:
    """Return the main facts of an entry."""
    match data:
        case entries.Assembly():
            from guildhall.runtimes.model import attachment_label

            return "; ".join([data.model, *map(attachment_label, data.attachments)])
        case entries.ModelAsked():
            again = f"attempt {data.attempt + 1}: " if data.attempt else ""
            return again + "; ".join(_text(part.get("content")) for part in data.message)
        case entries.ModelAnswered():
            return "; ".join(_describe_answer(data.response))
        case entries.ModelCallFailed() | entries.Crashed():
            return data.message
        case entries.Said():
            return data.words
        case entries.Answered():
            return " ".join(filter(None, (data.ask, data.choice, data.note))) + _raised_limits(data.bounds)
        case entries.Resumed():
            return f"was {data.was}{_raised_limits(data.bounds)}"
        case entries.Ended():
            return _describe_end(data.status, data.error["message"] if data.error else data.reason)
        case entries.Paused():
            return _describe_end(data.status, data.reason)
        case entries.WorkerCreated():
            return _json(data.to_record())
        case _:
            return _describe_call(data)


def _describe_call(data: entries.Payload) -> str:
    match data:
        case entries.ToolRefused():  # with what the model reads: who refused it, and why
            return f"{_call(data)}: {_content(data.result) or data.reason or ''}"
        case entries.ToolAsked() | entries.ToolStarted() | entries.ToolDoubted():
            return _call(data)
        case entries.ToolEnded():
            text = _content(data.result)
            return f"error: {text}" if data.result.get("is_error") else text
        case entries.LoopAsked():
            return f"{data.title}, {data.ask} asks whether they may continue"
        case entries.QuestionAsked():
            return f"{data.ask} asks: {data.question}"
        case entries.LimitAsked():
            return f"{data.limit} {data.value} reached, {data.ask} asks for more"
        case _:
            return ""


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _describe_answer(response: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts and the tool calls of an answer."""
    for part in _parts(response.get("parts")):
        if part.get("part_kind") == "tool-call":
            yield f"calls {part.get('tool_name')}"
        elif part.get("content"):
            yield f"says {_text(part['content'])}"


def _call(data: entries.ToolRefused | entries.ToolAsked | entries.ToolStarted | entries.ToolDoubted) -> str:
    return f"{data.tool} {_json(data.arguments)}"


def _content(result: Mapping[str, Any]) -> str:
    return "; ".join(_text(block.get("text") or block) for block in _parts(result.get("content")))


def _raised_limits(bounds: Mapping[str, Any] | None) -> str:
    """Return the limits that were raised."""
    return "".join(f", {name} now {value}" for name, value in (bounds or {}).items())


def _describe_end(status: str, reason: str | None) -> str:
    return f"{status}: {reason}" if reason else status


def _parts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


async def result_data(shown: RunDetails, client: HallClient) -> dict[str, Any]:
    """Return the object that `--output json` prints; for a workflow with its messages."""
    run = shown.run
    workflow = run.purpose_as(WorkflowPurpose)
    team: dict[str, Any] = {}
    if workflow:
        messages = [message.as_dict() for message in await client.rooms.messages(run.id)]
        team = {"workflow": run.worker, "tag": workflow.tag, "messages": messages}
    return {
        "run": run.id,
        "status": run.status,
        "output": run.output,
        "error": run.error,
        "usage": shown.usage.as_dict(),
        "cost_usd": shown.usage.cost_usd,
        "runs": [{key: value for key, value in one.as_dict().items() if key in _CALLED_FIELDS} for one in shown.below],
        "asks": [ask.as_dict() for ask in shown.asks if ask.status == "open"],
        **team,
    }


def print_next_steps(shown: RunDetails, screen: Screen) -> None:
    """Print the commands that continue a run that has stopped."""
    run = shown.run
    waiting = [ask for ask in shown.asks if ask.status == "open"]
    for ask in waiting:
        screen.note(f"Answer needed ({ask.id}): {screen.one_line(ask.question.title, 200)}")
    for ask in waiting:
        screen.note(f"Answer: {how_to_answer(ask)}")
    if run.status in ("paused", "interrupted") or (run.status == "waiting" and not waiting):
        verb = "meet" if run.kind == "meeting" else "resume"
        screen.note(f"Continue: guild {verb} {id_of(run) if run.root == run.id else run.root}")
    elif _can_retry(run):
        screen.note(f"Retry from the last step: guild resume {id_of(run)}")


def how_to_answer(ask: Ask, *, here: bool = False) -> str:
    """Return the command that answers an ask, with the command that shows it unless `here`.

    No answer is suggested for a call with an unknown effect: only the user knows what happened.
    """
    if FREE_TEXT in ask.question.choices:
        return f'guild answer {ask.id} "..."'
    examples = {AMOUNT: "2.50", DATE: "2027-01-31"}
    words = [examples.get(choice, choice) for choice in ask.question.choices]
    first, rest = ("ANSWER", words) if ask.kind == "interrupted_call" else (words[0], words[1:])
    more = "" if here else f". Details: guild show {ask.id}"
    either = "one of " if first == "ANSWER" else "or "
    return f"guild answer {ask.id} {first} ({either}{', '.join(rest)}){more}"


def _can_retry(run: Run) -> bool:
    """Return True if a failed run could succeed when it is resumed, and its hint does not say so already."""
    if run.status != "failed" or run.parent is not None or run.error_code in (*_FINAL_ERRORS, *RESUME_HINTED):
        return False
    return run.kind != "workflow" or run.error_code != "invalid_file"  # it keeps the text that it began with


def usage_line(shown: RunDetails) -> str:
    """Return turns, tokens and cost of a run as one line."""
    usage = shown.usage
    turns = counted(usage.turns, "turn")
    turns = f"{len(shown.below) + 1} runs, {turns}" if shown.below else turns
    return f"{turns}, {counted(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out, {money(usage.cost_usd)}"


def text_of(output: Any) -> str:
    """Return an output as text: a text unchanged, everything else as JSON."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def print_outcome(shown: RunDetails, screen: Screen) -> None:
    """Print the result of a run, or its error, its open asks and the next steps."""
    run = shown.run
    if run.status == "completed":
        screen.result(text_of(run.output))
    if run.status == "cancelled":
        screen.note(f"guild: {id_of(run)} was cancelled", "red")
    elif run.status == "failed" or run.error:
        print_error(run, run.error or ErrorInfo(code="error", message=run.reason or "no reason given"), screen)
    for ask in shown.asks:
        if ask.status == "open" and ask.question.body:
            screen.note(screen.quote_block(ask.question.body, wrapped=screen.err.isatty()))
    print_next_steps(shown, screen)


def print_error(run: Run, error: ErrorInfo | ErrorData, screen: Screen) -> None:
    """Print why a run failed, and the hint of the error."""
    where = f"{place}: " if (place := error.get("where")) else ""
    screen.note(f"guild: {id_of(run)} {run.status}: {where}{error['message']}", "red")
    if hint := error.get("hint"):
        screen.note(rename_run(hint, run))
