"""User operations on running workflows: send messages, stop and start agents, set schedules, and build listings.

Also finds the workflow and the agent that a target names.
Does not start or resume workflows (`service.py`) and does not deliver scheduled messages (`schedules.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, UsageError
from guildhall.room import mentions
from guildhall.room.model import ALL, Actor, Said
from guildhall.room.tools import perform_in
from guildhall.runs.model import ENDED
from guildhall.runs.record import records as run_records
from guildhall.workflow import records
from guildhall.workflow.schedules import next_due
from guildhall.workflow.target import GLOBAL, MAIN, OVER, Instance, Schedule, Sent, Target

if TYPE_CHECKING:
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.room.service import Rooms
    from guildhall.runs.execution.runs import Runs
    from guildhall.store.engine import Store
    from guildhall.workflow.definition import Wakeup
    from guildhall.workflow.service import Workflows


class Steering:
    """The hand of a person on the workflows of a hall."""

    def __init__(
        self, workflows: Workflows, *, store: Store, clock: Clock, runs: Runs, rooms: Rooms, zone: tzinfo
    ) -> None:
        self._workflows = workflows
        self._store = store
        self._clock = clock
        self._runs = runs
        self._rooms = rooms
        self._zone = zone

    # Speaking

    async def send(self, text: str, to: Target) -> Sent:
        """A person says something to an agent, or to the room: to those whom it mentions there, else to all."""
        instance = _alive(self._workflows.named(to), to)
        room = self._rooms.room(instance.room)
        addressed = [to.agent] if to.agent else []
        if not addressed:
            found = mentions.find(Said.own(text), [seat.agent for seat in room.seats()])
            addressed = [] if found.reached or found.missed else [ALL]

        def check(connection: Connection) -> None:
            _alive(records.find(connection, instance.id) or instance, to)  # it may just have come to its end

        posted = await room.send(text, Actor.person(), to=addressed, check=check)
        stopped = {agent.name for agent in self._workflows.agents(instance.id) if agent.status == "stopped"}
        return Sent(
            run=instance.id,
            target=to,
            status=self._workflows.instance(instance.id).status,
            posted=posted,
            stopped=tuple(name for name in posted.reached if name in stopped),
        )

    # Ending

    async def stop(self, run: str) -> list[str]:
        """Ends a workflow for good, with all that its agents are at; the ids of the runs that were ended."""
        at = stamp(self._clock.now())

        def also(connection: Connection) -> None:
            records.change(connection, run, status="stopped", reason="by the user", ended_at=at)
            for agent in records.agents_of(connection, run):
                records.change_agent(connection, run, agent.name, status="stopped", run=None, due_at=None)

        return await self._runs.cancel(run, also)

    async def stop_agent(self, wanted: Target) -> list[str]:
        """Ends what one agent is at, and lets it do no more; the others go on. The ids of the runs that were ended."""
        instance, name = _alive(self._workflows.named(wanted), wanted), _agent(wanted)
        if next(one.status for one in self._workflows.agents(instance.id) if one.name == name) == "stopped":
            raise Conflict(f"{wanted} is stopped", hint=f"To let it work again: guild start {wanted}")
        if (team := self._workflows.team(instance.room)) is not None:
            await team.leave(name)
        now = stamp(self._clock.now())

        def write(connection: Connection) -> list[str]:
            run = records.agent(connection, instance.id, name).run
            found = run_records.find_run(connection, run) if run else None
            records.change_agent(connection, instance.id, name, status="stopped", run=None, due_at=None)
            unfinished = found is not None and found.status not in ENDED
            return run_records.cancel_tree(connection, found.id, now) if found and unfinished else []

        ended = await self._store.write(write)
        return [*ended, *(await self._workflows.gave_up_seat(instance, name) if instance.name == GLOBAL else [])]

    async def start_agent(self, wanted: Target) -> Instance:
        """Lets an agent work again that was stopped alone, or that has failed: its dead letters are unread again."""
        instance, name = _alive(self._workflows.named(wanted), wanted), _agent(wanted)
        at = stamp(self._clock.now())

        def write(connection: Connection) -> None:
            if records.agent(connection, instance.id, name).status not in ("stopped", "failed"):
                raise Conflict(f"{wanted} works already", hint=f"Speak to it: guild send {wanted} ...")
            records.change_agent(connection, instance.id, name, status="idle", attempts=0, run=None, due_at=None)
            perform_in(connection, instance.room, "delivered_again", Actor.person(), at, agent=name)

        await self._store.write(write)
        if (team := self._workflows.team(instance.room)) is not None:
            team.sit(team.workflow, name)
            team.wake(frozenset({name}))
        return instance

    # Schedules

    async def schedule(self, wanted: Target, wakeup: Wakeup, prompt: str | None) -> Schedule:
        """Sets when an agent wakes by itself; without an agent, when all do that have no schedule of their own."""
        instance, now = _alive(self._workflows.named(wanted), wanted), self._clock.now()
        new = Schedule(agent=wanted.agent, every=wakeup.every, cron=wakeup.cron, prompt=prompt, due_at=None)
        new = replace(new, due_at=stamp(next_due(new, now, self._zone)))
        await self._store.write(lambda c: records.put_schedule(c, instance.room, new, stamp(now)))
        self._rescheduled(instance)
        return new

    async def unschedule(self, wanted: Target) -> bool:
        """Forgets when an agent, or all, wake; whether something was set."""
        instance = self._workflows.named(wanted)
        dropped = await self._store.write(lambda c: records.drop_schedule(c, instance.room, wanted.agent))
        self._rescheduled(instance)
        return dropped

    def _rescheduled(self, instance: Instance) -> None:
        if (team := self._workflows.team(instance.room)) is not None:
            team.alarms.look_again()


def _alive(instance: Instance, wanted: Target) -> Instance:
    """The instance, unless it is over."""
    if instance.status not in OVER:
        return instance
    if instance.name == GLOBAL:
        raise Conflict(f"{wanted} is not there", hint=f"To seat it: guild start {wanted.agent or 'WORKER'}")
    tag = "" if instance.tag == MAIN else f" --tag {instance.tag}"
    hint = f"To begin again: guild {instance.mode} {instance.path}{tag}"
    raise Conflict(f"{instance.target} is {instance.status}: nobody is there", hint=hint)


def _agent(wanted: Target) -> str:
    if wanted.agent is None:
        raise UsageError(f"{wanted} names no agent", hint="Write agent@workflow:tag.")
    return wanted.agent
