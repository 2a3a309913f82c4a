"""Delivery of mentions: every mention is handled exactly once, also if it is sent while runs end."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from guildhall.core.clock import SystemClock
from guildhall.core.errors import Conflict
from guildhall.room.model import Actor
from guildhall.room.service import Rooms
from tests.room.tool_calls import count_unread
from tests.workflow.teams import Team, call, say, send, stop

if TYPE_CHECKING:
    from guildhall.room.model import Message

DELAYS_S = st.sampled_from([0.0, 0.0, 0.001, 0.004, 0.01])
SENDS = st.lists(st.tuples(DELAYS_S, st.sampled_from(["ann", "bob", "all"])), max_size=8)
RUNS = st.lists(st.tuples(DELAYS_S, st.sampled_from(["", "ann", "bob"]), st.booleans()), min_size=1, max_size=4)


def count_handled(team: Team) -> Counter[tuple[str, int]]:
    """Return how often each agent has handled each message."""
    done = [one for one in team.room_log() if one.op == "acknowledge"]
    return Counter((one.arguments["agent"], number) for one in done for number in one.result["messages"])


def list_mentions(messages: list[Message]) -> set[tuple[str, int]]:
    return {(name, message.id) for message in messages for name in message.mentions if name != "person"}


def script_runs(runs: list[tuple[float, str, bool]]) -> list[list[Any]]:
    """Return scripted runs that sleep, and may send a message or read the inbox."""
    made: list[list[Any]] = []
    for number, (moment, to, reads) in enumerate(runs):
        answers: list[Any] = [send(f"@{to} number {number}")] if to else [call("no_action")]
        answers += [call("inbox_read")] if reads else []
        made.append([*answers, {"sleep": moment, "say": "done"}])
    return [*made, [stop()]]


@pytest.mark.req("AW-6", "AW-17")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # examples are slow, so they are not shrunk
)
@given(sends=SENDS, ann=RUNS, bob=RUNS)
def test_every_mention_is_handled_exactly_once(
    sends: list[tuple[float, str]],
    ann: list[tuple[float, str, bool]],
    bob: list[tuple[float, str, bool]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    team = Team.create_in(tmp_path_factory.mktemp("team"))
    team.debounce = 0.0
    team.write_workflow(
        kickoff="@all begin", limits={"max_hops": 100, "max_repeats": 100, "max_rounds_without_progress": 100}
    )
    team.write_script(ann=script_runs(ann), bob=script_runs(bob), repeat=True)

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(lambda: "live" in team.phases())
        for moment, to in sends:
            await asyncio.sleep(moment)
            with suppress(Conflict):  # the workflow has ended
                await team.client.rooms.send(team.target(), f"@{to} from outside")
        run = await task
        while count_unread(team.room):  # sent after the end, so the next generation handles it
            run = await team.run()
        assert run.status == "completed", run.error
        counted = count_handled(team)
        assert set(counted) == list_mentions(team.room.list_messages())
        assert set(counted.values()) == {1}

    team.run_in_hall(work)


def test_a_mention_of_a_busy_agent_is_handled_after_its_run(team: Team) -> None:
    team.write_workflow("ann bob", kickoff="@ann @bob begin")
    team.write_script(
        ann=[[{"sleep": 0.1, "say": "slow"}], [say("again")]], bob=[[send("@ann when you are done"), stop()]]
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert [one.output for one in team.runs(run.id, "ann")][:2] == ["slow", "again"]
        first, second = team.runs(run.id, "ann")[:2]
        assert second.created_at >= (first.ended_at or "")

    team.run_in_hall(work)


class HurryingClock(SystemClock):
    """A clock that sleeps for at most 50 ms."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.05))


@pytest.mark.req("AW-17")
def test_a_lost_wake_up_is_repeated_and_starts_no_other_agent(team: Team) -> None:
    team.write_workflow("ann bob cid")
    team.write_script(ann=[[{"sleep": 30, "say": "late"}]], bob=[[send("I was asked"), stop()]])

    async def work(team: Team) -> None:
        team.hall.main.workflows.clock = HurryingClock()
        task = team.start_task()
        await team.wait_until(lambda: any(event.data["phase"] == "live" for event in team.events_of("workflow")))
        silent_room = Rooms(team.hall.store, team.hall.clock).room(team.room.id)
        await silent_room.send("@bob nobody hears this", Actor.person())
        await team.wait_until(lambda: ("bob", "I was asked") in team.messages())
        run = team.events[0].run
        assert team.runs(run, "cid") == []
        await team.client.runs.stop(run)
        await task

    team.run_in_hall(work)
