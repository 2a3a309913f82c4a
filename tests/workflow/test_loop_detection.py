"""Loop detection: messages of agents that only talk are held until the user answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.model import Answer
from tests.workflow.teams import Team, call, send, stop

if TYPE_CHECKING:
    from tests.conftest import Guild

HIGH_LIMITS = {"max_hops": 100, "max_repeats": 100, "max_rounds_without_progress": 100}


def thank_each_run(to: str, runs: int, more: tuple[dict[str, Any], ...] = ()) -> list[Any]:
    """Return runs that each thank another agent, with a different text each time."""
    return [[*more, send(f"@{to} thank you, {'really ' * number}so much"), stop()] for number in range(runs)]


def repeat_thanks(to: str, runs: int) -> list[Any]:
    words = ["@{} Thank you!", "@{} thank you", "@{}   THANK you.", "@{}, thank you!!"]
    return [[send(words[number % 4].format(to)), stop()] for number in range(runs)]


@pytest.mark.req("X-4", "AW-14")
def test_two_agents_that_thank_each_other_stop_at_max_hops_and_the_user_decides(team: Team, guild: Guild) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_hops": 4})
    team.write_script(ann=thank_each_run("bob", 20), bob=thank_each_run("ann", 20))
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 4, ran.err
    assert ran.json["status"] == "waiting"
    assert len(ran.json["runs"]) == 5
    (ask,) = ran.json["asks"]
    assert ask["kind"] == "loop"
    assert ask["title"] == "Possible loop in @team: ann and bob"
    assert "ann to bob: 3" in ask["body"]
    assert "bob to ann: 2" in ask["body"]
    assert "max_hops" in ask["body"]
    assert f"Answer needed ({ask['ask']})" in ran.err
    again = guild("answer", ask["ask"], "yes", "--output", "json")
    assert (again.code, len(again.json["runs"])) == (4, 10)
    (second,) = again.json["asks"]
    assert second["ask"] != ask["ask"]
    ended = guild("answer", second["ask"], "no", "--output", "json")
    assert (ended.code, ended.json["status"], len(ended.json["runs"])) == (0, "completed", 10)


@pytest.mark.req("X-4")
def test_an_agent_that_repeats_a_message_is_stopped(team: Team) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_repeats": 2})
    team.write_script(ann=repeat_thanks("bob", 9), bob=thank_each_run("ann", 9))

    async def work(team: Team) -> None:
        run = await team.run()
        assert (run.status, run.reason) == ("waiting", "ask")
        assert len(team.runs(run.id, "ann")) == 3  # the third message is held
        (ask,) = team.hall.asks.list_open()
        assert "max_repeats" in ask.question.body
        await team.client.asks.answer(ask.id, Answer(choice="yes"))
        run = await team.resume(run.id)
        assert run.status == "waiting"
        assert len(team.runs(run.id, "ann")) == 6  # three more

    team.run_in_hall(work)


@pytest.mark.req("X-4")
@pytest.mark.parametrize(
    ("progress", "stopped"),
    [
        (None, True),
        (call("channel_read"), True),
        (call("document_append", content="x"), False),
    ],
)
def test_rounds_without_progress_are_stopped(team: Team, progress: dict[str, Any] | None, *, stopped: bool) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_rounds_without_progress": 2})
    more = (progress,) if progress else ()
    team.write_script(ann=thank_each_run("bob", 4, more), bob=[*thank_each_run("ann", 3), [stop()], [stop()]])

    async def work(team: Team) -> None:
        run = await team.run()
        asks = team.hall.asks.list_open()
        assert run.status == ("waiting" if stopped else "completed")
        assert [ask.kind for ask in asks] == (["loop"] if stopped else [])
        if stopped:
            assert "max_rounds_without_progress" in asks[0].question.body

    team.run_in_hall(work)


def test_a_message_of_the_user_resets_the_counts(team: Team) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_repeats": 1}, agents="ann bob")
    team.write_script(ann=repeat_thanks("bob", 9), bob=[[stop()]] * 9)

    async def work(team: Team) -> None:
        for _ in range(3):
            assert (await team.run()).status == "completed"

    team.run_in_hall(work)


def test_a_loop_is_asked_about_inline_at_a_terminal(team: Team) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_hops": 2})
    team.write_script(ann=thank_each_run("bob", 9), bob=thank_each_run("ann", 9))

    async def work(team: Team) -> None:
        answers = iter(["yes", "no"])
        stream = team.client.workflows.run(*team.start_arguments(), team.frame(interactive=True))
        async for event in stream:
            team.events.append(event)
            if event.type == "ask_opened":
                await team.client.asks.answer(event.data["ask"]["ask"], Answer(choice=next(answers)))
        assert next(answers, None) is None
        run = team.hall.history.get(team.events[0].run)
        assert (run.status, len(team.runs(run.id))) == ("completed", 6)
        assert ("system", "The user ended this exchange. Not delivered: #7") in team.messages()
        assert [one.status for one in team.hall.asks.list_of_run(run.id)] == ["applied", "applied"]

    team.run_in_hall(work)


def test_a_held_message_is_still_unread_if_it_is_released_late(team: Team) -> None:
    """Answer the ask while the addressee works on a newer message."""
    team.debounce = 0.2
    team.write_workflow(limits={**HIGH_LIMITS, "max_hops": 1})
    slow = [{"expect": "#4 from person", **call("status_set", task="slow")}, {"sleep": 0.2, "say": "done"}]
    team.write_script(
        ann=[[send("@bob one"), stop()], slow, [{"expect": "1 unread(?s:.*)#3 from bob", **stop()}]],
        bob=[[send("@ann back"), stop()]],
    )

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(lambda: team.events_of("ask_opened"))
        await team.client.rooms.send(team.target("ann"), "hello")
        await team.wait_until(lambda: team.events_of("status"))
        (ask,) = team.hall.asks.list_open()
        await team.client.asks.answer(ask.id, Answer(choice="yes"))
        run = await task
        assert run.status == "completed"
        assert [one.output for one in team.runs(run.id, "ann")] == [None, "done", None]

    team.run_in_hall(work)


def test_messages_held_in_a_stopped_generation_do_not_affect_the_next_one(team: Team) -> None:
    team.write_workflow(limits={**HIGH_LIMITS, "max_hops": 2})
    team.write_script(ann=thank_each_run("bob", 9), bob=thank_each_run("ann", 9))

    async def work(team: Team) -> None:
        first = await team.run()
        assert (first.status, first.reason) == ("waiting", "ask")
        await team.client.runs.stop(first.id)
        team.write_script(ann=[[stop()]])
        second = await team.run()
        assert (second.status, second.error) == ("completed", None)
        assert team.hall.asks.list_open() == []
        assert (await team.client.runs.replay(second.id, team.frame())).matches

    team.run_in_hall(work)
