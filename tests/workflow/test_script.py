"""`guild script` and `guild test` of workflows: a recorded run passes as a test, also with parallel agents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core import yaml
from guildhall.core.errors import GuildError
from guildhall.core.paths import Home
from guildhall.models.scripted.source import Script
from guildhall.models.scripted.test_section import Case, Reply, SetupCommand, UserMessage
from guildhall.room.model import Actor
from guildhall.runs.model import Answer
from tests.workflow.teams import Team, call, say, send, stop
from tests.workflow.test_replay import run_busy_team

if TYPE_CHECKING:
    from guildhall.hall.client.model import TestResult
    from tests.conftest import Guild


async def write_script_of(team: Team, run: str, name: str = "tests/team.yaml") -> Path:
    """Write the script of a run to a file, and return its path."""
    path = team.project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(await team.client.runs.script(run))
    return path


async def run_test(team: Team, path: Path) -> TestResult:
    (found,) = [one async for one in team.client.runs.test([path])]
    return found


def describe_deviations(found: TestResult) -> str:
    return "\n".join(one.text for one in found.deviations)


@pytest.mark.req("X-17", "X-1")
def test_a_recorded_run_of_parallel_agents_passes_every_time(team: Team) -> None:
    trace = team.project.parent / "ran"
    run = run_busy_team(team, context={}, setup=[{"shell": f"echo x >> {trace}; cat {trace}", "as": "out"}])

    async def look(team: Team) -> None:
        path = await write_script_of(team, run)
        script = yaml.validate(Script, yaml.read(path))
        assert script.test is not None
        assert script.test.workflow == "team.yaml"
        assert [step.prints for step in script.test.setup] == ["x"]
        assert script.test.order[:1] == [f"election.{_first_voter(script)}/1 m1.1 proposal_vote"]
        assert "team" not in script.workers
        for _ in range(4):
            found = await run_test(team, path)
            assert found.passed, describe_deviations(found)
        assert len(team.hall.history.recent()) == 1

    team.run_in_hall(look)
    assert trace.read_text() == "x\n"


def _first_voter(script: Script) -> str:
    assert script.test is not None
    return str(script.test.order[0]).split("/")[0].removeprefix("election.")


@pytest.mark.req("X-17")
def test_a_difference_is_shown_and_can_be_recorded(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann bob", setup=[{"shell": "echo 1", "as": "one"}], params={"what": {"default": "x"}})
    team.write_script(ann=[[send("@bob go"), stop()]], bob=[[send("@person it is done"), stop()]])
    assert guild("trust", "--yes", "team.yaml").code == 0
    run = guild("run", "team.yaml", "--output", "json").json["run"]
    assert guild("script", run, "--out", "tests/team.yaml").code == 0
    assert guild("test").code == 0, guild("test").out

    path = team.project / "team.yaml"
    text = path.read_text().replace("You are at work.", "You are at WORK.").replace("echo 1", "echo 2")
    path.write_text(text.replace("@ann begin", "@ann begin ${{ params.what }}"))
    failed = guild("test")
    assert failed.code == 1
    for line in (
        "setup step 1: command changed",
        "+echo 2",
        "bob: system prompt changed",
        "+You are at WORK.",
        "+@ann begin x",
    ):
        assert line in failed.out
    assert guild("test", "--update").code == 0
    assert guild("test").code == 0

    path.write_text(text.replace("@ann begin", "@bob begin"))  # other agents start now, and no agent waits forever
    failed = guild("test")
    assert failed.code == 1
    assert "ann: number of runs changed: 1 recorded, now 0" in failed.out


@pytest.mark.req("X-17")
def test_a_team_with_memory_becomes_a_test_that_passes(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann bob")
    read = call("memory_read", scope="global", key="note")
    team.write_script(ann=[[send("@bob go"), read, stop()]], bob=[[stop()]])
    assert guild("memory", "write", "note", "Use metres.", "--scope", "global").code == 0
    run = guild("run", "team.yaml", "--output", "json").json["run"]
    assert guild("script", run, "--out", "tests/team.yaml").code == 0
    tested = guild("test")
    assert tested.code == 0, tested.out


def test_a_message_of_the_user_is_sent_again(team: Team) -> None:
    team.write_workflow(agents="ann bob")
    team.write_script(
        ann=[[send("@bob go"), {"sleep": 0.2, "say": "done"}], [call("inbox_read"), stop()]],
        bob=[[send("@ann here"), stop()]],
    )

    async def work(team: Team) -> None:
        running = asyncio.create_task(team.run())
        async with asyncio.timeout(5):
            while (room := team.room) is None or len(room.list_messages()) < 2:  # noqa: ASYNC110 - it has no event for this
                await asyncio.sleep(0.01)
        await room.send("look at this", Actor.person(), to=["ann"])
        run = await running
        path = await write_script_of(team, run.id)
        assert "person: look at this" in path.read_text()
        found = await run_test(team, path)
        assert found.passed, describe_deviations(found)
        path.write_text(path.read_text().replace("person: look at this", "person: look at that"))
        assert "+look at that" in describe_deviations(await run_test(team, path))

    team.run_in_hall(work)


def test_a_failed_run_fails_again_with_the_documents_of_its_start(team: Team) -> None:
    documents = team.project / ".workflow/team/main/documents"
    documents.mkdir(parents=True)
    (documents / "notes.md").write_text("before\n")
    team.write_workflow(agents="ann bob")
    append = call("document_append", content="after")
    team.write_script(
        ann=[[call("document_read"), append, send("@bob go"), stop()], [stop()]], bob=[[{"fail": 400}]] * 3
    )

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "failed"
        path = await write_script_of(team, run.id)
        found = await run_test(team, path)
        assert found.passed, describe_deviations(found)
        assert (documents / "notes.md").read_text() == "before\nafter"

    team.run_in_hall(work)


def test_an_agent_fails_at_the_recorded_position(team: Team) -> None:
    team.write_workflow(agents="ann bob")
    talk = [{"sleep": 0.1, **send("one")}, *(send(text) for text in ("two", "three", "four"))]
    tries = [[send("@person a try"), {"fail": 400}]] * 2
    team.write_script(ann=[[send("@bob go"), *talk, stop()], [stop()]], bob=[*tries, [{"sleep": 0.2, "fail": 400}]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "failed"
        path = await write_script_of(team, run.id)
        for _ in range(3):
            found = await run_test(team, path)
            assert found.passed, describe_deviations(found)

    team.run_in_hall(work)


def test_a_failed_setup_fails_again_without_being_executed(team: Team, guild: Guild) -> None:
    trace = team.project.parent / "ran"
    team.write_workflow(agents="ann", setup=[{"shell": f"echo x >> {trace}; echo bad; exit 3"}])
    team.write_script(ann=[[stop()]])
    guild("trust", "--yes", "team.yaml")
    failed = guild("run", "team.yaml", "--output", "json")
    assert failed.code == 1
    assert guild("script", failed.json["run"], "--out", "tests/team.yaml").code == 0
    assert guild("test").code == 0, guild("test").out
    assert trace.read_text() == "x\n"


def test_a_second_generation_is_a_script_without_a_test(team: Team) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[[stop()]])

    async def work(team: Team) -> None:
        await team.run()
        text = await team.client.runs.script((await team.run()).id)
        assert "the test, because its room has earlier messages" in text
        assert "\ntest:" not in text

    team.run_in_hall(work)


def test_a_run_of_a_team_is_not_forked(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[[stop()]])
    shown = guild("run", "team.yaml", "--output", "json").json
    for run in (shown["run"], next(one["run"] for one in shown["runs"] if one["worker"] == "ann")):
        forked = guild("fork", run, "--at", "1")
        assert forked.code != 0
        assert "cannot fork" in forked.err
        assert f"guild script {shown['run']}" in forked.err


def test_the_example_of_the_documentation_passes(team: Team) -> None:
    page = (Path(__file__).parents[2] / "docs/testing-workers.md").read_text()
    example = page.partition("\n## Workflows\n")[2].partition("```yaml\n")[2].partition("```")[0]
    (team.project / "tests.yaml").write_text(example)
    diff = "gh pr diff ${{ params.pr }}".replace("${", '"${').replace("}}", '}}"')
    team.write_workflow(
        name="review.yaml",
        agents="reviewer coder",
        params={"pr": {}},
        setup=[{"shell": diff, "as": "diff"}],
        kickoff="@reviewer look at ${{ diff }}",
    )

    async def work(team: Team) -> None:
        found = await run_test(team, team.project / "tests.yaml")
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)
    for field in (*Case.model_fields, *SetupCommand.model_fields, *UserMessage.model_fields, *Reply.model_fields):
        assert f"`{field}" in page or f"{field}:" in page, field


def test_recorded_answers_to_loops_are_given_again(team: Team) -> None:
    team.write_workflow(agents="ann bob", limits={"max_hops": 2})
    ping = [[send("@bob ping 1"), stop()], [send("@bob ping 2"), stop()], [stop()]]
    pong = [[send("@ann pong 1"), stop()], [send("@ann pong 2"), stop()], [stop()]]
    team.write_script(ann=ping, bob=pong)

    async def work(team: Team) -> None:
        run = await team.run()
        while run.status == "waiting":
            (ask,) = team.hall.asks.list_open()
            assert ask.kind == "loop"
            await team.client.asks.answer(ask.id, Answer(choice="yes"))
            run = await team.resume(run.id)
        assert run.status == "completed"
        assert (await team.client.runs.replay(run.id, team.frame())).difference is None
        path = await write_script_of(team, run.id)
        assert "loop: true" in path.read_text()
        found = await run_test(team, path)
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)


def test_a_team_that_failed_with_an_open_loop_ask_fails_again(team: Team) -> None:
    team.write_workflow(agents="ann bob", limits={"max_hops": 1})
    team.write_script(ann=[[send("@bob go"), stop()]], bob=[[{"fail": 400}]] * 3)

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.status == "failed"
        path = await write_script_of(team, run.id)
        assert "answer: timeout" in path.read_text()
        found = await run_test(team, path)
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)


def test_an_agent_may_have_the_name_of_its_workflow(team: Team) -> None:
    team.write_workflow(agents="ann bob", name="ann.yaml")
    team.write_script(ann=[[send("@bob go"), stop()]], bob=[[stop()]])

    async def work(team: Team) -> None:
        run = await team.run("ann.yaml")
        assert run.status == "completed"
        assert (await team.client.runs.replay(run.id, team.frame())).difference is None
        found = await run_test(team, await write_script_of(team, run.id))
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)


@pytest.mark.req("X-18")
def test_a_test_whose_agents_run_programs_must_be_trusted(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann", each={"ann": {"tools": ["Bash"], "tool_rules": {"proc.exec": {"allowed": True}}}})
    team.write_script(ann=[[call("Bash", command="echo hello"), stop()]])
    run = guild("run", "team.yaml", "--approve-all", "--output", "json")
    assert run.code == 0, run.err
    text = guild("script", run.json["run"]).out
    (team.project / "tests").mkdir()
    (team.project / "tests/copied.yaml").write_text(text)
    refused = guild("test")
    assert refused.code == 1
    assert "the test executes programs and is not trusted" in refused.out
    (team.project / "tests/copied.yaml").unlink()
    assert guild("script", run.json["run"], "--out", "tests/own.yaml").code == 0
    tested = guild("test")
    assert tested.code == 0, tested.out


def test_a_test_does_not_write_outside_of_its_copy(team: Team, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    team.write_workflow(agents="ann", each={"ann": {"workdir": str(outside), "tools": ["Write"]}})
    team.write_script(ann=[[call("Write", file_path="x.txt", content="x"), stop()]])

    async def work(team: Team) -> None:
        path = team.project / "tests.yaml"
        path.write_text(json.dumps({"test": {"workflow": "team.yaml"}, "workers": {"ann": [[stop()]]}}))
        assert "outside of the project" in describe_deviations(await run_test(team, path))

    team.run_in_hall(work)
    assert list(outside.iterdir()) == []


def test_agents_without_a_room_are_replayed_and_tested(team: Team) -> None:
    team.write_workflow(agents="ann bob", context=False, kickoff="@ann @bob look")
    team.write_script(ann=[[say("one")]], bob=[[say("two")]])

    async def work(team: Team) -> None:
        run = await team.run()
        assert run.output == "ann:\none\n\nbob:\ntwo"
        assert (await team.client.runs.replay(run.id, team.frame())).difference is None
        found = await run_test(team, await write_script_of(team, run.id))
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"workflow": "team.yaml", "worker": "ann"}, "set either `worker`"),
    ({"worker": "ann"}, "`input` is missing"),
    ({}, "`worker` is missing"),
    ({"workflow": "../team.yaml"}, "not a path inside the project"),
    ({"workflow": "/team.yaml"}, "not a path inside the project"),
    ({"workflow": "none.yaml"}, "file not found"),
    ({"workflow": "script.yaml"}, "script.yaml"),
    ({"workflow": "team.yaml", "tag": "a/b"}, "a/b"),
    ({"workflow": "team.yaml", "params": {"x": "1"}}, "unknown param 'x'"),
    ({"workflow": "team.yaml", "setup": [{"command": "rm -rf /"}]}, "number of setup commands changed: 1 recorded"),
    ({"workflow": "team.yaml", "order": [{"person": ""}]}, "order"),
    (
        {"workflow": "team.yaml", "order": ["ann/1 ends", "zoe/9 begins 3", {"person": "@nobody x"}, "ann/1 begins 1"]},
        "",
    ),
]


@pytest.mark.parametrize(("case", "wrong"), WRONG)
def test_an_invalid_test_ends_with_an_error(team: Team, case: dict[str, Any], wrong: str) -> None:
    team.write_workflow(agents="ann")
    team.write_script(ann=[[stop()]])
    script = {"test": {**case, "output": ""}, "workers": {"ann": [[stop()]]}}
    path = team.project / "tests.yaml"
    path.write_text(json.dumps(script))

    async def work(team: Team) -> None:
        found = await run_test(team, path)
        assert wrong in describe_deviations(found)
        assert bool(wrong) is not found.passed

    team.run_in_hall(work)


ACTS = st.one_of(
    st.sampled_from(
        [
            send("@ann look"),
            send("@bob @cid look"),
            send("@all hello"),
            send("nobody in particular"),
            send("@nobody here"),
            call("channel_read"),
            call("inbox_read"),
            call("inbox_ack", until=1),
            call("document_read"),
            call("document_list"),
            call("team_list"),
            call("status_set", task="this"),
            call("proposal_create", type="approval", title="May we?", guards=["notes.md"]),
            call("proposal_vote", proposal="p-1", choice="approve"),
            call("proposal_status"),
            call("document_write", content="x", file="a.md"),
            call("document_append", content="more\n"),
            call("resource_create", content="long"),
            call("no_action"),
            {"calls": [send("@ann one"), call("document_append", content="two\n")]},
        ]
    )
)
RUNS = st.lists(st.lists(ACTS, max_size=3).map(lambda acts: [*acts, stop()]), min_size=1, max_size=2)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.fixed_dictionaries({"ann": RUNS, "bob": RUNS, "cid": RUNS}), st.booleans())
def test_any_scripted_run_is_replayed_and_passes_as_a_test(
    tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Any], elects: bool
) -> None:
    place = tmp_path_factory.mktemp("any")
    (place / "project").mkdir()
    team = Team(home=Home(place / "home"), project=place / "project")
    context = {} if elects else {"documentOwner": "none"}
    team.write_workflow(agents="ann bob cid", context=context, kickoff="@ann @bob begin", limits={"max_hops": 4})
    team.write_script(**runs, repeat=False)

    async def work(team: Team) -> None:
        run = await team.run()
        replayed = await team.client.runs.replay(run.id, team.frame())
        assert replayed.difference is None
        try:
            path = await write_script_of(team, run.id)
        except GuildError:
            assert run.status not in {"completed", "failed"}
            return
        found = await run_test(team, path)
        assert found.passed, describe_deviations(found)

    team.run_in_hall(work)
