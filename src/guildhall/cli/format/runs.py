"""Run output: prints results, errors and usage of runs, and the commands that continue a stopped run.

Does not follow a live run (see `cli.follow`) or list runs (see `cli.commands.runs.ls`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.cli.format.jobs import id_of, rename_run
from guildhall.cli.screen import Screen, money
from guildhall.core.clock import parse_stamp
from guildhall.core.errors import ErrorInfo
from guildhall.core.text_checks import format_count
from guildhall.runs.model import AMOUNT, DATE, FREE_TEXT, Ask, Run
from guildhall.runs.purpose import WorkflowPurpose

if TYPE_CHECKING:
    from datetime import datetime

    from guildhall.core.events import ErrorData
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import RunDetails

_CHILD_RUN_FIELDS = ("run", "parent", "worker", "status", "output", "error", "cost_usd")
# A resumed run replays its recorded responses, so these errors would occur again.
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
    """Return the age of a time stamp in its largest unit, such as `3 h ago`."""
    span = _span((now - parse_stamp(stamp)).total_seconds())
    return f"{span} ago" if span else "just now"


def ahead(stamp: str, now: datetime) -> str:
    """Return the time until a time stamp in its largest unit, such as `for 3 h`."""
    return f"for {_span((parse_stamp(stamp) - now).total_seconds()) or 'a moment'}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return ""


async def result_data(details: RunDetails, client: HallClient) -> dict[str, Any]:
    """Return the object that `--output json` prints. A workflow also has its messages."""
    run = details.run
    workflow = run.purpose_as(WorkflowPurpose)
    team: dict[str, Any] = {}
    if workflow:
        messages = [message.as_dict() for message in await client.rooms.messages(run.id)]
        agents = (await client.workflows.find_by_run(run.id)).agents
        answers = {agent.name: agent.answer for agent in agents}
        team = {"workflow": run.worker, "tag": workflow.tag, "messages": messages, "answers": answers}
    return {
        "run": run.id,
        "status": run.status,
        "output": run.output,
        "error": run.error,
        "usage": details.usage.as_dict(),
        "cost_usd": details.usage.cost_usd,
        "runs": [
            {key: value for key, value in one.as_dict().items() if key in _CHILD_RUN_FIELDS} for one in details.below
        ],
        "asks": [ask.as_dict() for ask in details.asks if ask.status == "open"],
        **team,
    }


def print_next_steps(details: RunDetails, screen: Screen) -> None:
    """Print the commands that continue a run that has stopped."""
    run = details.run
    waiting = [ask for ask in details.asks if ask.status == "open"]
    for ask in waiting:
        screen.note(f"Answer needed ({ask.id}): {screen.one_line(ask.question.title, 200)}")
    for ask in waiting:
        screen.note(f"Answer: {how_to_answer(ask)}")
    if run.status in ("paused", "interrupted") or (run.status == "waiting" and not waiting):
        verb = "meet" if run.kind == "meeting" else "resume"
        screen.note(f"Continue: guild {verb} {id_of(run) if run.root == run.id else run.root}")
    elif _can_retry(run):
        screen.note(f"Retry from the last step: guild resume {id_of(run)}")


def how_to_answer(ask: Ask, *, is_shown: bool = False) -> str:
    """Return the command that answers an ask, and the command that shows it unless it is shown already.

    No answer is suggested for an interrupted call, because only the user can find out if the call took effect.
    """
    if FREE_TEXT in ask.question.choices:
        return f'guild answer {ask.id} "..."'
    examples = {AMOUNT: "2.50", DATE: "2027-01-31"}
    words = [examples.get(choice, choice) for choice in ask.question.choices]
    first, rest = ("ANSWER", words) if ask.kind == "interrupted_call" else (words[0], words[1:])
    more = "" if is_shown else f". Details: guild show {ask.id}"
    conjunction = "one of " if first == "ANSWER" else "or "
    return f"guild answer {ask.id} {first} ({conjunction}{', '.join(rest)}){more}"


def _can_retry(run: Run) -> bool:
    """Return True if a failed run could succeed when it is resumed and its hint does not contain the command."""
    if run.status != "failed" or run.parent is not None or run.error_code in (*_FINAL_ERRORS, *RESUME_HINTED):
        return False
    return run.kind != "workflow" or run.error_code != "invalid_file"  # a workflow keeps the text of its file


def usage_line(details: RunDetails) -> str:
    """Return turns, tokens and cost of a run as one line."""
    usage = details.usage
    turns = format_count(usage.turns, "turn")
    turns = f"{len(details.below) + 1} runs, {turns}" if details.below else turns
    return (
        f"{turns}, {format_count(usage.input_tokens, 'token')} in, {usage.output_tokens:,} out, {money(usage.cost_usd)}"
    )


def reservation_text(details: RunDetails) -> str:
    """Return what counts against the limits although no response arrived, or an empty text."""
    if not details.reserved_tokens:
        return ""
    dollars = f"{money(details.reserved_usd)} and " if details.reserved_usd else ""
    return f"{dollars}{details.reserved_tokens:,} tokens for interrupted model calls; they count against the limits"


def text_of(output: Any) -> str:
    """Return a text unchanged, None as an empty text, and any other output as JSON."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def print_outcome(details: RunDetails, screen: Screen) -> None:
    """Print the result of a run, or its error, its open asks and the next steps."""
    run = details.run
    if run.status == "completed":
        screen.result(text_of(run.output))
    if run.status == "cancelled":
        screen.note(f"guild: {id_of(run)} was cancelled", "red")
    elif run.status == "failed" or run.error:
        print_error(run, run.error or ErrorInfo(code="error", message=run.reason or "no reason given"), screen)
    for ask in details.asks:
        if ask.status == "open" and (text := ask.question.details):
            screen.note(screen.quote_block(text, wrapped=screen.err.isatty()))
    print_next_steps(details, screen)


def print_error(run: Run, error: ErrorInfo | ErrorData, screen: Screen) -> None:
    """Print why a run failed, and the hint of the error."""
    where = f"{place}: " if (place := error.get("where")) else ""
    screen.note(f"guild: {id_of(run)} {run.status}: {where}{error['message']}", "red")
    if hint := error.get("hint"):
        screen.note(rename_run(hint, run))
