"""`guild replay` of a workflow: in the recorded order, with the current files, up to the first difference."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import RuntimeMissing
from tests.workflow.teams import Team, call, send, stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.runs.replay.replay import ReplayResult
    from tests.conftest import Guild

AGENTS = "ann bob cid dan"
BUSY = {
    "ann": [
        [
            {"calls": [send("@bob @cid begin, and @dan later"), call("document_write", content="one\n")]},
            call("proposal_create", type="decision", title="Which way?", options=["left", "right"], tie_break="random"),
            call("proposal_vote", proposal="p-1", choice="left"),
            stop(),
        ],
        [call("inbox_read"), call("channel_read"), stop()],
    ],
    **{
        name: [
            [call("document_append", content=f"{name}\n"), send("@ann done, see notes.md"), stop()],
            [call("proposal_vote", proposal="p-1", choice="right"), call("document_read"), stop()],
        ]
        for name in ("bob", "cid", "dan")
    },
}


def run_busy_team(team: Team, **fields: Any) -> str:
    """Run a team whose agents work in parallel, and return the id of its run."""
    team.write_workflow(agents=AGENTS, **fields)
    team.write_script(**BUSY, repeat=True)

    async def trust_and_run(team: Team) -> str:
        path = team.project / "team.yaml"
        if "setup" in fields:
            await team.client.trust.grant((await team.client.trust.inspect(team.frame(), at=path)).untrusted_files)
        return (await team.run()).id

    return team.run_in_hall(trust_and_run)


def replay(team: Team, run: str) -> ReplayResult:
    return team.run_in_hall(lambda team: team.client.runs.replay(run, team.frame()))


def change_workflow(team: Team, change: Callable[[dict[str, Any]], None]) -> None:
    path = team.project / "team.yaml"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.req("X-1")
def test_thirty_replays_of_parallel_agents_are_identical(team: Team) -> None:
    team.write_workflow(agents="ann bob cid")
    report = [send("@ann done"), call("channel_read"), stop()]
    team.write_script(
        ann=[[send("@bob @cid begin"), stop()], [call("inbox_read"), stop()], [stop()]], bob=[report], cid=[report]
    )
    run = team.run_in_hall(lambda team: team.run()).id
    folder = {path: path.read_bytes() for path in team.project.rglob("*") if path.is_file()}

    async def replay_ten_times(team: Team) -> list[ReplayResult]:
        before = team.hall.store.read(lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar())
        found = [await team.client.runs.replay(run, team.frame()) for _ in range(10)]
        after = team.hall.store.read(lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar())
        assert before == after
        assert len(team.hall.history.recent()) == 1
        return found

    found = [one for _ in range(3) for one in team.run_in_hall(replay_ten_times)]
    assert [one.difference for one in found] == [None] * 30
    assert len({one.steps for one in found}) == 1
    assert found[0].steps > 30
    assert folder == {path: path.read_bytes() for path in team.project.rglob("*") if path.is_file()}


@pytest.mark.parametrize("context", [{"provider": "memory"}, {"provider": "file"}])
def test_a_room_of_each_provider_is_replayed(team: Team, context: dict[str, str]) -> None:
    run = run_busy_team(team, context={**context, "documentOwner": "none"})
    assert replay(team, run).difference is None


def test_replay_is_refused_if_a_runtime_is_not_installed(team: Team) -> None:
    run = run_busy_team(team)
    change_workflow(team, lambda data: data["agents"]["cid"].update(backend="claude"))
    team.environ["GUILDHALL_CLAUDE"] = "/nowhere/claude"
    with pytest.raises(RuntimeMissing, match="needs Claude Code"):
        replay(team, run)


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], list[str]]] = [
    (lambda data: data["agents"]["cid"].update(system_prompt="Another."), ["the system prompt", "+ Another."]),
    (lambda data: data.update(kickoff="@ann start"), ["the first message", "+ @ann start"]),
    (lambda data: data["setup"][0].update(shell="echo 2"), ["the call", '"command": "echo 2"']),
    (lambda data: data["context"].update(documentOwner="ann"), ["the settings of the room", '"owner": "ann"']),
    (lambda data: data["agents"]["dan"].update(model="script:other.yaml"), ["the worker's model"]),
    (lambda data: data["agents"]["bob"].update(tools=["Read"]), ["the tools of the model"]),
    (lambda data: data["agents"].update(eve={"system_prompt": "x"}), ["the settings of the room", '"eve"']),
    (lambda data: data["agents"].pop("dan"), ["the settings of the room", '"dan"']),
    (lambda data: data.update(params={"more": {}}), ["the workflow cannot start now", "--param more"]),
]


@pytest.mark.req("X-1")
def test_a_change_is_shown_with_the_run_and_the_step(team: Team, guild: Guild) -> None:
    run = run_busy_team(team, setup=[{"shell": "echo 1", "as": "one"}])
    path = team.project / "team.yaml"
    before = path.read_text()

    async def look(team: Team) -> None:
        bob, cid = ([one.id for one in team.runs(run, name)] for name in ("bob", "cid"))
        for change, texts in CHANGES:
            path.write_text(before)
            change_workflow(team, change)
            found = (await team.client.runs.replay(run, team.frame())).difference
            assert found is not None, texts
            assert all(text in found.text for text in texts), found.text
        path.write_text(before)
        change_workflow(team, lambda data: data["agents"]["bob"].update(system_prompt="Another."))
        assert (await team.client.runs.replay(run, team.frame())).run == bob[0]
        alone = await team.client.runs.replay(bob[1], team.frame())
        assert (alone.run, alone.difference.step) == (bob[1], 0)
        assert (await team.client.runs.replay(cid[0], team.frame())).matches

    team.run_in_hall(look)
    shown = guild("replay", run)
    assert shown.code == 1, shown.err
    assert "differs at step 0.\nthe system prompt changed" in shown.out


def test_a_different_answer_of_the_room_is_a_difference(team: Team) -> None:
    """Alter the log of the room, as if the room had answered differently."""
    run = run_busy_team(team)
    for column, was, now in [
        ("result", "Posted as message", "Added as message"),
        ("arguments", "begin, and @dan later", "begin, and @eve later"),
        ("result", '"until": 2', '"until": 1'),
    ]:

        async def replay_altered(team: Team, column: str = column, was: str = was, now: str = now) -> ReplayResult:
            statement = f"UPDATE room_log SET {column} = replace({column}, ?, ?)"  # noqa: S608
            await team.hall.store.write(lambda c: c.exec_driver_sql(statement, (was, now)))
            found = await team.client.runs.replay(run, team.frame())
            await team.hall.store.write(lambda c: c.exec_driver_sql(statement, (now, was)))
            return found

        found = team.run_in_hall(replay_altered)
        assert found.difference is not None, was
        assert "changed" in found.difference.text


def test_a_workflow_and_workers_without_files_are_replayed_from_the_journal(team: Team, guild: Guild) -> None:
    (team.project / "workers").mkdir()
    worker = team.project / "workers" / "helper.yaml"
    worker.write_text("name: helper\ninstructions: Help.\nmodel: script:script.yaml\n")
    team.write_workflow(agents="ann")
    change_workflow(team, lambda data: data["agents"].update(bob={"worker": "helper"}))
    team.write_script(ann=[[send("@bob begin"), stop()]], bob=[[stop()]])
    run = team.run_in_hall(lambda team: team.run())
    assert run.status == "completed"
    assert replay(team, run.id).worker_gone is False
    worker.unlink()
    found = replay(team, run.id)
    assert (found.difference, found.worker_gone) == (None, True)
    (team.project / "team.yaml").unlink()
    found = replay(team, run.id)
    assert (found.difference, found.worker_gone) == (None, True)


def test_an_election_is_replayed(team: Team) -> None:
    run = run_busy_team(team, context={})
    assert replay(team, run).difference is None
    change_workflow(team, lambda data: data["agents"]["ann"].update(description="Writes well."))
    found = replay(team, run)
    assert found.difference is not None
    assert "+ - ann: Writes well." in found.difference.text


def test_documents_edited_by_hand_are_replayed_with_the_edits(team: Team) -> None:
    team.write_workflow(agents="ann bob")
    team.write_script(
        ann=[[call("document_write", content="one"), send("@bob go"), stop()], [call("document_read"), stop()]],
        bob=[
            [
                {"sleep": 0.2, **call("document_list")},
                call("document_read"),
                call("document_append", content="three"),
                send("@ann read"),
                stop(),
            ]
        ],
    )

    async def run_and_edit(team: Team) -> str:
        running = asyncio.create_task(team.run())
        path = team.project / ".workflow/team/main/documents/notes.md"
        async with asyncio.timeout(5):
            while not path.exists():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        path.write_text("one\ntwo\n")
        (path.parent / "more.md").write_text("by hand")
        return (await running).id

    run = team.run_in_hall(run_and_edit)
    assert replay(team, run).difference is None


def test_a_failed_or_paused_run_is_replayed_up_to_its_last_step(team: Team) -> None:
    team.write_workflow(agents="ann bob")
    team.write_script(ann=[[send("@bob go"), stop()], [stop()]], bob=[[send("@nobody"), {"fail": 400}]] * 3)

    run = team.run_in_hall(lambda team: team.run())
    assert run.status == "failed"
    assert replay(team, run.id).difference is None

    team.write_script(ann=[[send("@bob go"), {"sleep": 30, "say": "late"}]], bob=[[stop()]])

    async def run_and_pause(team: Team) -> str:
        before = len(team.hall.history.recent(children=True))
        running = asyncio.create_task(team.run())
        async with asyncio.timeout(5):
            while len(team.hall.history.recent(children=True)) < before + 3:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        run = team.hall.history.recent()[0].id
        await asyncio.sleep(0.2)
        await team.client.runs.pause(run)
        await running
        return run

    run = team.run_in_hall(run_and_pause)
    found = replay(team, run)
    assert found.difference is None
    assert found.steps > 5


def test_a_second_generation_is_replayed_in_the_room_of_the_first(team: Team) -> None:
    first = run_busy_team(team)
    change_workflow(team, lambda data: data.update(kickoff="@ann once more"))
    second = team.run_in_hall(lambda team: team.run()).id
    assert replay(team, second).difference is None
    found = replay(team, first)
    assert found.difference is not None
    assert "once more" in found.difference.text


@pytest.mark.req("X-1")
def test_a_killed_and_resumed_run_is_replayed_and_becomes_a_test(team: Team, guild: Guild) -> None:
    team.write_workflow(agents="ann bob")
    team.write_script(
        ann=[[call("document_write", content="one\n"), send("@bob go"), stop()], [call("channel_read"), stop()]],
        bob=[[call("document_append", content="two\n"), {"sleep": 0.5, **send("@ann done")}, stop()]],
    )
    document = team.project / ".workflow/team/main/documents/notes.md"
    process = guild.start("run", "team.yaml")
    deadline = time.monotonic() + 10
    while not document.exists() or "two" not in document.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)

    async def read_root_run(team: Team) -> str:
        return team.hall.history.recent()[0].id

    run = team.run_in_hall(read_root_run)
    broken_off = guild("replay", run)
    assert broken_off.code == 0, broken_off.out
    assert guild("resume", run).code == 0
    assert document.read_text() == "one\ntwo\n"
    shown = guild("replay", run)
    assert shown.code == 0, shown.out
    assert guild("script", run, "--out", "tests/team.yaml").code == 0
    tested = guild("test")
    assert tested.code == 0, tested.out
