"""Arguments: parses the arguments of a command, defines their types, and finds the run that a name means.

An unknown option is an error that suggests the nearest option. The first letter of an id is its kind. If a command gets
the id of another kind, the error names the right command. Does not find the command (see `cli.command_table`) or define
the syntax of workflow targets (see `workflow.target`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from guildhall.cli.command import argument
from guildhall.cli.command_table import Row, family_lines
from guildhall.cli.short_ids import LAST, is_kind, read_id
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id
from guildhall.core.text_checks import did_you_mean, nearest
from guildhall.members.model import parse_member_job
from guildhall.workflow.target import Target, parse

if TYPE_CHECKING:
    from guildhall.cli.command import Command, Context
    from guildhall.hall.client.interface import HallClient
    from guildhall.runs.model import Run
    from guildhall.workflow.instance import AgentSummary, WorkflowSummary

_MAX_TEXT_BYTES = 1_000_000
_MAX_TARGET_CHARS = 200
_MAX_WORKER_CHARS = 4096
# The noun with its article, an example, and the command that lists ids of this kind.
_KINDS = {
    RUN: ("a run", "r-7k2m9x4qpw", "guild ls --all"),
    ASK: ("an ask", "a-3h8n5w2kcd", "guild ls"),
    JOB: ("a job", "j-7k2m9x4qpw", "guild ls jobs"),
    COMMISSION: ("a commission", "c-7k2m9x4qpw", "guild ls commissions"),
    MEETING: ("a meeting", "t-7k2m9x4qpw", "guild ls meetings"),
}


class CommandParser(argparse.ArgumentParser):
    """A parser that raises UsageError and suggests the nearest option."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("guild ")
        raise UsageError(f"{name}: {message}", hint=f"See {self.prog} --help.")

    @property
    def options(self) -> list[str]:
        """The long options."""
        return sorted(option for option in self._option_string_actions if option.startswith("--"))

    def read(self, words: list[str]) -> argparse.Namespace:
        """Parse the arguments. Positional arguments and options can be in any order."""
        self.usage = self.prog  # argparse would format it for errors, which do not print it
        command = self.prog.removeprefix("guild ")
        for word in words[: words.index("--")] if "--" in words else words:  # before argparse misses other arguments
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and name not in self._option_string_actions:
                hint = did_you_mean(name, self.options) if nearest(name, self.options) else f"See {self.prog} --help."
                raise UsageError(f"{command}: unknown option {name!r}", hint=hint)
        args, unknown = self.parse_known_intermixed_args(words)
        if not unknown:
            return args
        stray = unknown[0]
        if stray.startswith("-") and stray != "-":
            raise UsageError(f"{command}: unknown option {stray!r}", hint=f"See {self.prog} --help.")
        hint = f"Put quotes around text with spaces. See {self.prog} --help."
        raise UsageError(f"{command}: unexpected argument {stray!r}", hint=hint)


def parser_of(row: Row, command: Command) -> CommandParser:
    """Return the parser of a command."""
    subcommands = f"subcommands:\n{lines}\n" if (lines := family_lines(row.name)) else ""
    parser = CommandParser(
        prog=f"guild {row.name}",
        description=f"{row.summary}.",
        epilog=f"{subcommands}example:\n  {row.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    return parser


def positive_int(text: str) -> int:
    """Read a whole number from 1 to 999,999,999."""
    if text.isascii() and text.isdigit() and 0 < (number := int(text[:12])) < 10**9:
        return number
    raise argparse.ArgumentTypeError(f"{_quote(text)} is not a whole number from 1 to 999,999,999")


def entry_number(text: str) -> int:
    """Read the number of a journal entry, starting at 0."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise argparse.ArgumentTypeError(f"{_quote(text)} is not the number of an entry, as `guild log` prints it")


def dollars(text: str) -> float:
    """Read an amount above zero and below a billion, with or without a dollar sign."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if 0 < amount < 1e9:
        return amount
    raise argparse.ArgumentTypeError(f"{_quote(text)} is not an amount in dollars above zero and below a billion")


def duration_s(text: str) -> float:
    """Read a duration such as 30s or 10m. Return seconds."""
    from guildhall.core.config import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}. {error.hint}") from None


def json_object(text: str, name: str, example: str) -> dict[str, Any]:
    """Read an object from JSON. `name` and `example` are for the error."""
    hint = f"For example: {example}"
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"invalid {name}: not JSON ({error})", hint=hint) from None
    if not isinstance(value, dict):
        raise UsageError(f"invalid {name}: not a JSON object", hint=hint)
    return cast("dict[str, Any]", value)


def read_text(given: str | None, name: str, *, hint: str = "Pass it in quotes, or `-` to read standard input.") -> str:
    """Return a text from the command line, or from standard input if it is `-` or not given."""
    if given is not None and given != "-":
        data = given.encode(errors="surrogateescape")
    elif sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        raise UsageError(f"cannot read the {name}: standard input is closed", hint="Pass it in quotes.")
    elif given is None and sys.stdin.isatty():
        raise UsageError(f"no {name} given", hint=hint)
    else:
        try:
            data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cannot read standard input: {reason}", hint="Pass it in quotes.") from None
    if len(data) > _MAX_TEXT_BYTES:
        hint = "Shorten it, or write it to a file that the worker can read and name that file."
        raise UsageError(f"invalid {name}: larger than {_MAX_TEXT_BYTES:,} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"invalid {name}: not UTF-8 text (byte {error.start})", hint="Convert it to UTF-8.") from None
    if "\0" in text:
        raise UsageError(f"invalid {name}: contains a NUL character", hint="Remove it.")
    return text


def _kind_of(text: str) -> str | None:
    """Return the noun of an id with its article, or None if the text is not an id."""
    return next((noun for letter, (noun, *_) in _KINDS.items() if is_id(text, letter)), None)


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _check_id(text: str, letter: str) -> str:
    """Return the text if it is an id of this kind, or short for one. Raise NotFound otherwise."""
    id = read_id(text)
    if is_kind(id, letter) or (letter == RUN and id == LAST):
        return id
    kind, example, listing = _KINDS[letter]
    if (other := _kind_of(text)) is not None:
        more = f". Continue: guild resume {text}" if is_id(text, RUN) else ""
        hint = f"Details: guild show {text}{more}"
        hint = f"Answer it: guild answer {text}" if is_id(text, ASK) else hint
        raise NotFound(f"{text} is {other}, not {kind}", hint=hint)
    noun = kind.split()[1]
    hint = f"An id of {kind} looks like {example}. List the {noun}s: {listing}"
    raise NotFound(f"unknown {noun} {_quote(text)}", hint=hint)


# types of arguments
parse_run_id = partial(_check_id, letter=RUN)
parse_ask_id = partial(_check_id, letter=ASK)
parse_commission_id = partial(_check_id, letter=COMMISSION)


def worker_name(text: str) -> str:
    """Return the name or path of a worker. Raise UsageError or NotFound if the text cannot be a name or a path."""
    name = text.strip()
    reason = "" if name.isprintable() else "contains control characters"
    reason = f"longer than {_MAX_WORKER_CHARS:,} characters" if len(name) > _MAX_WORKER_CHARS else reason
    if reason or not name:
        raise UsageError(f"invalid worker name: {reason or 'empty'}", hint="List the workers: guild worker ls")
    if (kind := _kind_of(name)) is not None:
        raise NotFound(f"{name} is {kind}, not a worker", hint=f"Details: guild show {name}")
    return name


def parse_target(text: str) -> Target:
    """Return the target of an agent or a workflow. Raise UsageError if the text is not a target."""
    if len(text) > _MAX_TARGET_CHARS or not text.isprintable():
        reason = "contains control characters" if len(text) <= _MAX_TARGET_CHARS else "too long"
        raise UsageError(f"invalid target: {reason}", hint="Write agent, agent@workflow:tag or @workflow:tag.")
    return parse(text)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run, and the workflow if the user named one by its target."""

    run_id: str
    target: Target | None = None
    workflow: WorkflowSummary | None = None

    @property
    def agent(self) -> AgentSummary | None:
        """The agent that the target names."""
        if self.workflow is None or self.target is None or self.target.agent is None:
            return None
        return next(agent for agent in self.workflow.agents if agent.name == self.target.agent)

    def select(self, runs: Iterable[Run]) -> list[Run]:
        """Return all runs or, if the target names an agent, the agent's runs and their child runs."""
        if (agent := self.agent) is None:
            return list(runs)
        selected: dict[str, Run] = {}
        for run in runs:
            if (run.parent == self.run_id and run.worker == agent.name) or run.parent in selected:
                selected[run.id] = run
        return list(selected.values())


def is_member_job(text: str) -> bool:
    """Return True if the text is MEMBER/JOB. Raise NotFound if it has a slash but is not valid."""
    return parse_member_job(text) is not None


async def resolve(text: str, ctx: Context) -> Resolved:
    """Find the run of an id, or the workflow of a target."""
    client = ctx.client
    if is_id(text, ASK):
        return Resolved(run_id=(await client.asks.get(text)).run)
    if is_id(text, RUN):
        return Resolved(run_id=text)
    if (run := await _owned_run(text, client)) is not None:
        return Resolved(run_id=run)
    _check_not_member_job(text)
    try:
        target = ctx.locate(parse_target(text))
        workflow = await client.workflows.get(target)
    except (UsageError, NotFound) as error:
        if "@" in text:
            raise
        hint = error.hint or "An id looks like r-7k2m9x4qpw. List the runs: guild ls --all"
        raise NotFound(f"unknown id or target {_quote(text)}", hint=hint) from None
    return Resolved(run_id=workflow.run, target=target, workflow=workflow)


async def resolve_run(text: str, ctx: Context) -> str:
    """Find the run of an id, or of a whole workflow."""
    if (run := await _owned_run(text, ctx.client)) is not None:
        return run
    _check_not_member_job(text)
    if "@" not in text:
        return parse_run_id(text)
    target = parse_target(text)
    if target.agent is not None:
        raise UsageError(f"{target} is an agent, not a workflow", hint=f"Use {target.workflow_target}.")
    return (await ctx.client.workflows.get(ctx.locate(target))).run


def _check_not_member_job(text: str) -> None:
    """Raise NotFound if the text is MEMBER/JOB, because the hall has no run of a member's job."""
    if "@" not in text and is_member_job(text):
        raise NotFound(f"job {text} belongs to a member and has no run here", hint=f"Details: guild show {text}")


async def _owned_run(text: str, client: HallClient) -> str | None:
    """Return the last run of a job, commission or meeting, or None for other texts. Raise NotFound if it has no run."""
    if is_id(text, JOB):
        run = (await client.jobs.get(text)).job.run
        missing, hint = f"job {text} has no run", f"Details: guild show {text}"
    elif is_id(text, MEETING):
        run = (await client.meetings.get(text)).meeting.run
        missing, hint = f"meeting {text} has no run yet", f"Details: guild show {text}"
    elif is_id(text, COMMISSION):
        commission = (await client.commissions.get(text)).commission
        run, hint = commission.run, commission.next_command
        missing = f"commission {text} has no run yet: its status is {commission.status}"
    else:
        return None
    if run is None:
        raise NotFound(missing, hint=hint)
    return run


LIMITS = (
    argument("--budget", metavar="USD", type=dollars, help="maximum cost in dollars; then you are asked"),
    argument("--max-turns", metavar="N", type=positive_int, help="maximum number of model calls"),
    argument("--max-tokens", metavar="N", type=positive_int, help="maximum number of tokens, input and output"),
)


def limits_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the limits that the arguments set."""
    return {"max_turns": args.max_turns, "max_tokens": args.max_tokens, "budget": args.budget}
