"""What is on record, in lines that people read: runs, asks, entries of a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.format.jobs import by_job, id_of
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

_LONG = 160
# Recorded answers stay what they are, and with them what went wrong: only a new run can end otherwise.
_IN_VAIN = ("runtime_failed", "not_fulfilled", "context_too_long")


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


def entry_line(entry: Entry) -> str:
    """An entry of a journal in one line."""
    key = one_line(entry.key or "-", 20)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {_told(entry)}".rstrip()


def _told(entry: Entry) -> str:
    """What matters most in an entry; what is not known here is shown as it is."""
    tell = _TELLERS.get(entry.kind, _json)
    return one_line(tell(entry.data), _LONG)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _assembled(data: Mapping[str, Any]) -> str:
    from guildhall.runtimes.model import labelled

    return "; ".join([str(data.get("model") or ""), *map(labelled, _parts(data.get("attachments")))])


def _asked(data: Mapping[str, Any]) -> str:
    again = f"attempt {data['attempt'] + 1}: " if data.get("attempt") else ""
    return again + "; ".join(_text(part.get("content")) for part in _parts(data.get("message")))


def _answered(data: Mapping[str, Any]) -> str:
    told: list[str] = []
    for part in _parts(_inside(data, "response").get("parts")):
        if part.get("part_kind") == "tool-call":
            told.append(f"calls {part.get('tool_name')}")
        elif part.get("content"):
            told.append(f"says {_text(part['content'])}")
    return "; ".join(told)


def _call(data: Mapping[str, Any]) -> str:
    return f"{data.get('tool')} {_json(data.get('arguments'))}"


def _refused(data: Mapping[str, Any]) -> str:
    """With what the model reads: who refused it, and why."""
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
    """The limits that were granted."""
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


_TELLERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
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
    error = run.error or {}
    if run.status != "failed" or run.parent is not None or error.get("code") in _IN_VAIN:
        return False
    if run.kind == "workflow" and error.get("code") == "invalid_file":  # it keeps the text that it began with
        return False
    return "guild resume" not in str(error.get("hint"))


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
        error = run.error or {}
        where = f"{error['where']}: " if error.get("where") else ""
        said = error.get("message") or run.reason or "no reason given"
        screen.note(f"guild: {id_of(run)} {run.status}: {where}{said}", "red")
        if hint := error.get("hint"):
            screen.note(by_job(str(hint), run))
    for ask in shown.asks:
        if ask.status == "open" and ask.question.body:
            screen.note(screen.barred(ask.question.body, wrapped=screen.err.isatty()))
    for line in how_to_go_on(shown, screen):
        screen.note(line)
