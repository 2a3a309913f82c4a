"""Schedules: agents that wake by themselves, exactly once for each time, whatever happens in between."""

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
from guildhall.workflow.schedules import next_due
from guildhall.workflow.target import Schedule, parse
from tests.room.desks import unread
from tests.workflow.teams import say, send
from tests.workflow.test_staying import recovered, run, said, start, until, until_stands

if TYPE_CHECKING:
    from tests.workflow.teams import Team

LONG_AGO = "2020-01-01T00:00:00.000Z"


def make_due(team: Team, at: str = LONG_AGO) -> None:
    """As if the time had come."""
    with sqlite3.connect(team.home.database) as connection:
        connection.execute("UPDATE schedules SET due_at=?", [at])
    connection.close()


async def ring(team: Team) -> None:
    """The time has come for all schedules."""
    await team.hall.store.write(lambda c: c.exec_driver_sql("UPDATE schedules SET due_at=?", (LONG_AGO,)))
    for workflow in team.hall.main.workflows._teams.values():
        workflow.wakeups.reload()


@pytest.mark.req("AW-17", "AW-16")
def test_an_agent_wakes_when_it_is_due_and_is_told_why(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[send("woke"), say()], [send("woke again"), say()]], bob=[[send("me too"), say()]])

    async def work(team: Team) -> None:
        await start(team)
        schedule = await team.client.workflows.set_schedule(parse("ann@team"), "1h", prompt="anything new?")
        assert 3500 < (parse_stamp(schedule.due_at or "") - datetime.now(UTC)).total_seconds() <= 3600
        await ring(team)
        await until(lambda: ("ann", "woke") in said(team))
        assert said(team)[0] == ("system", "anything new?")
        after = await team.client.workflows.schedules(parse("ann@team"))
        assert 3500 < (parse_stamp(after[0].due_at or "") - datetime.now(UTC)).total_seconds() <= 3600
        await team.client.workflows.set_schedule(parse("@team"), "0 9 * * 1-5")  # for those without one of their own
        assert await team.client.workflows.clear_schedule(parse("ann@team"))
        assert not await team.client.workflows.clear_schedule(parse("ann@team"))
        await ring(team)
        await until(lambda: {("ann", "woke again"), ("bob", "me too")} <= set(said(team)))
        assert [one.agent for one in await team.client.workflows.schedules(parse("@team"))] == [None]

    team.inside(work)


def test_a_short_interval_keeps_time_by_itself(team: Team) -> None:
    team.file(kickoff=None, agents="ann")
    team.script(ann=[[send("tick"), say()]], repeat=True)

    async def work(team: Team) -> None:
        await start(team)
        await team.client.workflows.set_schedule(parse("ann@team"), "1s")
        await until(lambda: [text for _, text in said(team)].count("tick") == 2)

    team.inside(work)


def test_a_busy_or_stopped_agent_gets_no_second_one(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[{"sleep": 0.2, "say": "x"}], [say()]], repeat=True, bob=[[say()]])

    async def work(team: Team) -> None:
        await start(team)
        await team.client.workflows.stop_agent(parse("bob@team"))
        await team.client.workflows.set_schedule(parse("@team"), "1h", prompt="wake up")
        for _ in range(5):
            await ring(team)
            await asyncio.sleep(0.01)
        await until_stands(team, "idle")
        told = [text for sender, text in said(team) if sender == "system"]
        assert 1 <= len(told) <= 2  # the one that it works on, and one that it has not read
        assert unread(team.room, "bob") == []

    team.inside(work)


@pytest.mark.req("AW-17")
def test_the_file_s_wakeup_is_set_and_one_that_was_missed_rings_once_in_the_next_hall(team: Team) -> None:
    prompt = "Look at ${{ workflow.tag }}."
    _file(team, wakeup="1h", wakeup_prompt=prompt)
    team.script(ann=[[send("looked"), say()]], repeat=True)

    async def first(team: Team) -> None:
        await start(team)
        assert [(one.agent, one.every) for one in await team.client.workflows.schedules(parse("@team"))] == [
            ("ann", 3600.0)
        ]
        await until_stands(team, "idle")
        await team.hall.drain()

    team.inside(first)
    make_due(team)

    async def second(team: Team) -> None:
        await recovered(team)
        await until(lambda: ("ann", "looked") in said(team))
        await until_stands(team, "idle")
        assert said(team) == [("system", "Look at main."), ("ann", "looked")]

    team.inside(second)


def _file(team: Team, **fields: str) -> None:
    agent = {"system_prompt": "x", "model": "script:script.yaml", **fields}
    (team.project / "team.yaml").write_text(json.dumps({"agents": {"ann": agent}}))


def test_it_does_not_keep_a_run_alive(team: Team) -> None:
    _file(team, wakeup="1s")
    team.script(ann=[[say()]], repeat=True)

    async def work(team: Team) -> None:
        done = await run(team)
        assert team.hall.history.get(done).status == "completed"

    team.inside(work)


NO_TIMES = ["", "0s", "-5m", "0.1s", "soon", "61 * * * *", "* * * *", "0 0 30 2 *", "* " * 500, "1e999", "\0", "10000d"]


def test_what_is_no_time_is_said_so(team: Team) -> None:
    team.file(kickoff=None)
    team.script(ann=[[say()]])

    async def work(team: Team) -> None:
        await start(team)
        for when in NO_TIMES:
            with pytest.raises(UsageError):
                await team.client.workflows.set_schedule(parse("ann@team"), when)
        for prompt in ("", " ", "a\0", "\ud800", "x" * 20_001):
            with pytest.raises(UsageError):
                await team.client.workflows.set_schedule(parse("ann@team"), "5m", prompt=prompt)
        with pytest.raises(NotFound):
            await team.client.workflows.set_schedule(parse("carl@team"), "5m")
        assert await team.client.workflows.schedules(parse("@team")) == []

    team.inside(work)


def test_an_interval_keeps_its_rhythm_and_a_cron_line_the_user_s_clock() -> None:
    now = datetime(2026, 3, 27, 12, 0, 1, tzinfo=UTC)
    every = Schedule(agent="a", every=60.0, cron=None, prompt=None, due_at="2026-03-27T12:00:00.000Z")
    assert next_due(every, now, UTC) == datetime(2026, 3, 27, 12, 1, tzinfo=UTC)
    late = Schedule(agent="a", every=60.0, cron=None, prompt=None, due_at="2026-03-27T11:00:00.000Z")
    assert next_due(late, now, UTC) == datetime(2026, 3, 27, 12, 1, 1, tzinfo=UTC)
    cron = Schedule(agent="a", every=None, cron="0 9 * * *", prompt=None, due_at=None)
    berlin = ZoneInfo("Europe/Berlin")  # summer time begins on the 29th
    assert next_due(cron, now, berlin).astimezone(UTC) == datetime(2026, 3, 28, 8, 0, tzinfo=UTC)
    assert next_due(cron, datetime(2026, 3, 28, 12, tzinfo=UTC), berlin).astimezone(UTC) == datetime(
        2026, 3, 29, 7, tzinfo=UTC
    )


def test_the_zone_is_that_of_the_environment_if_there_is_such_a_zone() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert noon.astimezone(local_zone({"TZ": "Asia/Tokyo"})).hour == 21
    assert noon.astimezone(local_zone({"TZ": ":Asia/Tokyo"})).hour == 21
    for odd in ("", "No/Where", "../../etc/passwd", "\0", "/etc/passwd", "x" * 5000):
        assert noon.astimezone(local_zone({"TZ": odd})) == noon


@pytest.mark.parametrize("prompt", ["${{ params.news }}", "   "])
def test_a_prompt_that_says_nothing_is_a_plain_reminder(team: Team, prompt: str) -> None:
    each = {"ann": {"wakeup": "1h", "wakeup_prompt": prompt}}
    team.file(kickoff=None, agents="ann", each=each, params={"news": {"default": ""}})
    team.script(ann=[[send("woke"), say()]])

    async def work(team: Team) -> None:
        await start(team)
        await ring(team)
        await until(lambda: ("ann", "woke") in said(team))
        assert said(team)[0][1].startswith("Scheduled wake-up")

    team.inside(work)


def test_a_schedule_that_cannot_be_told_ends_no_team(team: Team) -> None:
    long = "${{ params.a }}" * 2
    each = {"ann": {"wakeup": "1h", "wakeup_prompt": long}}
    team.file(kickoff=None, each=each, params={"a": {"default": "x" * 600_000}})
    team.script(bob=[[send("here"), say()]])

    async def work(team: Team) -> None:
        began = await start(team)
        with team.hall.bus.listening(began.run, None) as events:
            await ring(team)
            async for event in events:
                if event.type == "trouble":
                    break
        assert "cannot wake ann" in event.data["message"]
        assert (await team.client.workflows.schedules(parse("ann@team")))[0].due_at > LONG_AGO
        await team.client.rooms.send(parse("bob@team"), "are you there?")
        await until(lambda: ("bob", "here") in said(team))

    team.inside(work)
