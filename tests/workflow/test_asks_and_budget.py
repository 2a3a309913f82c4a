"""Asks of agents and the budget of a team: one agent waits, the others continue, an answer resumes only that agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.model import Answer
from tests.workflow.teams import Team, call, send, stop

if TYPE_CHECKING:
    from tests.conftest import Guild

APPROVAL_RULE = {"tool_rules": {"document_append": {"approval_required": True}}}
APPEND_RUN: list[Any] = [call("document_append", content="x"), stop()]


@pytest.mark.req("X-5", "AW-14")
def test_the_other_agents_continue_while_one_waits_and_an_answer_resumes_it(team: Team, guild: Guild) -> None:
    team.write_workflow("ann bob cid", each={"ann": APPROVAL_RULE, "cid": APPROVAL_RULE}, kickoff="@all begin")
    team.write_script(ann=[APPEND_RUN], bob=[[send("I am done"), stop()]], cid=[APPEND_RUN])
    ran = guild("run", "team.yaml", "--output", "json")
    assert (ran.code, ran.json["status"]) == (4, "waiting"), ran.err
    statuses = {one["worker"]: one["status"] for one in ran.json["runs"]}
    assert statuses == {"ann": "waiting", "bob": "completed", "cid": "waiting"}
    asks = {ask["run"]: ask["ask"] for ask in ran.json["asks"]}
    by_name = {one["worker"]: asks.get(one["run"]) for one in ran.json["runs"]}
    first = guild("answer", str(by_name["ann"]), "yes", "--output", "json")
    assert first.code == 4, first.err
    assert {one["worker"]: one["status"] for one in first.json["runs"]} == {**statuses, "ann": "completed"}
    last = guild("answer", str(by_name["cid"]), "no", "--output", "json")
    assert (last.code, last.json["status"]) == (0, "completed"), last.err
    assert (team.project / ".workflow/team/main/documents/notes.md").read_text() == "x"


@pytest.mark.req("X-5")
def test_an_answer_resumes_only_the_agent_that_asked_in_a_running_team(team: Team) -> None:
    team.write_workflow("ann bob cid", each={"ann": APPROVAL_RULE, "cid": APPROVAL_RULE}, kickoff="@all begin")
    team.write_script(ann=[APPEND_RUN], bob=[[{"sleep": 5, "say": "late"}]], cid=[APPEND_RUN])

    async def work(team: Team) -> None:
        task = team.start_task()
        await team.wait_until(
            lambda: len([one for one in team.events_of("run_ended") if one.data["status"] == "waiting"]) == 2
        )
        run = team.events[0].run
        asks = {ask.run: ask for ask in team.hall.asks.list_open()}
        ann = team.agents(run)["ann"].run
        await team.client.asks.answer(asks[ann].id, Answer(choice="yes"))
        await team.wait_until(lambda: team.events_of("document"))
        await team.wait_until(lambda: team.events_of("run_ended")[-1].data["status"] == "completed")
        assert {name: state.status for name, state in team.agents(run).items()} == {
            "ann": "idle",
            "bob": "running",
            "cid": "waiting",
        }
        await team.client.runs.stop(run)
        await task

    team.run_in_hall(work)


def test_an_ask_of_an_agent_is_shown_inline_at_a_terminal(team: Team) -> None:
    team.write_workflow(each={"ann": APPROVAL_RULE})
    team.write_script(ann=[APPEND_RUN])

    async def work(team: Team) -> None:
        async for event in team.client.workflows.run(*team.start_arguments(), team.frame(interactive=True)):
            team.events.append(event)
            if event.type == "ask_opened":
                await team.client.asks.answer(event.data["ask"]["ask"], Answer(choice="yes"))
        assert team.events[-1].data["status"] == "completed"
        assert len(team.events_of("ask_opened")) == 1
        assert not [event for event in team.events_of("run_ended") if event.data["status"] == "waiting"]

    team.run_in_hall(work)


def test_resume_at_a_terminal_shows_open_asks_again(team: Team) -> None:
    team.write_workflow(each={"ann": APPROVAL_RULE})
    team.write_script(ann=[APPEND_RUN])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "waiting"
        assert (await team.resume(run.id)).status == "waiting"
        async for event in team.client.runs.resume(run.id, team.frame(interactive=True)):
            if event.type == "ask_opened":
                await team.client.asks.answer(event.data["ask"]["ask"], Answer(choice="yes"))
        assert team.hall.history.get(run.id).status == "completed"

    team.run_in_hall(work)


def test_stopping_a_waiting_workflow_withdraws_its_asks(team: Team) -> None:
    team.write_workflow(each={"ann": APPROVAL_RULE})
    team.write_script(ann=[APPEND_RUN])

    async def work(team: Team) -> None:
        run = await team.run()
        await team.client.runs.stop(run.id)
        assert [ask.status for ask in team.hall.asks.list_of_run(run.id)] == ["withdrawn"]
        assert {one.status for one in team.runs(run.id)} == {"cancelled"}

    team.run_in_hall(work)


def test_an_agent_continues_after_the_timeout_of_its_approval(team: Team) -> None:
    rule = {"tool_rules": {"document_append": {"approval_required": True, "timeout": 0.3}}}
    team.write_workflow(each={"ann": rule}, kickoff="@all begin")
    timed_out = {"expect": "Approval timed out", "say": "a pity"}
    team.write_script(ann=[[APPEND_RUN[0], timed_out]], bob=[[{"sleep": 0.6, "say": "done"}]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        assert team.runs(run.id, "ann")[0].output == "a pity"

    team.run_in_hall(work)


# The budget of a team


PRICE = {"input": 0.0, "output": 10_000.0}  # one cent for each output token


def priced_answer(cents: int) -> dict[str, Any]:
    return {"say": "x", "usage": {"input": 1, "output": cents}}


def read_cost(team: Team, run: str) -> float:
    return round(team.hall.history.get(run).cost_usd or 0.0, 2)


@pytest.mark.req("X-3")
def test_five_parallel_agents_never_exceed_the_team_budget_and_ask_once(team: Team, guild: Guild) -> None:
    names = "ann bob cid dan eve"
    team.write_workflow(names, kickoff="@all begin", budget=1.5)
    # Each agent needs two answers of 40 cents. The smallest reservation is 64 cents.
    busy = [{**call("channel_read"), "sleep": 0.05, "usage": {"input": 1, "output": 40}}, priced_answer(40)]
    team.write_script(price=PRICE, **{name: [busy] for name in names.split()})
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 4, ran.err
    (ask,) = ran.json["asks"]
    assert (ask["kind"], ask["run"]) == ("limit", ran.json["run"])
    assert 0.4 <= ran.json["cost_usd"] <= 1.5
    assert any(one["status"] == "waiting" for one in ran.json["runs"])
    over = ran.json["cost_usd"]
    for _ in range(10):
        ran = guild("answer", ask["ask"], "1.5", "--output", "json")
        if ran.code == 0:
            break
        assert ran.json["cost_usd"] >= over
        (ask,) = ran.json["asks"]
    assert (ran.code, ran.json["cost_usd"]) == (0, 4.0), ran.err


@pytest.mark.req("X-3")
def test_a_workflow_ends_at_its_budget_and_resumes_with_a_larger_one(team: Team) -> None:
    team.write_workflow(kickoff="@all begin", budget=1.0)
    team.write_script(price=PRICE, ann=[[priced_answer(60)]], bob=[[priced_answer(60)]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "waiting"
        (ask,) = team.hall.asks.list_open()
        await team.client.asks.answer(ask.id, Answer(choice="no"))
        run = await team.resume(run.id)
        assert (run.status, run.reason, run.error["limit"]) == ("failed", "limit", "budget")
        assert f"guild resume {run.id} --budget" in run.error["hint"]
        assert read_cost(team, run.id) == 0.6
        run = await team.resume(run.id, budget=3.0)
        assert (run.status, read_cost(team, run.id)) == ("completed", 1.2)

    team.run_in_hall(work)


@pytest.mark.req("X-3")
@pytest.mark.parametrize("where", ["file", "command"])
def test_a_budget_with_an_unpriced_model_is_refused_before_the_workflow_starts(
    team: Team, guild: Guild, where: str
) -> None:
    team.write_workflow(each={"bob": {"model": "script:free.yaml"}}, **({"budget": 5.0} if where == "file" else {}))
    team.write_script(price=PRICE, ann=[[stop()]])
    (team.project / "free.yaml").write_text(json.dumps({"workers": {}}))
    ran = guild("run", "team.yaml", *(["--budget", "5"] if where == "command" else []))
    assert ran.code == 2, ran.err
    assert "agent bob: the model script:free.yaml has no known price" in ran.err

    async def look(team: Team) -> None:
        assert team.hall.history.recent() == []

    team.run_in_hall(look)


def test_a_workflow_is_resumed_by_its_target_and_prints_its_plan(team: Team, guild: Guild) -> None:
    team.write_workflow(each={"ann": APPROVAL_RULE}, budget=2)
    team.write_script(ann=[APPEND_RUN], price={"input": 1.0, "output": 1.0})
    assert guild("run", "team.yaml").code == 4
    again = guild("resume", "@team")
    assert again.code == 4, again.err
    line = again.err.splitlines()[0]
    assert ": agents ann, bob; models script:" in line
    assert "2.00 USD" in line
    replayed = guild("replay", "@team")
    assert replayed.code == 0, replayed.err
    for verb in ("resume", "replay", "script"):
        one = guild(verb, "ann@team")
        assert (one.code, "Use @team" in one.err) == (2, True), one.err
        assert guild(verb, "@nowhere").code == 3
