"""An agent that waits for a person: the others go on, and the answer wakes exactly it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.model import Answer
from tests.workflow.teams import Team, call, say, send

if TYPE_CHECKING:
    from tests.conftest import Guild

ASKS = {"tool_rules": {"document_append": {"approval_required": True}}}
WRITES: list[Any] = [call("document_append", content="x"), say()]


@pytest.mark.req("X-5", "AW-14")
def test_while_one_waits_the_others_go_on_and_an_answer_goes_on_with_it(team: Team, guild: Guild) -> None:
    team.file("ann bob cid", each={"ann": ASKS, "cid": ASKS}, kickoff="@all begin")
    team.script(ann=[WRITES], bob=[[send("I am done"), say()]], cid=[WRITES])
    ran = guild("run", "team.yaml", "--output", "json")
    assert (ran.code, ran.json["status"]) == (4, "waiting"), ran.err
    stood = {one["worker"]: one["status"] for one in ran.json["runs"]}
    assert stood == {"ann": "waiting", "bob": "completed", "cid": "waiting"}
    asks = {ask["run"]: ask["ask"] for ask in ran.json["asks"]}
    by_name = {one["worker"]: asks.get(one["run"]) for one in ran.json["runs"]}
    first = guild("answer", str(by_name["ann"]), "yes", "--output", "json")
    assert first.code == 4, first.err
    assert {one["worker"]: one["status"] for one in first.json["runs"]} == {**stood, "ann": "completed"}
    last = guild("answer", str(by_name["cid"]), "no", "--output", "json")
    assert (last.code, last.json["status"]) == (0, "completed"), last.err
    assert (team.project / ".workflow/team/main/documents/notes.md").read_text() == "x"


@pytest.mark.req("X-5")
def test_the_answer_wakes_exactly_the_one_that_waits_while_the_team_lives(team: Team) -> None:
    team.file("ann bob cid", each={"ann": ASKS, "cid": ASKS}, kickoff="@all begin")
    team.script(ann=[WRITES], bob=[[{"sleep": 5, "say": "late"}]], cid=[WRITES])

    async def work(team: Team) -> None:
        task = team.begun()
        await team.until(lambda: len([one for one in team.heard("run_ended") if one.data["status"] == "waiting"]) == 2)
        run = team.events[0].run
        asks = {ask.run: ask for ask in team.hall.asks.open()}
        ann = team.agents(run)["ann"].run
        await team.client.asks.answer(asks[ann].id, Answer(choice="yes"))
        await team.until(lambda: team.heard("document"))
        await team.until(lambda: team.heard("run_ended")[-1].data["status"] == "completed")
        assert {name: state.status for name, state in team.agents(run).items()} == {
            "ann": "idle",
            "bob": "running",
            "cid": "waiting",
        }
        await team.client.runs.stop(run)
        await task

    team.inside(work)


def test_at_a_terminal_an_agents_question_is_asked_inline(team: Team) -> None:
    team.file(each={"ann": ASKS})
    team.script(ann=[WRITES])

    async def work(team: Team) -> None:
        async for event in team.client.workflows.run(*team.started(), team.frame(interactive=True)):
            team.events.append(event)
            if event.type == "ask_opened":
                await team.client.asks.answer(event.data["ask"]["ask"], Answer(choice="yes"))
        assert team.events[-1].data["status"] == "completed"
        assert len(team.heard("ask_opened")) == 1
        assert not [event for event in team.heard("run_ended") if event.data["status"] == "waiting"]

    team.inside(work)


def test_whoever_resumes_at_a_terminal_is_asked_again_what_is_open(team: Team) -> None:
    team.file(each={"ann": ASKS})
    team.script(ann=[WRITES])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "waiting"
        assert (await team.resume(run.id)).status == "waiting"
        async for event in team.client.runs.resume(run.id, team.frame(interactive=True)):
            if event.type == "ask_opened":
                await team.client.asks.answer(event.data["ask"]["ask"], Answer(choice="yes"))
        assert team.hall.history.get(run.id).status == "completed"

    team.inside(work)


def test_to_stop_a_workflow_that_waits_withdraws_what_it_asks(team: Team) -> None:
    team.file(each={"ann": ASKS})
    team.script(ann=[WRITES])

    async def work(team: Team) -> None:
        run = await team.run()
        await team.client.runs.stop(run.id)
        assert [ask.status for ask in team.hall.asks.of_run(run.id)] == ["withdrawn"]
        assert {one.status for one in team.runs(run.id)} == {"cancelled"}

    team.inside(work)


def test_an_approval_whose_time_is_over_lets_the_agent_go_on(team: Team) -> None:
    rule = {"tool_rules": {"document_append": {"approval_required": True, "timeout": 0.3}}}
    team.file(each={"ann": rule}, kickoff="@all begin")
    told = {"expect": "Approval timed out", "say": "a pity"}
    team.script(ann=[[WRITES[0], told]], bob=[[{"sleep": 0.6, "say": "done"}]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "completed", run.error
        assert team.runs(run.id, "ann")[0].output == "a pity"

    team.inside(work)


# One budget for all


PRICE = {"input": 0.0, "output": 10_000.0}  # a cent a token of answer


def dear(cents: int) -> dict[str, Any]:
    return {"say": "x", "usage": {"input": 1, "output": cents}}


def spent(team: Team, run: str) -> float:
    return round(team.hall.history.get(run).cost_usd or 0.0, 2)


@pytest.mark.req("X-3")
def test_five_side_by_side_never_exceed_the_teams_budget_and_ask_once(team: Team, guild: Guild) -> None:
    names = "ann bob cid dan eve"
    team.file(names, kickoff="@all begin", budget=1.5)
    # Each wants two answers of 40 cents; the least that is reserved for one is 64.
    busy = [{**call("channel_read"), "sleep": 0.05, "usage": {"input": 1, "output": 40}}, dear(40)]
    team.script(price=PRICE, **{name: [busy] for name in names.split()})
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
def test_no_more_money_ends_it_at_the_limit_and_more_goes_on(team: Team) -> None:
    team.file(kickoff="@all begin", budget=1.0)
    team.script(price=PRICE, ann=[[dear(60)]], bob=[[dear(60)]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "waiting"
        (ask,) = team.hall.asks.open()
        await team.client.asks.answer(ask.id, Answer(choice="no"))
        run = await team.resume(run.id)
        assert (run.status, run.reason, run.error["limit"]) == ("failed", "limit", "budget")
        assert f"guild resume {run.id} --budget" in run.error["hint"]
        assert spent(team, run.id) == 0.6
        run = await team.resume(run.id, budget=3.0)
        assert (run.status, spent(team, run.id)) == ("completed", 1.2)

    team.inside(work)


@pytest.mark.req("X-3")
@pytest.mark.parametrize("where", ["file", "command"])
def test_a_budget_that_cannot_be_kept_is_refused_before_anything_runs(team: Team, guild: Guild, where: str) -> None:
    team.file(each={"bob": {"model": "script:free.yaml"}}, **({"budget": 5.0} if where == "file" else {}))
    team.script(price=PRICE, ann=[[say()]])
    (team.project / "free.yaml").write_text(json.dumps({"workers": {}}))
    ran = guild("run", "team.yaml", *(["--budget", "5"] if where == "command" else []))
    assert ran.code == 2, ran.err
    assert "agent bob: the model script:free.yaml has no known price" in ran.err

    async def look(team: Team) -> None:
        assert team.hall.history.recent() == []

    team.inside(look)


def test_a_workflow_is_gone_on_with_by_its_target_and_says_what_could_happen(team: Team, guild: Guild) -> None:
    team.file(each={"ann": ASKS}, budget=2)
    team.script(ann=[WRITES], price={"input": 1.0, "output": 1.0})
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
        assert (one.code, "Name the whole: @team" in one.err) == (2, True), one.err
        assert guild(verb, "@nowhere").code == 3
