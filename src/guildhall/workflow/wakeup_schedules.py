"""Schedules: post wake-up messages to agents of a running workflow at an interval or by a cron line.

The database has the next due time of each schedule. A schedule that was missed while no hall was running fires once.
The wake-up is an ordinary message, so a busy agent reads it after its turn. While the last wake-up of a schedule is
unread, the agent gets no further message from it.
Does not set or delete schedules (`service.py`) or parse wake-up times (`definition.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.core.errors import GuildError
from guildhall.room import records as room_records
from guildhall.room.model import Actor, MessageText
from guildhall.workflow import records
from guildhall.workflow.start_values import wakeup_message

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.service import Room
    from guildhall.store.engine import Store
    from guildhall.workflow.instance import Schedule
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.placeholders import Values

_MAX_WAIT_S = 3600.0  # the machine may have slept meanwhile


@dataclass(kw_only=True)
class WakeupTimer:
    """Posts the wake-up messages of one workflow."""

    run: str  # of the workflow
    room: Room
    store: Store
    clock: Clock
    zone: tzinfo  # time zone of cron lines
    team: Callable[[], tuple[Workflow, Values]]  # returns the current workflow and values
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def reload(self) -> None:
        """Read the schedules again after a change."""
        self._changed.set()

    async def run_forever(self) -> None:
        """Post wake-ups when they are due, until cancelled."""
        while True:
            self._changed.clear()
            schedules = self.store.read(lambda connection: records.list_schedules(connection, self.room.id))
            active = [schedule for schedule in schedules if schedule.due_at is not None]
            first_due_at = min((schedule.due_at or "" for schedule in active), default=None)
            wait_s = None if first_due_at is None else (parse_stamp(first_due_at) - self.clock.now()).total_seconds()
            if wait_s is not None and wait_s <= 0:
                for schedule in active:
                    if parse_stamp(schedule.due_at or "") <= self.clock.now():
                        await self._post(schedule)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s is None else min(wait_s, _MAX_WAIT_S)):
                    await self._changed.wait()

    async def _post(self, schedule: Schedule) -> None:
        """Post the wake-up, one message for each prompt. The transaction of the last one sets the next due time."""
        due_at = stamp(next_due(schedule, self.clock.now(), self.zone))
        prompts = list(self.store.read(lambda connection: self._prompts(connection, schedule)).items())
        if not prompts:
            await self.store.write(lambda connection: self._advance(connection, schedule, due_at))
        for number, (message, agents) in enumerate(prompts):
            advance = partial(self._advance, schedule=schedule, due_at=due_at) if number == len(prompts) - 1 else None
            actor = Actor.system(run=self.run, key=f"{_key_prefix(schedule)}{schedule.due_at}/{number}")
            try:
                await self.room.perform("send", actor, extra=advance, parts=message.as_list(), to=agents)
            except GuildError as error:  # such as a prompt that is too long; the team continues
                if advance is not None:
                    await self.store.write(advance)
                self.room.report_problem(f"cannot wake {', '.join(agents)}: {error}")

    def _advance(self, connection: Connection, schedule: Schedule, due_at: str) -> None:
        """Set the next due time, unless the schedule was replaced meanwhile."""
        if schedule in records.list_schedules(connection, self.room.id):
            records.put_schedule(connection, self.room.id, replace(schedule, due_at=due_at), stamp(self.clock.now()))

    def _prompts(self, connection: Connection, schedule: Schedule) -> dict[MessageText, list[str]]:
        """Return the agents to wake, by their wake-up message.

        Drafts, stopped agents, and agents that have not read the last wake-up are not woken. The schedule of a workflow
        does not wake agents with a schedule of their own.
        """
        workflow, values = self.team()
        scheduled = {other.agent for other in records.list_schedules(connection, self.room.id)}
        active = {state.name for state in records.list_agents(connection, self.run) if state.status != "stopped"}
        agents_by_message: dict[MessageText, list[str]] = {}
        for agent in workflow.agents:
            applies = schedule.agent == agent.name or (schedule.agent is None and agent.name not in scheduled)
            if not applies or agent.name not in active or agent.worker.status == "draft":
                continue
            if not room_records.has_unread_from_call(connection, self.room.id, agent.name, _key_prefix(schedule)):
                message = MessageText.own(schedule.prompt) if schedule.prompt else wakeup_message(agent, values)
                agents_by_message.setdefault(message, []).append(agent.name)
        return agents_by_message


def _key_prefix(schedule: Schedule) -> str:
    """Return the prefix of the keys of a schedule's messages. A room has one schedule per agent, and one for all."""
    return f"schedule/{schedule.agent or '*'}/"


def next_due(schedule: Schedule, now: datetime, zone: tzinfo) -> datetime:
    """Return the next due time after now. An interval continues from its last due time, unless that is past."""
    if schedule.every is not None and schedule.due_at is not None:
        following = parse_stamp(schedule.due_at) + timedelta(seconds=schedule.every)
        if following > now:
            return following
    return schedule.wakeup.after(now.astimezone(zone))
