"""Overview: groups runs, asks, workflows, jobs, meetings and commissions by state, and prints the groups.

The groups are: needs the user, working, open meetings, commissions to start, recent. Does not request the objects from
the hall (see `cli.commands.runs.ls`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.cli.format import workflows
from guildhall.cli.format.jobs import answer_command, id_of, task_of
from guildhall.cli.format.runs import age, ahead
from guildhall.cli.screen import Screen, money
from guildhall.core.clock import SystemClock
from guildhall.projects.commissions.states import ENDED

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from guildhall.members.model import ActiveJob
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.meetings.model import Meeting
    from guildhall.runs.model import Ask, Run
    from guildhall.workflow.instance import WorkflowSummary

MAX_RECENT = 10  # finished runs without --all


@dataclass(frozen=True)
class Groups:
    """Runs, asks, workflows, jobs, meetings and commissions, grouped by state."""

    runs: Sequence[Run]
    asks: Sequence[Ask]
    workflows: Sequence[WorkflowSummary] = ()  # workflows that have not ended
    members: Sequence[ActiveJob] = ()  # jobs of members that are running or have open questions
    meetings: Sequence[Meeting] = ()  # requested meetings are also among the asks
    commissions: Sequence[Commission] = ()

    def _runs(self, *statuses: str) -> list[Run]:
        """Return the runs with these statuses, without runs of meetings, which are listed as meetings."""
        return [run for run in self.runs if run.status in statuses and run.kind != "meeting"]

    @property
    def stopped_runs(self) -> list[Run]:
        """Runs that the user must resume."""
        asked = {ask.root for ask in self.asks}
        return [
            run
            for run in self._runs("interrupted", "waiting", "paused")
            if run.status == "interrupted" or run.id not in asked
        ]

    @property
    def running_runs(self) -> list[Run]:
        return self._runs("running")

    @property
    def ended_runs(self) -> list[Run]:
        return self._runs("completed", "failed", "cancelled")

    def as_dict(self) -> dict[str, Any]:
        lists = {
            "working": self.running_runs,
            "done": self.ended_runs,
            "workflows": self.workflows,
            "members": self.members,
            "meetings": [one for one in self.meetings if one.status in ("open", "closed")],
            "commissions": self.commissions,
        }
        needs_you = {"asks": self.asks, "runs": self.stopped_runs}
        return {
            "needs_you": {name: [one.as_dict() for one in ones] for name, ones in needs_you.items()},
            **{name: [one.as_dict() for one in ones] for name, ones in lists.items()},
        }


def print_groups(groups: Groups, screen: Screen, here: Path, *, everything: bool) -> None:
    """Print the groups. A run in another project than `here` is printed with the path of its project."""
    rows = _Rows(groups, screen, here)
    ended = rows.done()
    done = ended if everything else ended[:MAX_RECENT]
    parts = {
        "Needs you": rows.needs_you(),
        "Working": rows.working(),
        "Meetings": [rows.meeting_row(one) for one in groups.meetings if one.status == "open"],
        "Commissions": [rows.pending_row(one) for one in groups.commissions if one.status in ("pending", "blocked")],
        "Recent": done,
    }
    for name, part in parts.items():
        if part:
            screen.heading(name)
            screen.table(part, indent="  ")
    if not any(parts.values()):
        screen.note('Nothing here yet. Start something: guild run WORKER "...". New here: guild demo')
    elif len(done) < len(ended):
        screen.note(f"{len(ended) - len(done)} more: guild ls --all", "dim")


def ask_row(ask: Ask, screen: Screen, now: datetime) -> list[str]:
    """Return a row for an open ask, with the time that is left and the command that answers it."""
    text = ask.question.title if ask.kind == "limit" else f"{ask.question.title}: {ask.question.body}"
    left = f" {ahead(ask.expires_at, now)}" if ask.expires_at else ""
    kind = ask.kind.replace("_", " ")
    because = f"; because {screen.one_line(ask.question.because, 160)}" if ask.question.because else ""
    return [ask.id, kind, f"{screen.one_line(text, 80)}{because}", f"{ask.run}{left}", f"guild answer {ask.id}"]


def question_rows(jobs: Sequence[ActiveJob], screen: Screen, here: Path) -> list[list[str]]:
    """Return a row for each open question of members' jobs, with the command that answers it."""
    rows: list[list[str]] = []
    for active in jobs:
        asked = active.details.questions
        cd = f"cd {shlex.quote(active.project or '')} && " if _project_suffix(active, here) else ""
        rows += [
            [active.id, "question", screen.one_line(one, 80), "", f"{cd}{answer_command(active.id, one, asked)}"]
            for one in asked
        ]
    return rows


def _project_suffix(active: ActiveJob, here: Path) -> str:
    """Return a suffix with the project of a member's job, or an empty text for the current project."""
    return "" if active.project in (None, str(here)) else f" (in {active.project})"


class _Rows:
    """Makes the rows of the groups."""

    def __init__(self, groups: Groups, screen: Screen, here: Path) -> None:
        self._groups = groups
        self._screen = screen
        self._line = screen.one_line
        self._here = here
        self._now = SystemClock().now()
        self._workflows = {workflow.run: workflow for workflow in groups.workflows}

    def _task(self, run: Run) -> str:
        text = self._line(task_of(run), 50)
        return text if run.frame.root == self._here else f"{text} (in {run.frame.root})"

    def needs_you(self) -> list[list[str]]:
        """Return rows for asks, questions of members, stopped runs and failed agents."""
        rows: list[list[str]] = []
        for ask in self._groups.asks:
            rows.append(ask_row(ask, self._screen, self._now))
        rows += question_rows(self._groups.members, self._screen, self._here)
        hold_reasons = {one.run: self._line(one.explanation, 60) for one in self._groups.commissions if one.hold}
        for run in self._groups.stopped_runs:
            task = f"{workflows.name_of(run)}: {self._task(run)}"
            rows.append([id_of(run), run.status, task, hold_reasons.get(run.id, ""), f"guild resume {id_of(run)}"])
        for run in self._groups.running_runs:
            if (workflow := self._workflows.get(run.id)) is not None:
                reason = f"failed; see guild log {workflow.run}"
                address = workflows.address(workflow, self._here)
                for agent in workflows.failed_agents(workflow):
                    target = replace(address, agent=agent.name)
                    rows.append([str(target), agent.status, reason, "", f"guild start {target}"])
        return rows

    def working(self) -> list[list[str]]:
        """Return rows for running runs, workflows and jobs of members, and for queued commissions."""
        rows: list[list[str]] = []
        for run in self._groups.running_runs:
            since = age(run.created_at, self._now)
            if (workflow := self._workflows.get(run.id)) is not None:
                rows += workflows.working_rows(run, workflow, since, self._here)
            else:
                rows.append([id_of(run), run.worker, self._task(run), since])
        for active in self._groups.members:
            job, is_waiting = active.details.job, active.details.is_waiting and active.details.questions
            if job.status != "running" or is_waiting:  # listed under "Needs you"
                continue
            try:
                since = age(job.started_at, self._now)
            except (ValueError, TypeError):  # the member chooses the format
                since = self._line(job.started_at, 30)
            rows.append(
                [active.id, active.member, self._line(job.description, 50) + _project_suffix(active, self._here), since]
            )
        queued = [one for one in self._groups.commissions if one.status == "dispatched"]
        return rows + [[one.id, one.worker, self._line(one.title, 50), "queued"] for one in queued]

    def meeting_row(self, one: Meeting) -> list[str]:
        """Return a row for an open meeting, with the state of its run."""
        states = {"running": "answering", "failed": "no answer", "interrupted": "interrupted"}
        state = next((states.get(run.status, "") for run in self._groups.runs if run.id == one.run), "")
        since = age(one.changed_at, self._now)
        return [one.id, one.worker, self._line(one.topic, 50), state, since, f"guild meet {one.id}"]

    def pending_row(self, one: Commission) -> list[str]:
        next_step = f"guild dispatch {one.id}" if one.status == "pending" else self._line(one.reason or "", 60)
        return [one.id, one.status, one.worker, self._line(one.title, 50), next_step]

    def done(self) -> list[list[str]]:
        """Return rows for ended runs, closed meetings and ended commissions, newest first."""
        known, runs = {one.id for one in self._groups.commissions}, self._groups.ended_runs
        found: list[tuple[str, list[str]]] = []
        for run in runs:
            if id_of(run) in known:
                continue
            id = run.id if run.kind == "commission" else id_of(run)  # runs remain when their commission is deleted
            when = age(run.ended_at or run.created_at, self._now)
            row = [id, run.status, workflows.name_of(run), self._task(run), when, money(run.cost_usd)]
            found.append((run.created_at, row))
        for one in self._groups.meetings:
            if one.status == "closed":
                found.append((one.created_at, self._ended_row(one, one.topic, self._groups.runs, one.session_count)))
        for one in self._groups.commissions:
            if one.status in ENDED:
                found.append((one.changed_at, self._ended_row(one, one.title, runs, one.attempt)))
        return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)]

    def _ended_row(self, one: Meeting | Commission, title: str, runs: Sequence[Run], count: int) -> list[str]:
        """Return a row with the total cost of the `count` runs, or without a cost if a run is missing."""
        costs = [run.cost_usd for run in runs if id_of(run) == one.id]
        prices = [cost for cost in costs if cost is not None]
        spent = money(sum(prices) if prices else None) if costs and len(costs) == count else ""
        return [one.id, one.status, one.worker, self._line(title, 50), age(one.changed_at, self._now), spent]
