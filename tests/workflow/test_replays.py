"""`guild replay` of a workflow: in the recorded order, on the files of today, up to the first difference."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import RuntimeMissing
from tests.workflow.teams import Team, call, say, send

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
            say(),
        ],
        [call("inbox_read"), call("channel_read"), say()],
    ],
    **{
        name: [
            [call("document_append", content=f"{name}\n"), send("@ann done, see notes.md"), say()],
            [call("proposal_vote", proposal="p-1", choice="right"), call("document_read"), say()],
        ]
        for name in ("bob", "cid", "dan")
    },
}


def ran(team: Team, **fields: Any) -> str:
    """A team whose agents work side by side, once it is done; its run."""
    team.file(agents=AGENTS, **fields)
    team.script(**BUSY, repeat=True)

    async def trusted(team: Team) -> str:
        path = team.project / "team.yaml"
        if "setup" in fields:
            await team.client.trust.grant((await team.client.trust.inspect(team.frame(), at=path)).untrusted_files)
        return (await team.run()).id

    return team.inside(trusted)


def replayed(team: Team, run: str) -> ReplayResult:
    return team.inside(lambda team: team.client.runs.replay(run, team.frame()))


def changed(team: Team, change: Callable[[dict[str, Any]], None]) -> None:
    path = team.project / "team.yaml"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.req("X-1")
def test_thirty_replays_of_agents_side_by_side_are_identical(team: Team) -> None:
    team.file(agents="ann bob cid")
    tell = [send("@ann done"), call("channel_read"), say()]
    team.script(ann=[[send("@bob @cid begin"), say()], [call("inbox_read"), say()], [say()]], bob=[tell], cid=[tell])
    run = team.inside(lambda team: team.run()).id
    folder = {path: path.read_bytes() for path in team.project.rglob("*") if path.is_file()}

    async def ten(team: Team) -> list[ReplayResult]:
        before = team.hall.store.read(lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar())
        found = [await team.client.runs.replay(run, team.frame()) for _ in range(10)]
        after = team.hall.store.read(lambda connection: connection.exec_driver_sql("PRAGMA data_version").scalar())
        assert before == after
        assert len(team.hall.history.recent()) == 1
        return found

    found = [one for _ in range(3) for one in team.inside(ten)]
    assert [one.difference for one in found] == [None] * 30
    assert len({one.steps for one in found}) == 1
    assert found[0].steps > 30
    assert folder == {path: path.read_bytes() for path in team.project.rglob("*") if path.is_file()}


@pytest.mark.parametrize("context", [{"provider": "memory"}, {"provider": "file"}])
def test_each_provider_is_played_again(team: Team, context: dict[str, str]) -> None:
    run = ran(team, context={**context, "documentOwner": "none"})
    assert replayed(team, run).difference is None


def test_where_a_program_is_not_installed_nothing_is_said_of_the_record(team: Team) -> None:
    run = ran(team)
    changed(team, lambda data: data["agents"]["cid"].update(backend="claude"))
    team.environ["GUILDHALL_CLAUDE"] = "/nowhere/claude"
    with pytest.raises(RuntimeMissing, match="needs Claude Code"):
        replayed(team, run)


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
def test_what_is_changed_is_shown_with_the_run_and_the_step(team: Team, guild: Guild) -> None:
    run = ran(team, setup=[{"shell": "echo 1", "as": "one"}])
    path = team.project / "team.yaml"
    before = path.read_text()

    async def look(team: Team) -> None:
        bob, cid = ([one.id for one in team.runs(run, name)] for name in ("bob", "cid"))
        for change, told in CHANGES:
            path.write_text(before)
            changed(team, change)
            found = (await team.client.runs.replay(run, team.frame())).difference
            assert found is not None, told
            assert all(text in found.text for text in told), found.text
        path.write_text(before)
        changed(team, lambda data: data["agents"]["bob"].update(system_prompt="Another."))
        assert (await team.client.runs.replay(run, team.frame())).run == bob[0]
        alone = await team.client.runs.replay(bob[1], team.frame())
        assert (alone.run, alone.difference.step) == (bob[1], 0)
        assert (await team.client.runs.replay(cid[0], team.frame())).matches

    team.inside(look)
    shown = guild("replay", run)
    assert shown.code == 1, shown.err
    assert "differs at step 0.\nthe system prompt changed" in shown.out


def test_what_the_room_says_otherwise_is_a_difference(team: Team) -> None:
    """Whatever it is that the room does otherwise: the record is altered, as if it had done so then."""
    run = ran(team)
    for column, was, now in [
        ("result", "Posted as message", "Added as message"),
        ("arguments", "begin, and @dan later", "begin, and @eve later"),
        ("result", '"until": 2', '"until": 1'),
    ]:

        async def alter(team: Team, column: str = column, was: str = was, now: str = now) -> ReplayResult:
            statement = f"UPDATE room_log SET {column} = replace({column}, ?, ?)"  # noqa: S608
            await team.hall.store.write(lambda c: c.exec_driver_sql(statement, (was, now)))
            found = await team.client.runs.replay(run, team.frame())
            await team.hall.store.write(lambda c: c.exec_driver_sql(statement, (now, was)))
            return found

        found = team.inside(alter)
        assert found.difference is not None, was
        assert "changed" in found.difference.text


def test_a_workflow_and_workers_that_are_gone_are_played_from_the_record(team: Team, guild: Guild) -> None:
    (team.project / "workers").mkdir()
    worker = team.project / "workers" / "helper.yaml"
    worker.write_text("name: helper\ninstructions: Help.\nmodel: script:script.yaml\n")
    team.file(agents="ann")
    changed(team, lambda data: data["agents"].update(bob={"worker": "helper"}))
    team.script(ann=[[send("@bob begin"), say()]], bob=[[say()]])
    run = team.inside(lambda team: team.run())
    assert run.status == "completed"
    assert replayed(team, run.id).worker_gone is False
    worker.unlink()
    found = replayed(team, run.id)
    assert (found.difference, found.worker_gone) == (None, True)
    (team.project / "team.yaml").unlink()
    found = replayed(team, run.id)
    assert (found.difference, found.worker_gone) == (None, True)


def test_an_election_is_counted_again(team: Team) -> None:
    run = ran(team, context={})
    assert replayed(team, run).difference is None
    changed(team, lambda data: data["agents"]["ann"].update(description="Writes well."))
    found = replayed(team, run)
    assert found.difference is not None
    assert "+ - ann: Writes well." in found.difference.text


def test_documents_that_were_edited_by_hand_are_as_they_were(team: Team) -> None:
    team.file(agents="ann bob")
    team.script(
        ann=[[call("document_write", content="one"), send("@bob go"), say()], [call("document_read"), say()]],
        bob=[
            [
                {"sleep": 0.2, **call("document_list")},
                call("document_read"),
                call("document_append", content="three"),
                send("@ann read"),
                say(),
            ]
        ],
    )

    async def edited(team: Team) -> str:
        running = asyncio.create_task(team.run())
        path = team.project / ".workflow/team/main/documents/notes.md"
        async with asyncio.timeout(5):
            while not path.exists():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        path.write_text("one\ntwo\n")
        (path.parent / "more.md").write_text("by hand")
        return (await running).id

    run = team.inside(edited)
    assert replayed(team, run).difference is None


def test_one_that_failed_or_was_paused_replays_as_far_as_it_came(team: Team) -> None:
    team.file(agents="ann bob")
    team.script(ann=[[send("@bob go"), say()], [say()]], bob=[[send("@nobody"), {"fail": 400}]] * 3)

    run = team.inside(lambda team: team.run())
    assert run.status == "failed"
    assert replayed(team, run.id).difference is None

    team.script(ann=[[send("@bob go"), {"sleep": 30, "say": "late"}]], bob=[[say()]])

    async def paused(team: Team) -> str:
        before = len(team.hall.history.recent(children=True))
        running = asyncio.create_task(team.run())
        async with asyncio.timeout(5):
            while len(team.hall.history.recent(children=True)) < before + 3:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        run = team.hall.history.recent()[0].id
        await asyncio.sleep(0.2)
        await team.client.runs.pause(run)
        await running
        return run

    run = team.inside(paused)
    found = replayed(team, run)
    assert found.difference is None
    assert found.steps > 5


def test_a_second_generation_is_played_in_the_room_of_the_first(team: Team) -> None:
    first = ran(team)
    changed(team, lambda data: data.update(kickoff="@ann once more"))
    second = team.inside(lambda team: team.run()).id
    assert replayed(team, second).difference is None
    found = replayed(team, first)
    assert found.difference is not None
    assert "once more" in found.difference.text


@pytest.mark.req("X-1")
def test_one_that_was_killed_and_resumed_replays_and_becomes_a_test(team: Team, guild: Guild) -> None:
    team.file(agents="ann bob")
    team.script(
        ann=[[call("document_write", content="one\n"), send("@bob go"), say()], [call("channel_read"), say()]],
        bob=[[call("document_append", content="two\n"), {"sleep": 0.5, **send("@ann done")}, say()]],
    )
    document = team.project / ".workflow/team/main/documents/notes.md"
    process = guild.start("run", "team.yaml")
    until = time.monotonic() + 10
    while not document.exists() or "two" not in document.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)

    async def top(team: Team) -> str:
        return team.hall.history.recent()[0].id

    run = team.inside(top)
    broken_off = guild("replay", run)
    assert broken_off.code == 0, broken_off.out
    assert guild("resume", run).code == 0
    assert document.read_text() == "one\ntwo\n"
    shown = guild("replay", run)
    assert shown.code == 0, shown.out
    assert guild("script", run, "--out", "tests/team.yaml").code == 0
    tested = guild("test")
    assert tested.code == 0, tested.out
