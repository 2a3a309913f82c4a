"""What people name on the command line: a run or an ask by its id, an agent or a workflow by its target."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id
from guildhall.members.model import of_member
from guildhall.workflow.target import parse

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient
    from guildhall.workflow.instance import AgentShown, WorkflowShown
    from guildhall.workflow.target import Target

_LONGEST = 200  # characters of a target
_MOST = 1_000_000  # bytes of a text
# What it is, what one looks like, and the command that lists them.
_KINDS = {
    RUN: ("run", "r-7k2m9x4qpw", "guild ls --all"),
    ASK: ("ask", "a-3h8n5w2kcd", "guild ls"),
    JOB: ("job", "j-7k2m9x4qpw", "guild job ls"),
    COMMISSION: ("commission", "c-7k2m9x4qpw", "guild commission ls"),
    MEETING: ("meeting", "t-7k2m9x4qpw", "guild meeting ls"),
}


def kind_of(text: str) -> str | None:
    """What the text is the id of, with its article; None: it has the form of no id."""
    found = next((noun for letter, (noun, *_) in _KINDS.items() if is_id(text, letter)), None)
    return found and f"{'an' if found == 'ask' else 'a'} {found}"


def short(text: str) -> str:
    """A word of the command line, as an error shows it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _id(text: str, letter: str) -> str:
    """The text, if it has the form of such an id."""
    if is_id(text, letter):
        return text
    noun, example, listing = _KINDS[letter]
    if (other := kind_of(text)) is not None:
        article = "an" if noun == "ask" else "a"
        raise NotFound(f"{text} is {other}, not {article} {noun}", hint=_what_to_do(text))
    raise NotFound(
        f"there is no {noun} {short(text)}", hint=f"{noun.capitalize()}s look like {example}; `{listing}` lists them."
    )


def _what_to_do(text: str) -> str:
    if is_id(text, ASK):
        return f"Answer it: guild answer {text}"
    more = f". To go on with it: guild resume {text}" if is_id(text, RUN) else ""
    return f"All about it, and what it asks: guild show {text}{more}"


run_id = partial(_id, letter=RUN)
ask_id = partial(_id, letter=ASK)
job_id = partial(_id, letter=JOB)
commission_id = partial(_id, letter=COMMISSION)
meeting_id = partial(_id, letter=MEETING)


@dataclass(frozen=True, kw_only=True)
class Named:
    """What was named: a run, and the workflow that it is or that the target names."""

    run: str
    target: Target | None = None
    workflow: WorkflowShown | None = None

    @property
    def agent(self) -> AgentShown | None:
        """The agent that the target names."""
        if self.workflow is None or self.target is None or self.target.agent is None:
            return None
        return next(agent for agent in self.workflow.agents if agent.name == self.target.agent)


def target_of(text: str) -> Target:
    """The target that a word names. UsageError where it cannot be one."""
    if len(text) > _LONGEST or not text.isprintable():
        raise UsageError("that cannot be a target", hint="Write agent, agent@workflow:tag or @workflow:tag.")
    return parse(text)


async def named(text: str, client: HallClient) -> Named:
    """The run, or the workflow with its run, that a word names."""
    if is_id(text, ASK):
        return Named(run=(await client.asks.get(text)).run)
    if is_id(text, RUN):
        return Named(run=text)
    if is_id(text, JOB):
        return Named(run=await run_of_job(text, client))
    if is_id(text, MEETING):
        return Named(run=await run_of_meeting(text, client))
    if is_id(text, COMMISSION):
        return Named(run=await run_of_commission(text, client))
    if "@" not in text:
        if of_member(text) is not None:
            raise NotFound(f"there is no run and no ask {text!r}", hint=f"A job of a member: guild job show {text}")
        return await _agent_alone(text, client)
    wanted = target_of(text)
    workflow = await client.workflows.get(wanted)
    return Named(run=workflow.run, target=wanted, workflow=workflow)


async def run_of_job(id: str, client: HallClient) -> str:
    """The run that does a job, or did."""
    job = (await client.jobs.get(id)).job
    if job.run is None:
        raise NotFound(f"there is no run behind the job {id}", hint=f"See guild job show {id}.")
    return job.run


async def run_of_commission(id: str, client: HallClient) -> str:
    """Return the run of the last attempt. Raise NotFound if there is none."""
    one = (await client.commissions.get(id)).commission
    if one.run is None:
        raise NotFound(f"commission {id} is {one.status}: it has no run yet", hint=one.next_command)
    return one.run


async def run_of_meeting(id: str, client: HallClient) -> str:
    """The run that a meeting is: the last one that it had."""
    meeting = (await client.meetings.get(id)).meeting
    if meeting.run is None:
        raise NotFound(f"nobody has come to the meeting {id} yet: there is no run", hint=f"guild meeting show {id}")
    return meeting.run


async def run_named(text: str, client: HallClient) -> str:
    """The run that an id or a workflow's target names: its own, or that of a job, a commission, a meeting."""
    if is_id(text, JOB):
        return await run_of_job(text, client)
    if is_id(text, MEETING):
        return await run_of_meeting(text, client)
    if is_id(text, COMMISSION):
        return await run_of_commission(text, client)
    if "@" not in text:
        return run_id(text)
    wanted = target_of(text)
    if wanted.agent is not None:
        raise UsageError(f"{wanted} is one agent of {wanted.team}", hint=f"Name the whole: {wanted.team}")
    return (await client.workflows.get(wanted)).run


async def _agent_alone(text: str, client: HallClient) -> Named:
    try:
        wanted = target_of(text)
        workflow = await client.workflows.get(wanted)
    except (UsageError, NotFound) as error:
        hint = error.hint or "Ids look like r-7k2m9x4qpw; `guild ls --all` lists them."
        raise NotFound(f"there is no run and no ask {short(text)}, and no agent of that name", hint=hint) from None
    return Named(run=workflow.run, target=wanted, workflow=workflow)


def text_of(given: str | None, what: str) -> str:
    """A text from the command, or from standard input where it is `-` or not given."""
    if given is not None and given != "-":
        data = given.encode(errors="surrogateescape")
    elif sys.stdin is None or (given is None and sys.stdin.isatty()):  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError(f"there is no {what}", hint="Give it in quotes, or `-` to read standard input.")
    else:
        try:
            data = sys.stdin.buffer.read(_MOST + 1)
        except OSError as error:
            raise UsageError(f"standard input cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST:
        raise UsageError(f"the {what} is larger than {_MOST:,} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} is not UTF-8 text: byte {error.start} cannot be read") from None
    if "\0" in text:
        raise UsageError(f"the {what} holds a NUL character", hint="Only text can be given.")
    return text
