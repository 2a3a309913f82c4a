"""No wake-up is ever lost: whenever something is said, and whenever runs end, each message is handled once."""

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
from tests.room.desks import waiting
from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from guildhall.room.model import Message

MOMENTS = st.sampled_from([0.0, 0.0, 0.001, 0.004, 0.01])
SENDS = st.lists(st.tuples(MOMENTS, st.sampled_from(["ann", "bob", "all"])), max_size=8)
RUNS = st.lists(st.tuples(MOMENTS, st.sampled_from(["", "ann", "bob"]), st.booleans()), min_size=1, max_size=4)


def handled(team: Team) -> Counter[tuple[str, int]]:
    """How often each agent has handled each message."""
    done = [one for one in team.history() if one.op == "acknowledge"]
    return Counter((one.arguments["agent"], number) for one in done for number in one.result["messages"])


def expected(messages: list[Message]) -> set[tuple[str, int]]:
    return {(name, message.id) for message in messages for name in message.mentions if name != "person"}


def turns(runs: list[tuple[float, str, bool]]) -> list[list[Any]]:
    """Scripted runs: each takes its time, may say something to another, and may read its inbox meanwhile."""
    made: list[list[Any]] = []
    for number, (moment, to, reads) in enumerate(runs):
        answers: list[Any] = [send(f"@{to} number {number}")] if to else [call("no_action")]
        answers += [call("inbox_read")] if reads else []
        made.append([*answers, {"sleep": moment, "say": "done"}])
    return [*made, [say()]]


@pytest.mark.req("AW-6", "AW-17")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example takes its time: none is made smaller
)
@given(sends=SENDS, ann=RUNS, bob=RUNS)
def test_every_mention_is_handled_exactly_once(
    sends: list[tuple[float, str]],
    ann: list[tuple[float, str, bool]],
    bob: list[tuple[float, str, bool]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    team = Team.anywhere(tmp_path_factory.mktemp("team"))
    team.debounce = 0.0
    team.file(kickoff="@all begin", limits={"max_hops": 100, "max_repeats": 100, "max_rounds_without_progress": 100})
    team.script(ann=turns(ann), bob=turns(bob), repeat=True)

    async def work(team: Team) -> None:
        task = team.begun()
        await team.until(lambda: "live" in team.phases())
        for moment, to in sends:
            await asyncio.sleep(moment)
            with suppress(Conflict):  # it is over already
                await team.client.rooms.send(team.target(), f"@{to} from outside")
        run = await task
        while waiting(team.room):  # said when it was over already: the next one begins with it
            run = await team.run()
        assert run.status == "completed", run.error
        counted = handled(team)
        assert set(counted) == expected(team.room.list_messages())
        assert set(counted.values()) == {1}

    team.inside(work)


def test_a_mention_of_one_who_is_busy_is_served_as_soon_as_its_turn_ends(team: Team) -> None:
    team.file("ann bob", kickoff="@ann @bob begin")
    team.script(ann=[[{"sleep": 0.1, "say": "slow"}], [say("again")]], bob=[[send("@ann when you are done"), say()]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert [one.output for one in team.runs(run.id, "ann")] == ["slow", "again"]
        first, second = team.runs(run.id, "ann")
        assert second.created_at >= (first.ended_at or "")

    team.inside(work)


class Hurrying(SystemClock):
    """Sleeps only for a moment, whatever it is told."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.05))


@pytest.mark.req("AW-17")
def test_a_wake_up_that_got_lost_is_made_good_and_wakes_nobody_else(team: Team) -> None:
    team.file("ann bob cid")
    team.script(ann=[[{"sleep": 30, "say": "late"}]], bob=[[send("I was asked"), say()]])

    async def work(team: Team) -> None:
        team.hall.main.workflows.clock = Hurrying()
        task = team.begun()
        await team.until(lambda: any(event.data["phase"] == "live" for event in team.heard("workflow")))
        deaf = Rooms(team.hall.store, team.hall.clock).room(team.room.id)
        await deaf.send("@bob nobody hears this", Actor.person())
        await team.until(lambda: ("bob", "I was asked") in team.said())
        run = team.events[0].run
        assert team.runs(run, "cid") == []
        await team.client.runs.stop(run)
        await task

    team.inside(work)
