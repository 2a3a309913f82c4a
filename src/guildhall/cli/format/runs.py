"""What is on record, in lines that people read: runs, asks, entries of a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.format.jobs import by_job, id_of
from guildhall.cli.screen import money, one_line
from guildhall.core.clock import moment
from guildhall.core.errors import ErrorInfo
from guildhall.runs.model import AMOUNT, DATE, WORDS
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record.entries import (
    Answered,
    Assembly,
    Crashed,
    Ended,
    LimitAsked,
    LoopAsked,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    Paused,
    QuestionAsked,
    Resumed,
    Said,
    ToolAsked,
    ToolDoubted,
    ToolEnded,
    ToolRefused,
    ToolStarted,
    WorkerCreated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from guildhall.cli.screen import Screen
    from guildhall.hall.client import HallClient, Shown
    from guildhall.runs.model import Ask, Run
    from guildhall.runs.record.entries import Entry, Payload

_LONG = 160
# Recorded answers stay what they are, and with them what went wrong: only a new run can end otherwise.
_IN_VAIN = ("runtime_failed", "not_fulfilled", "context_too_long")
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
    """How long ago, in the one unit that matters."""
    span = _span((now - moment(stamp)).total_seconds())
    return f"{span} ago" if span else "just now"


def ahead(stamp: str, now: datetime) -> str:
    """How long there is still time, in the one unit that matters."""
    return f"for {_span((moment(stamp) - now).total_seconds()) or 'a moment'}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return ""


def entry_line(entry: Entry[Payload]) -> str:
    """An entry of a journal in one line."""
    key = one_line(entry.key or "-", 20)
    told = one_line(_describe(entry.data), _LONG)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {told}".rstrip()


def _describe(data: Payload) -> str:
    """Return the main facts of an entry."""
    match data:
        case Assembly():
            from guildhall.runtimes.model import labelled

            return "; ".join([data.model, *map(labelled, data.attachments)])
        case ModelAsked():
            again = f"attempt {data.attempt + 1}: " if data.attempt else ""
            return again + "; ".join(_text(part.get("content")) for part in data.message)
        case ModelAnswered():
            return "; ".join(_spoken(data.response))
        case ModelCallFailed() | Crashed():
            return data.message
        case Said():
            return data.words
        case Answered():
            return " ".join(filter(None, (data.ask, data.choice, data.note))) + _more(data.bounds)
        case Resumed():
            return f"was {data.was}{_more(data.bounds)}"
        case Ended():
            return _stopped(data.status, data.error["message"] if data.error else data.reason)
        case Paused():
            return _stopped(data.status, data.reason)
        case WorkerCreated():
            return _json(data.to_record())
        case _:
            return _describe_call(data)


def _describe_call(data: Payload) -> str:
    match data:
        case ToolRefused():  # with what the model reads: who refused it, and why
            return f"{_call(data)}: {_content(data.result) or data.reason or ''}"
        case ToolAsked() | ToolStarted() | ToolDoubted():
            return _call(data)
        case ToolEnded():
            text = _content(data.result)
            return f"error: {text}" if data.result.get("is_error") else text
        case LoopAsked():
            return f"{data.title}, {data.ask} asks whether they may go on"
        case QuestionAsked():
            return f"{data.ask} asks: {data.question}"
        case LimitAsked():
            return f"{data.limit} {data.value} is used up, {data.ask} asks for more"
        case _:
            return ""


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _spoken(response: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the model says and calls in an answer."""
    for part in _parts(response.get("parts")):
        if part.get("part_kind") == "tool-call":
            yield f"calls {part.get('tool_name')}"
        elif part.get("content"):
            yield f"says {_text(part['content'])}"


def _call(data: ToolRefused | ToolAsked | ToolStarted | ToolDoubted) -> str:
    return f"{data.tool} {_json(data.arguments)}"


def _content(result: Mapping[str, Any]) -> str:
    return "; ".join(_text(block.get("text") or block) for block in _parts(result.get("content")))


def _more(bounds: Mapping[str, Any] | None) -> str:
    """The limits that were granted."""
    return "".join(f", {name} now {value}" for name, value in (bounds or {}).items())


def _stopped(status: str, reason: str | None) -> str:
    return f"{status}: {reason}" if reason else status


def _parts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


async def result_of(shown: Shown, client: HallClient) -> dict[str, Any]:
    """What `--output json` prints; of a workflow also what was said."""
    run = shown.run
    workflow = run.purpose_as(WorkflowPurpose)
    team: dict[str, Any] = {}
    if workflow:
        messages = [message.as_dict() for message in await client.channel(run.id)]
        team = {"workflow": run.worker, "tag": workflow.tag, "messages": messages}
    return {
        "run": run.id,
        "status": run.status,
        "output": run.output,
        "error": run.error,
        "usage": shown.usage.as_dict(),
        "cost_usd": shown.usage.cost_usd,
        "runs": [_called(one) for one in shown.below],
        "asks": [ask.as_dict() for ask in shown.asks if ask.status == "open"],
        **team,
    }


def _called(run: Run) -> dict[str, Any]:
    keys = ("run", "parent", "worker", "status", "output", "error", "cost_usd")
    told = run.as_dict()
    return {key: told[key] for key in keys}


def how_to_go_on(shown: Shown, screen: Screen) -> list[str]:
    """What the person can do about a run that has stopped for now."""
    run = shown.run
    waiting = [ask for ask in shown.asks if ask.status == "open"]
    lines = [f"{ask.id} waits for you: {screen.one_line(ask.question.title, 200)}" for ask in waiting]
    lines += [f"Answer with: {how_to_answer(ask)}" for ask in waiting]
    if run.status in ("parked", "lost") or (run.status == "waiting" and not waiting):
        verb = "meet" if run.kind == "meeting" else "resume"
        lines.append(f"Go on with: guild {verb} {id_of(run) if run.root == run.id else run.root}")
    elif _may_try_again(run):
        lines.append(f"Try again from there: guild resume {id_of(run)}")
    return lines


def how_to_answer(ask: Ask, *, here: bool = False) -> str:
    """The command that answers an ask, which is shown `here`, or else where it is shown.

    None is suggested for a call that was cut off: what happened only the person knows.
    """
    if WORDS in ask.question.choices:
        return f'guild answer {ask.id} "..."'
    examples = {AMOUNT: "2.50", DATE: "2027-01-31"}
    words = [examples.get(choice, choice) for choice in ask.question.choices]
    first, rest = ("ANSWER", words) if ask.kind == "unknown_effect" else (words[0], words[1:])
    more = "" if here else f"; all of it: guild show {ask.id}"
    either = "one of" if first == "ANSWER" else "or"
    return f"guild answer {ask.id} {first}    ({either}: {', '.join(rest)}{more})"


def _may_try_again(run: Run) -> bool:
    """Whether going on could end otherwise, and nothing has said so yet."""
    if run.status != "failed" or run.parent is not None or run.error_code in _IN_VAIN:
        return False
    if run.kind == "workflow" and run.error_code == "invalid_file":  # it keeps the text that it began with
        return False
    return run.error_code not in RESUME_HINTED


def used(shown: Shown) -> str:
    """What a run used, in one line."""
    usage = shown.usage
    turns = "1 turn" if usage.turns == 1 else f"{usage.turns} turns"
    turns = f"{len(shown.below) + 1} runs, {turns}" if shown.below else turns
    return f"{turns}, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {money(usage.cost_usd)}"


def text_of(output: Any) -> str:
    """An output as text: text as it is, anything else as JSON."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def print_ending(shown: Shown, screen: Screen) -> None:
    """The result; or else why there is none, what is asked, and how to go on."""
    run = shown.run
    if run.status == "completed":
        screen.result(text_of(run.output))
    if run.status == "cancelled":
        screen.note(f"guild: {id_of(run)} was cancelled: there is no result", "red")
    elif run.status == "failed" or run.error:
        error = run.error or ErrorInfo(code="error", message=run.reason or "no reason given")
        where, said = f"{place}: " if (place := error.get("where")) else "", error["message"]
        screen.note(f"guild: {id_of(run)} {run.status}: {where}{said}", "red")
        if hint := error.get("hint"):
            screen.note(by_job(hint, run))
    for ask in shown.asks:
        if ask.status == "open" and ask.question.body:
            screen.note(screen.barred(ask.question.body, wrapped=screen.err.isatty()))
    for line in how_to_go_on(shown, screen):
        screen.note(line)
