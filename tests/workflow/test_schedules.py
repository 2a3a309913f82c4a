"""Schedules: an agent starts exactly once for each due time, also after a restart of the hall."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from guildhall.core.clock import local_zone, parse_stamp
from guildhall.core.errors import NotFound, UsageError
from guildhall.workflow.instance import Schedule
from guildhall.workflow.target import parse
from guildhall.workflow.wakeup_schedules import next_due
from tests.room.tool_calls import unread_mail
from tests.workflow.teams import send, stop
from tests.workflow.test_started_workflows import (
    read_messages,
    recover,
    run_workflow,
    start_workflow,
    wait_for_status,
    wait_until,
)

if TYPE_CHECKING:
    from tests.workflow.teams import Team

LONG_AGO = "2020-01-01T00:00:00.000Z"


def make_due(team: Team, at: str = LONG_AGO) -> None:
    """Set the due time of all schedules in the database while no hall runs."""
    with sqlite3.connect(team.home.database) as connection:
        connection.execute("UPDATE schedules SET due_at=?", [at])
    connection.close()


async def make_all_due(team: Team) -> None:
    """Make all schedules due in the running hall."""
    await team.hall.store.write(lambda c: c.exec_driver_sql("UPDATE schedules SET due_at=?", (LONG_AGO,)))
    for workflow in team.hall.main.workflows._teams.values():
        workflow.wakeups.reload()


@pytest.mark.req("AW-17", "AW-16")
def test_an_agent_starts_at_its_due_time_with_the_prompt_of_its_schedule(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[send("woke"), stop()], [send("woke again"), stop()]], bob=[[send("me too"), stop()]])

    async def work(team: Team) -> None:
        await start_workflow(team)
        schedule = await team.client.workflows.set_schedule(parse("ann@team"), "1h", prompt="anything new?")
        assert 3500 < (parse_stamp(schedule.due_at or "") - datetime.now(UTC)).total_seconds() <= 3600
        await make_all_due(team)
        await wait_until(lambda: ("ann", "woke") in read_messages(team))
        assert read_messages(team)[0] == ("system", "anything new?")
        after = await team.client.workflows.schedules(parse("ann@team"))
        assert 3500 < (parse_stamp(after[0].due_at or "") - datetime.now(UTC)).total_seconds() <= 3600
        await team.client.workflows.set_schedule(parse("@team"), "0 9 * * 1-5")  # for agents without their own schedule
        assert await team.client.workflows.clear_schedule(parse("ann@team"))
        assert not await team.client.workflows.clear_schedule(parse("ann@team"))
        await make_all_due(team)
        await wait_until(lambda: {("ann", "woke again"), ("bob", "me too")} <= set(read_messages(team)))
        assert [one.agent for one in await team.client.workflows.schedules(parse("@team"))] == [None]

    team.run_in_hall(work)


def test_an_agent_with_a_short_interval_starts_repeatedly(team: Team) -> None:
    team.write_workflow(kickoff=None, agents="ann")
    team.write_script(ann=[[send("tick"), stop()]], repeat=True)

    async def work(team: Team) -> None:
        await start_workflow(team)
        await team.client.workflows.set_schedule(parse("ann@team"), "1s")
        await wait_until(lambda: [text for _, text in read_messages(team)].count("tick") == 2)

    team.run_in_hall(work)


def test_a_busy_or_stopped_agent_gets_no_second_reminder(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[{"sleep": 0.2, "say": "x"}], [stop()]], repeat=True, bob=[[stop()]])

    async def work(team: Team) -> None:
        await start_workflow(team)
        await team.client.workflows.stop_agent(parse("bob@team"))
        await team.client.workflows.set_schedule(parse("@team"), "1h", prompt="wake up")
        for _ in range(5):
            await make_all_due(team)
            await asyncio.sleep(0.01)
        await wait_for_status(team, "idle")
        reminders = [text for sender, text in read_messages(team) if sender == "system"]
        assert 1 <= len(reminders) <= 2  # the message that ann works on, and an unread one
        assert unread_mail(team.room, "bob") == []

    team.run_in_hall(work)


@pytest.mark.req("AW-17")
def test_a_schedule_of_the_file_that_was_missed_starts_its_agent_once_in_the_next_hall(team: Team) -> None:
    prompt = "Look at ${{ workflow.tag }}."
    write_scheduled_workflow(team, wakeup="1h", wakeup_prompt=prompt)
    team.write_script(ann=[[send("looked"), stop()]], repeat=True)

    async def first(team: Team) -> None:
        await start_workflow(team)
        assert [(one.agent, one.every) for one in await team.client.workflows.schedules(parse("@team"))] == [
            ("ann", 3600.0)
        ]
        await wait_for_status(team, "idle")
        await team.hall.drain()

    team.run_in_hall(first)
    make_due(team)

    async def second(team: Team) -> None:
        await recover(team)
        await wait_until(lambda: ("ann", "looked") in read_messages(team))
        await wait_for_status(team, "idle")
        assert read_messages(team) == [("system", "Look at main."), ("ann", "looked")]

    team.run_in_hall(second)


def write_scheduled_workflow(team: Team, **fields: str) -> None:
    agent = {"system_prompt": "x", "model": "script:script.yaml", **fields}
    (team.project / "team.yaml").write_text(json.dumps({"agents": {"ann": agent}}))


def test_a_schedule_does_not_keep_a_run_alive(team: Team) -> None:
    write_scheduled_workflow(team, wakeup="1s")
    team.write_script(ann=[[stop()]], repeat=True)

    async def work(team: Team) -> None:
        completed_run = await run_workflow(team)
        assert team.hall.history.get(completed_run).status == "completed"

    team.run_in_hall(work)


INVALID_TIMES = [
    "",
    "0s",
    "-5m",
    "0.1s",
    "soon",
    "61 * * * *",
    "* * * *",
    "0 0 30 2 *",
    "* " * 500,
    "1e999",
    "\0",
    "10000d",
]


def test_an_invalid_time_or_prompt_is_refused(team: Team) -> None:
    team.write_workflow(kickoff=None)
    team.write_script(ann=[[stop()]])

    async def work(team: Team) -> None:
        await start_workflow(team)
        for when in INVALID_TIMES:
            with pytest.raises(UsageError):
                await team.client.workflows.set_schedule(parse("ann@team"), when)
        for prompt in ("", " ", "a\0", "\ud800", "x" * 20_001):
            with pytest.raises(UsageError):
                await team.client.workflows.set_schedule(parse("ann@team"), "5m", prompt=prompt)
        with pytest.raises(NotFound):
            await team.client.workflows.set_schedule(parse("carl@team"), "5m")
        assert await team.client.workflows.schedules(parse("@team")) == []

    team.run_in_hall(work)


def test_an_interval_counts_from_its_due_time_and_a_cron_line_uses_the_user_s_time_zone() -> None:
    now = datetime(2026, 3, 27, 12, 0, 1, tzinfo=UTC)
    every = Schedule(agent="a", every=60.0, cron=None, prompt=None, due_at="2026-03-27T12:00:00.000Z")
    assert next_due(every, now, UTC) == datetime(2026, 3, 27, 12, 1, tzinfo=UTC)
    late = Schedule(agent="a", every=60.0, cron=None, prompt=None, due_at="2026-03-27T11:00:00.000Z")
    assert next_due(late, now, UTC) == datetime(2026, 3, 27, 12, 1, 1, tzinfo=UTC)
    cron = Schedule(agent="a", every=None, cron="0 9 * * *", prompt=None, due_at=None)
    berlin = ZoneInfo("Europe/Berlin")  # summer time starts on the 29th
    assert next_due(cron, now, berlin).astimezone(UTC) == datetime(2026, 3, 28, 8, 0, tzinfo=UTC)
    assert next_due(cron, datetime(2026, 3, 28, 12, tzinfo=UTC), berlin).astimezone(UTC) == datetime(
        2026, 3, 29, 7, tzinfo=UTC
    )


def test_the_time_zone_is_that_of_the_environment_if_it_is_valid() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert noon.astimezone(local_zone({"TZ": "Asia/Tokyo"})).hour == 21
    assert noon.astimezone(local_zone({"TZ": ":Asia/Tokyo"})).hour == 21
    for odd in ("", "No/Where", "../../etc/passwd", "\0", "/etc/passwd", "x" * 5000):
        assert noon.astimezone(local_zone({"TZ": odd})) == noon


@pytest.mark.parametrize("prompt", ["${{ params.news }}", "   "])
def test_an_empty_prompt_becomes_the_default_reminder(team: Team, prompt: str) -> None:
    each = {"ann": {"wakeup": "1h", "wakeup_prompt": prompt}}
    team.write_workflow(kickoff=None, agents="ann", each=each, params={"news": {"default": ""}})
    team.write_script(ann=[[send("woke"), stop()]])

    async def work(team: Team) -> None:
        await start_workflow(team)
        await make_all_due(team)
        await wait_until(lambda: ("ann", "woke") in read_messages(team))
        assert read_messages(team)[0][1].startswith("Scheduled wake-up")

    team.run_in_hall(work)


def test_a_schedule_with_an_overlong_prompt_does_not_end_the_team(team: Team) -> None:
    long = "${{ params.a }}" * 2
    each = {"ann": {"wakeup": "1h", "wakeup_prompt": long}}
    team.write_workflow(kickoff=None, each=each, params={"a": {"default": "x" * 600_000}})
    team.write_script(bob=[[send("here"), stop()]])

    async def work(team: Team) -> None:
        began = await start_workflow(team)
        with team.hall.bus.listening(began.run, None) as events:
            await make_all_due(team)
            async for event in events:
                if event.type == "trouble":
                    break
        assert "cannot wake ann" in event.data["message"]
        assert (await team.client.workflows.schedules(parse("ann@team")))[0].due_at > LONG_AGO
        await team.client.rooms.send(parse("bob@team"), "are you there?")
        await wait_until(lambda: ("bob", "here") in read_messages(team))

    team.run_in_hall(work)
