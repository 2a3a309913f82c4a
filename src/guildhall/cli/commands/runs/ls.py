"""`guild ls`: lists runs, asks, workflows, jobs, meetings and commissions, grouped by state.

The groups are: needs the user, working, done. With a target, it prints a workflow, an agent or a commission.
Does not print a single run (see `cli.commands.runs.show`).
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.cli.command import Context, argument, command
from guildhall.cli.format.commissions import commission_row
from guildhall.cli.format.jobs import how_to_answer, id_of, task_of
from guildhall.cli.format.runs import age, ahead
from guildhall.cli.format.workflows import (
    failed_agents,
    name_of,
    print_agents,
    print_workflow,
    retry_command,
    working_rows,
)
from guildhall.cli.screen import Screen, money
from guildhall.cli.targets import parse_target
from guildhall.core.clock import SystemClock
from guildhall.core.ids import COMMISSION, is_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from guildhall.hall.client.interface import HallClient
    from guildhall.members.model import AtWork
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.meetings.model import Meeting
    from guildhall.runs.model import Ask, Run
    from guildhall.workflow.target import AgentShown, WorkflowShown

_MAX_DONE = 10  # finished runs without --all
_OVER = ("completed", "failed", "cancelled", "abandoned")  # commissions


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Runs, asks, workflows, jobs, meetings and commissions, grouped by what they mean for the user."""

    asks: Sequence[Ask]
    stopped: Sequence[Run]  # until the user resumes them
    working: Sequence[Run]
    done: Sequence[Run]
    workflows: Mapping[str, WorkflowShown]  # by run; without those that have ended
    members: Sequence[AtWork] = ()  # running jobs of members
    meetings: Sequence[Meeting] = ()  # without requested ones, which are among the asks
    sittings: Sequence[Run] = ()  # the runs of meetings
    commissions: Sequence[Commission] = ()

    @staticmethod
    def of(
        runs: Sequence[Run],
        asks: Sequence[Ask],
        workflows: Sequence[WorkflowShown] = (),
        members: Sequence[AtWork] = (),
        meetings: Sequence[Meeting] = (),
        commissions: Sequence[Commission] = (),
    ) -> Groups:
        asked = {ask.root for ask in asks}
        sittings = [run for run in runs if run.kind == "meeting"]  # a meeting is listed once, not by its runs
        runs = [run for run in runs if run.kind != "meeting"]
        return Groups(
            asks=asks,
            stopped=[
                run
                for run in runs
                if run.status == "lost" or (run.status in ("waiting", "parked") and run.id not in asked)
            ],
            working=[run for run in runs if run.status == "running"],
            done=[run for run in runs if run.status in ("completed", "failed", "cancelled")],
            workflows={workflow.run: workflow for workflow in workflows},
            members=members,
            meetings=[one for one in meetings if one.status in ("open", "closed")],
            sittings=sittings,
            commissions=commissions,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "needs_you": {
                "asks": [ask.as_dict() for ask in self.asks],
                "runs": [run.as_dict() for run in self.stopped],
            },
            "working": [run.as_dict() for run in self.working],
            "done": [run.as_dict() for run in self.done],
            "workflows": [workflow.as_dict() for workflow in self.workflows.values()],
            "members": [theirs.as_dict() for theirs in self.members],
            "meetings": [meeting.as_dict() for meeting in self.meetings],
            "commissions": [one.as_dict() for one in self.commissions],
        }


@command(
    argument("target", metavar="TARGET", nargs="?", help="only this: @workflow:tag, agent@workflow:tag, a commission"),
    argument("--all", action="store_true", help=f"every run, not just the newest {_MAX_DONE} that are done"),
    argument("--json", action="store_true", help="print an object with needs_you, working and done"),
    event_loop=False,
)
async def ls(ctx: Context) -> None:
    client, everything = await ctx.connect("read"), ctx.args.all
    if ctx.args.target is not None:
        await _print_one(ctx, client)
        return
    workflows = await client.workflows.list(over=False)
    runs, asks = await client.runs.list(everything=everything), await client.asks.list()
    meetings = await client.meetings.list()
    members, commissions = await client.members.active_jobs(), await client.commissions.list()
    groups = Groups.of(runs, asks, workflows, members, meetings, commissions)
    here = ctx.frame.root
    ctx.print(groups, lambda groups, screen: print_groups(groups, screen, here, everything=everything))
    if not ctx.args.json:
        _note_left_behind(ctx.screen)


async def _print_one(ctx: Context, client: HallClient) -> None:
    """Print one workflow and its agents, one agent, or one commission."""
    if is_id(ctx.args.target, COMMISSION):
        commission = (await client.commissions.get(ctx.args.target)).commission
        ctx.print(commission, lambda one, screen: screen.table([commission_row(one, screen)]))
        return
    target = parse_target(ctx.args.target)
    workflow = await client.workflows.get(target)
    if target.agent:
        agents = [agent for agent in workflow.agents if target.agent == agent.name]
        ctx.print(agents, print_agents, data=agents[0].as_dict())
    else:
        ctx.print(workflow, print_workflow)


def print_groups(groups: Groups, screen: Screen, here: Path, *, everything: bool) -> None:
    """Print the groups. Runs in the project `here` are printed without its path."""
    now = SystemClock().now()

    def task(run: Run) -> str:
        text = screen.one_line(task_of(run), 50)
        place = run.frame.root
        return text if place == here else f"{text} (in {place})"

    asks = [_asked(ask, screen, now) for ask in groups.asks]
    asks += [row for theirs in groups.members for row in _questions(theirs, screen, here)]
    held = {one.run: screen.one_line(one.explanation, 60) for one in groups.commissions if one.hold}
    stopped = [
        [id_of(run), run.status, f"{name_of(run)}: {task(run)}", held.get(run.id, ""), f"guild resume {id_of(run)}"]
        for run in groups.stopped
    ]
    working: list[list[str]] = []
    gave_up: list[list[str]] = []
    for run in groups.working:
        since = age(run.created_at, now)
        if (workflow := groups.workflows.get(run.id)) is not None:
            working += working_rows(run, workflow, since)
            gave_up += [_gave_up(agent, workflow) for agent in failed_agents(workflow)]
        else:
            working.append([id_of(run), run.worker, task(run), since])
    for theirs in groups.members:
        if not (theirs.shown.waits and theirs.shown.questions):  # otherwise it is listed under "needs you"
            working.append(_at_work(theirs, screen, here, now))
    dispatched = [one for one in groups.commissions if one.status == "dispatched"]
    working += [[one.id, one.worker, screen.one_line(one.title, 50), "queued"] for one in dispatched]
    ended = _done(groups, task, screen, now)
    done = ended if everything else ended[:_MAX_DONE]
    parts = {
        "needs you": asks + stopped + gave_up,
        "working": working,
        "meetings": [_open_meeting(one, groups, screen, now) for one in groups.meetings if one.status == "open"],
        "commissions": [_to_begin(one, screen) for one in groups.commissions if one.status in ("pending", "blocked")],
        "done": done,
    }
    for name, rows in parts.items():
        if rows:
            screen.heading(name)
            screen.table(rows, indent="  ")
    if not any(parts.values()):
        screen.note('Nothing here yet. `guild run WORKER "..."` starts something; `guild demo` shows how it goes.')
    elif len(done) < len(ended):
        screen.note(f"{len(ended) - len(done)} more are done: guild ls --all", "dim")


def _open_meeting(one: Meeting, groups: Groups, screen: Screen, now: datetime) -> list[str]:
    """Return a row for an open meeting, with the state of its run."""
    runs = {run.id: run.status for run in groups.sittings}
    said = {"running": "answers", "failed": "could not answer", "lost": "was cut off"}.get(
        runs.get(one.run or "", ""), ""
    )
    topic = screen.one_line(one.topic, 50)
    return [one.id, one.worker, topic, said, age(one.changed_at, now), f"guild meet {one.id}"]


def _to_begin(one: Commission, screen: Screen) -> list[str]:
    next = f"guild commission dispatch {one.id}" if one.status == "pending" else screen.one_line(one.reason or "", 60)
    return [one.id, one.status, one.worker, screen.one_line(one.title, 50), next]


def _done(groups: Groups, task: Callable[[Run], str], screen: Screen, now: datetime) -> list[list[str]]:
    """Return rows for ended runs, closed meetings and ended commissions, newest first."""
    known = {one.id for one in groups.commissions}

    def id(run: Run) -> str:  # the runs of a deleted commission are still there
        return id_of(run) if run.kind != "commission" else run.id

    found = [
        (run.created_at, [id(run), run.status, name_of(run), task(run), _when(run, now), money(run.cost_usd)])
        for run in groups.done
        if id_of(run) not in known
    ]
    for one in groups.meetings:
        if one.status == "closed":
            runs = [run for run in groups.sittings if id_of(run) == one.id]
            row = [one.id, one.status, one.worker, screen.one_line(one.topic, 50), age(one.changed_at, now)]
            found.append((one.created_at, [*row, _spent(runs, one.sittings)]))
    for one in groups.commissions:
        if one.status in _OVER:
            runs = [run for run in groups.done if id_of(run) == one.id]
            row = [one.id, one.status, one.worker, screen.one_line(one.title, 50), age(one.changed_at, now)]
            found.append((one.changed_at, [*row, _spent(runs, one.attempt)]))
    return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)]


def _spent(runs: Sequence[Run], times: int) -> str:
    """Return the sum of the costs, or nothing if a run or its price is missing."""
    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    return money(sum(costs)) if costs and len(runs) == times else ""


def _gave_up(agent: AgentShown, workflow: WorkflowShown) -> list[str]:
    why = f"it has given up; why: guild log {workflow.run}"
    return [str(agent.target), agent.status, why, "", retry_command(agent)]


def _when(run: Run, now: datetime) -> str:
    return age(run.ended_at or run.created_at, now)


def _asked(ask: Ask, screen: Screen, now: datetime) -> list[str]:
    """Return a row for an ask, with the time that is left for an answer."""
    what = ask.question.title if ask.kind == "limit" else f"{ask.question.title}: {ask.question.body}"
    time = f" {ahead(ask.expires_at, now)}" if ask.expires_at else ""
    return [ask.id, ask.kind.replace("_", " "), screen.one_line(what, 80), f"{ask.run}{time}", f"guild answer {ask.id}"]


def _note_left_behind(screen: Screen) -> None:
    """Print which members have unfinished jobs. Without a hall, their state and their questions are unknown."""
    from guildhall.core.paths import Home
    from guildhall.hall.client.discovery import find
    from guildhall.members.jobs import FILE, Work

    home = Home.locate(dict(os.environ))
    if not (home.path / FILE).exists() or find(home) is not None:
        return
    names = sorted({folder.name for folder, _ in Work(home.path / FILE, SystemClock()).left_behind()})
    if names:
        said = screen.one_line(", ".join(names), 200)
        screen.note(f"Members with jobs that go on when a hall is there, and may ask something: {said}")
        screen.note(f"Start one and see: guild job ls --member {screen.one_line(names[0], 60)}, then guild ls")


def _questions(theirs: AtWork, screen: Screen, here: Path) -> list[list[str]]:
    """Return rows for the questions of a member's job, each with the command that answers it."""
    asked = theirs.shown.questions
    elsewhere = f"cd {shlex.quote(theirs.project or '')} && " if _elsewhere(theirs, here) else ""
    return [
        [theirs.id, "question", screen.one_line(one, 80), "", f"{elsewhere}{how_to_answer(theirs.id, one, asked)}"]
        for one in asked
    ]


def _at_work(theirs: AtWork, screen: Screen, here: Path, now: datetime) -> list[str]:
    job = theirs.shown.job
    what = screen.one_line(job.description, 50) + _elsewhere(theirs, here)
    try:
        since = age(job.started_at, now)
    except (ValueError, TypeError):  # the member may use any format
        since = screen.one_line(job.started_at, 30)
    return [theirs.id, theirs.member, what, since]


def _elsewhere(theirs: AtWork, here: Path) -> str:
    """Return the project of a job's member if it is another one."""
    return "" if theirs.project in (None, str(here)) else f" (in {theirs.project})"
