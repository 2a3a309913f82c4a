"""Printing runs, asks and journal entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.format.jobs import id_of, rename_run
from guildhall.cli.screen import money, one_line
from guildhall.core.clock import moment
from guildhall.runs.model import AMOUNT, DATE, WORDS
from guildhall.runs.purpose import WorkflowPurpose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from guildhall.cli.screen import Screen
    from guildhall.hall.client import HallClient, Shown
    from guildhall.runs.model import Ask, Entry, Run

_MAX_SUMMARY_CHARS = 160
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
    span = _span((now - moment(stamp)).total_seconds())
    return f"{span} ago" if span else "just now"


def ahead(stamp: str, now: datetime) -> str:
    """Return how long it is until a time, in its largest unit."""
    return f"for {_span((moment(stamp) - now).total_seconds()) or 'a moment'}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return ""


def entry_line(entry: Entry) -> str:
    """Return a journal entry as one line."""
    key = one_line(entry.key or "-", 20)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {_summary(entry)}".rstrip()


def _summary(entry: Entry) -> str:
    """Return what matters most in an entry; for an unknown kind, all its data."""
    return one_line(_FORMATS.get(entry.kind, _json)(entry.data), _MAX_SUMMARY_CHARS)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _assembled(data: Mapping[str, Any]) -> str:
    from guildhall.runtimes.model import labelled

    return "; ".join([str(data.get("model") or ""), *map(labelled, _parts(data.get("attachments")))])


def _asked(data: Mapping[str, Any]) -> str:
    again = f"attempt {data['attempt'] + 1}: " if data.get("attempt") else ""
    return again + "; ".join(_text(part.get("content")) for part in _parts(data.get("message")))


def _answered(data: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for part in _parts(_inside(data, "response").get("parts")):
        if part.get("part_kind") == "tool-call":
            parts.append(f"calls {part.get('tool_name')}")
        elif part.get("content"):
            parts.append(f"says {_text(part['content'])}")
    return "; ".join(parts)


def _call(data: Mapping[str, Any]) -> str:
    return f"{data.get('tool')} {_json(data.get('arguments'))}"


def _refused(data: Mapping[str, Any]) -> str:
    """Return the call with the text that the model gets."""
    return f"{_call(data)}: {_content(data) or data.get('reason') or ''}"


def _result(data: Mapping[str, Any]) -> str:
    text = _content(data)
    return f"error: {text}" if _inside(data, "result").get("is_error") else text


def _content(data: Mapping[str, Any]) -> str:
    blocks = _parts(_inside(data, "result").get("content"))
    return "; ".join(_text(block.get("text") or block) for block in blocks)


def _resumed(data: Mapping[str, Any]) -> str:
    return f"was {data.get('from')}{_more(data)}"


def _said(data: Mapping[str, Any]) -> str:
    return _words("ask", "choice", "note")(data) + _more(data)


def _more(data: Mapping[str, Any]) -> str:
    """Return the limits that were raised."""
    return "".join(f", {name} now {value}" for name, value in _inside(data, "bounds").items())


def _ended(data: Mapping[str, Any]) -> str:
    said = _inside(data, "error").get("message") or data.get("reason")
    return f"{data.get('status')}: {said}" if said else str(data.get("status"))


def _words(*names: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda data: " ".join(str(data[name]) for name in names if isinstance(data.get(name), str))


def _inside(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _parts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "assembled": _assembled,
    "model_asked": _asked,
    "model_failed": _words("message"),
    "model_answered": _answered,
    "tool_refused": _refused,
    "tool_asked": _call,
    "tool_started": _call,
    "tool_doubted": _call,
    "tool_ended": _result,
    "loop_asked": lambda data: f"{data.get('title')}, {data.get('ask')} asks whether they may go on",
    "question_asked": lambda data: f"{data.get('ask')} asks: {data.get('question')}",
    "limit_asked": lambda data: f"{data.get('limit')} {data.get('value')} is used up, {data.get('ask')} asks for more",
    "answered": _said,
    "listening": lambda data: "",
    "said": _words("words"),
    "crashed": _words("message"),
    "resumed": _resumed,
    "paused": _ended,
    "ended": _ended,
}


async def result_data(shown: Shown, client: HallClient) -> dict[str, Any]:
    """Return the object that `--output json` prints; for a workflow with its messages."""
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
    data = run.as_dict()
    return {key: data[key] for key in keys}


def next_steps(shown: Shown, screen: Screen) -> list[str]:
    """Return lines with the commands that continue a run that has stopped."""
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
    """Return the command that answers an ask, and the one that shows it unless it is shown `here`.

    No answer is suggested for a call with an unknown effect: only the user knows what happened.
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
    """Return True if a failed run could succeed when it is resumed, and its hint does not say so already."""
    error = run.error or {}
    if run.status != "failed" or run.parent is not None or error.get("code") in _FINAL_ERRORS:
        return False
    if run.kind == "workflow" and error.get("code") == "invalid_file":  # it keeps the text that it began with
        return False
    return error.get("code") not in RESUME_HINTED


def used(shown: Shown) -> str:
    """Return what a run used, as one line."""
    usage = shown.usage
    turns = "1 turn" if usage.turns == 1 else f"{usage.turns} turns"
    turns = f"{len(shown.below) + 1} runs, {turns}" if shown.below else turns
    return f"{turns}, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {money(usage.cost_usd)}"


def text_of(output: Any) -> str:
    """Return an output as text: a text unchanged, everything else as JSON."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def print_outcome(shown: Shown, screen: Screen) -> None:
    """Print the result of a run, or its error, its open asks and the next steps."""
    run = shown.run
    if run.status == "completed":
        screen.result(text_of(run.output))
    if run.status == "cancelled":
        screen.note(f"guild: {id_of(run)} was cancelled: there is no result", "red")
    elif run.status == "failed" or run.error:
        print_error(run, run.error or {}, screen)
    for ask in shown.asks:
        if ask.status == "open" and ask.question.body:
            screen.note(screen.barred(ask.question.body, wrapped=screen.err.isatty()))
    for line in next_steps(shown, screen):
        screen.note(line)


def print_error(run: Run, error: Mapping[str, Any], screen: Screen) -> None:
    """Print why a run failed, and the hint of the error."""
    where = f"{error['where']}: " if error.get("where") else ""
    message = error.get("message") or run.reason or "no reason given"
    screen.note(f"guild: {id_of(run)} {run.status}: {where}{message}", "red")
    if hint := error.get("hint"):
        screen.note(rename_run(str(hint), run))
