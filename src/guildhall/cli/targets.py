"""Targets: resolve the names on the command line to runs, asks, jobs, commissions, meetings, agents and workers.

The first letter of an id is its kind. If a command gets the id of another kind, the error names the right command.
Does not define the syntax of workflow targets (see `workflow.target`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id
from guildhall.members.model import of_member
from guildhall.workflow.target import AgentShown, Target, WorkflowShown, parse

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient

_MAX_TARGET_CHARS = 200
_MAX_WORKER_CHARS = 4096
# The noun, an example, and the command that lists them.
_KINDS = {
    RUN: ("run", "r-7k2m9x4qpw", "guild ls --all"),
    ASK: ("ask", "a-3h8n5w2kcd", "guild ls"),
    JOB: ("job", "j-7k2m9x4qpw", "guild job ls"),
    COMMISSION: ("commission", "c-7k2m9x4qpw", "guild commission ls"),
    MEETING: ("meeting", "t-7k2m9x4qpw", "guild meeting ls"),
}


def _kind_of(text: str) -> str | None:
    """Return the noun of an id with its article, or None if the text is not an id."""
    found = next((noun for letter, (noun, *_) in _KINDS.items() if is_id(text, letter)), None)
    return found and f"{'an' if found == 'ask' else 'a'} {found}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _check_id(text: str, letter: str) -> str:
    """Return the text if it is an id of this kind. Raise NotFound otherwise."""
    if is_id(text, letter):
        return text
    noun, example, listing = _KINDS[letter]
    if (other := _kind_of(text)) is not None:
        article = "an" if noun == "ask" else "a"
        raise NotFound(f"{text} is {other}, not {article} {noun}", hint=_hint_for(text))
    raise NotFound(
        f"there is no {noun} {_quote(text)}", hint=f"{noun.capitalize()}s look like {example}; `{listing}` lists them."
    )


def _hint_for(text: str) -> str:
    if is_id(text, ASK):
        return f"Answer it: guild answer {text}"
    more = f". To go on with it: guild resume {text}" if is_id(text, RUN) else ""
    return f"All about it, and what it asks: guild show {text}{more}"


# Types of arguments.
run_id = partial(_check_id, letter=RUN)
ask_id = partial(_check_id, letter=ASK)
job_id = partial(_check_id, letter=JOB)
commission_id = partial(_check_id, letter=COMMISSION)
meeting_id = partial(_check_id, letter=MEETING)


def worker_name(text: str) -> str:
    """Return the name or path of a worker. Raise an error if it cannot be one."""
    name = text.strip()
    if not name:
        raise UsageError("the worker's name is empty", hint="`guild worker ls` lists the workers.")
    if len(name) > _MAX_WORKER_CHARS or not name.isprintable():
        raise UsageError("that cannot be a worker's name", hint="`guild worker ls` lists the workers.")
    if (kind := _kind_of(name)) is not None:
        raise NotFound(f"{name} is {kind}, not a worker", hint=f"All about it: guild show {name}")
    return name


def parse_target(text: str) -> Target:
    """Return the target of an agent or a workflow. Raise UsageError if the text cannot be one."""
    if len(text) > _MAX_TARGET_CHARS or not text.isprintable():
        raise UsageError("that cannot be a target", hint="Write agent, agent@workflow:tag or @workflow:tag.")
    return parse(text)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run, and the workflow if the user named one by its target."""

    run: str
    target: Target | None = None
    workflow: WorkflowShown | None = None

    @property
    def agent(self) -> AgentShown | None:
        """The agent that the target names."""
        if self.workflow is None or self.target is None or self.target.agent is None:
            return None
        return next(agent for agent in self.workflow.agents if agent.name == self.target.agent)


def is_member_job(text: str) -> bool:
    """Return True for MEMBER/JOB. Raise NotFound if it has a slash and cannot be one."""
    return of_member(text) is not None


async def resolve(text: str, client: HallClient) -> Resolved:
    """Find the run of an id, or the workflow of a target."""
    if is_id(text, ASK):
        return Resolved(run=(await client.asks.get(text)).run)
    if is_id(text, RUN):
        return Resolved(run=text)
    if (run := await _owned_run(text, client)) is not None:
        return Resolved(run=run)
    if "@" not in text:
        if is_member_job(text):
            raise NotFound(f"there is no run and no ask {text!r}", hint=f"A job of a member: guild job show {text}")
        return await _resolve_agent(text, client)
    target = parse_target(text)
    workflow = await client.workflows.get(target)
    return Resolved(run=workflow.run, target=target, workflow=workflow)


async def resolve_run(text: str, client: HallClient) -> str:
    """Find the run of an id, or of a whole workflow."""
    if (run := await _owned_run(text, client)) is not None:
        return run
    if "@" not in text:
        return run_id(text)
    target = parse_target(text)
    if target.agent is not None:
        raise UsageError(f"{target} is one agent of {target.team}", hint=f"Name the whole: {target.team}")
    return (await client.workflows.get(target)).run


async def _owned_run(text: str, client: HallClient) -> str | None:
    """Return the last run of a job, a commission or a meeting, or None for other ids. Raise NotFound without a run."""
    if is_id(text, JOB):
        run, missing = (await client.jobs.get(text)).job.run, f"there is no run behind the job {text}"
        hint = f"See guild job show {text}."
    elif is_id(text, MEETING):
        run, missing = (await client.meetings.get(text)).meeting.run, f"nobody has come to the meeting {text} yet"
        missing, hint = f"{missing}: there is no run", f"guild meeting show {text}"
    elif is_id(text, COMMISSION):
        one = (await client.commissions.get(text)).commission
        run, missing = one.run, f"commission {text} is {one.status}: it has no run yet"
        hint = one.next_command
    else:
        return None
    if run is None:
        raise NotFound(missing, hint=hint)
    return run


async def _resolve_agent(text: str, client: HallClient) -> Resolved:
    try:
        target = parse_target(text)
        workflow = await client.workflows.get(target)
    except (UsageError, NotFound) as error:
        hint = error.hint or "Ids look like r-7k2m9x4qpw; `guild ls --all` lists them."
        raise NotFound(f"there is no run and no ask {_quote(text)}, and no agent of that name", hint=hint) from None
    return Resolved(run=workflow.run, target=target, workflow=workflow)
