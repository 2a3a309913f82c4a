"""Conversations: runs that wait for the next user message until their owner ends them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, update

from guildhall.cli.format.journal import entry_line
from guildhall.core.errors import Conflict, Refused, RuntimeFailed, UsageError
from guildhall.models.scripted.source import load_script
from guildhall.runs.execution.preparation import Grant
from guildhall.runs.idle_tracker import _CONFIRM_DELAY_S  # pyright: ignore[reportPrivateUsage]
from guildhall.runs.owner_hooks import replay_hooks
from guildhall.runs.record import records
from guildhall.runs.record.queries import conversation
from guildhall.runs.replay.script_export import export_script
from guildhall.store.tables import journal
from tests.conformance.bench import WORKER, Bench, write
from tests.conftest import Guild

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from guildhall.core.events import Event
    from tests.conformance.conversation import Conversation

SLOW = {"sleep": 60, "say": "too late"}
HELLO, WRITE, WRITTEN, BYE = {"say": "Hello."}, write("a.md"), {"say": "Written."}, {"say": "Bye."}


def run_scene(
    tmp_path: Path,
    scene: Callable[[Bench, Conversation], Awaitable[None]],
    *answers: dict[str, Any],
    held: bool = False,
    children: bool = False,
    **fields: Any,
) -> None:
    """Run a scene with a worker whose model gives these answers."""
    bench = Bench(tmp_path, "pydantic", Guild.environment())
    bench.write_worker(*answers, **fields)

    async def play() -> None:
        async with bench.conversation(held=held, children=children) as table, asyncio.timeout(20):
            await scene(bench, table)

    asyncio.run(play())


def types(events: Sequence[Event], *wanted: str) -> list[str]:
    return [event.type for event in events if event.type in wanted]


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the journal sends no notification
        await asyncio.sleep(0.01)


# Waiting for the user


@pytest.mark.req("WKR-20", "X-2")
@pytest.mark.parametrize("children", [False, True])
def test_a_resumed_conversation_contains_all_messages(tmp_path: Path, children: bool) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        assert table.expects == 1
        events = await table.send("Write.")
        assert types(events, "turn_end", "tool_use", "tool_result", "error", "listening") == [
            "turn_end",
            "tool_use",
            "tool_result",
            "turn_end",
            "listening",
        ]
        await table.send("Good bye.")
        assert [message["role"] for message in conversation(table.hall.history.journal(table.run))] == [
            *("system", "user", "assistant"),
            *("user", "assistant", "tool", "assistant"),
            *("user", "assistant"),
        ]
        assert [entry.key for entry in table.entries("model_asked")] == ["m1", "m2", "m3", "m4"]
        assert bench.notes == {"a.md": "x"}

    run_scene(tmp_path, scene, HELLO, WRITE, WRITTEN, BYE, children=children)


def test_waiting_for_a_message_does_not_count_as_running_time(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        for _ in range(8):
            await asyncio.sleep(0.1)  # longer than its timeout
        assert types(await table.send("Still there?"), "turn_end", "listening") == ["turn_end", "listening"]
        table.hall.runs.adjust_client_count(table.run, -1)
        await table.wait_for_turn()
        assert table.hall.store.read(lambda c: records.running_seconds(c, table.run)) < 0.7

    run_scene(tmp_path, scene, HELLO, BYE, held=True, limits={"timeout": "0.7s"})


def test_a_conversation_keeps_running_while_a_client_is_connected(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await asyncio.sleep(0.2)
        assert table.state.status == "running"
        table.hall.runs.adjust_client_count(table.run, -1)
        assert types(await table.wait_for_turn(), "run_ended") == ["run_ended"]
        assert (table.state.status, table.state.reason) == ("waiting", "person")

    run_scene(tmp_path, scene, HELLO, held=True)


def test_a_message_that_arrives_while_the_run_becomes_idle_is_answered(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        asyncio.get_running_loop().call_later(_CONFIRM_DELAY_S, table.post, "Still there?")
        table.hall.runs.adjust_client_count(table.run, -1)  # the run becomes idle in the same iteration of the loop
        assert types(await table.wait_for_turn(), "turn_end") == ["turn_end"]
        await wait_until(lambda: table.state.status != "running")
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        assert table.expects == 2

    run_scene(tmp_path, scene, HELLO, BYE, held=True)


def test_a_conversation_waits_for_the_user_after_a_shutdown_of_the_hall(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.hall.runs.pause_all("shutdown")
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        assert table.hall.store.read(records.list_resumable) == []

    run_scene(tmp_path, scene, HELLO, held=True)


@pytest.mark.req("X-2")
def test_a_waiting_conversation_is_not_interrupted_by_a_crash_of_the_hall(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        interrupted = await table.hall.store.write(lambda c: records.mark_interrupted(c, "another hall"))
        assert interrupted == []
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        assert table.hall.store.read(records.list_resumable) == []

    run_scene(tmp_path, scene, HELLO, held=True)


@pytest.mark.req("X-2")
def test_a_conversation_is_interrupted_by_a_crash_of_the_hall_in_a_turn(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        table.post("Write.")
        await wait_until(lambda: len(table.entries("model_asked")) == 3)
        interrupted = await table.hall.store.write(lambda c: records.mark_interrupted(c, "another hall"))
        assert interrupted == [table.run]

    run_scene(tmp_path, scene, HELLO, WRITE, SLOW, held=True)


# Errors in a turn


@pytest.mark.parametrize(("status", "code"), [(401, "key_refused"), (413, "context_too_long")])
def test_a_failed_turn_can_be_resumed(tmp_path: Path, status: int, code: str) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        events = await table.send("Write.")
        assert types(events, "error", "run_ended") == ["error", "run_ended"]
        assert (table.state.status, table.state.reason) == ("failed", code)
        assert table.expects is None, "the last message has no answer yet"
        last = conversation(table.hall.history.journal(table.run))[-1]
        assert last == {"role": "user", "content": "Write."}
        bench.write_worker(HELLO, WRITE, WRITTEN)
        await table.resume()
        await table.wait_for_turn()
        assert (table.state.status, table.state.reason, bench.notes) == ("waiting", "person", {"a.md": "x"})
        assert [entry.data.words for entry in table.entries("said")] == ["Write."]
        assert await table.is_replayed()

    run_scene(tmp_path, scene, HELLO, {"fail": status})


@pytest.mark.parametrize("children", [False, True])
def test_a_conversation_that_was_paused_in_an_answer_can_be_resumed(tmp_path: Path, children: bool) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        table.post("Write.")
        await wait_until(lambda: len(table.entries("model_asked")) == 3)
        await table.hall.runs.pause(table.run)
        assert (table.state.status, table.state.reason) == ("paused", "by the user")
        bench.write_worker(HELLO, WRITE, WRITTEN)
        await table.resume()
        events = await table.wait_for_turn()
        assert types(events, "tool_use", "turn_end", "listening") == ["turn_end", "listening"], "no event is repeated"
        assert bench.notes == {"a.md": "x"}

    run_scene(tmp_path, scene, HELLO, WRITE, SLOW, held=True, children=children)


@pytest.mark.parametrize("children", [False, True])
def test_unusable_answers_end_the_turn_but_not_the_conversation(tmp_path: Path, children: bool) -> None:
    cut = {"calls": [{"call": "sandbox_write_text", "with": {"sandbox": "n"}}], "cut_off": True}

    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        events = await table.send("More.")
        assert types(events, "error", "listening", "run_ended") == ["error", "error", "error", "listening", "run_ended"]
        errors = [event.data for event in events if event.type == "error"]
        assert [bool(one.get("transient")) for one in errors] == [True, True, False]
        assert errors[-1]["message"] == "the turn is over: the model response was cut off at its maximum length"
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        last = await table.send("Shorter.")
        assert types(last, "error", "turn_end", "listening") == ["turn_end", "listening"]
        asked = table.entries("model_asked")[-1].data.message
        assert [part["part"] for part in asked] == ["tool-return", "user-prompt"], (
            "the call that was cut off has a result"
        )
        assert bench.notes == {}
        assert await table.is_replayed()

    run_scene(tmp_path, scene, HELLO, {"say": " "}, {"say": ""}, cut, BYE, children=children)


# Limits


def test_max_turns_counts_from_the_last_message(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.", max_turns=2)
        await table.send("Write.")
        assert (table.state.status, table.state.usage.turns) == ("waiting", 3)
        await table.send("Write two.")
        assert (table.state.status, (table.state.error or {}).get("limit")) == ("failed", "max_turns")
        with pytest.raises(UsageError, match="has already used 2 turns"):
            await table.hall.runs.prepare_resume(table.run, table.frame, grant=Grant(max_turns=2), hooks=table.hooks())
        prepared = await table.hall.runs.prepare_resume(
            table.run, table.frame, grant=Grant(max_turns=3), hooks=table.hooks()
        )
        table.hall.runs.launch(prepared)
        await table.wait_for_turn()
        assert (table.state.status, table.state.reason) == ("waiting", "person")

    run_scene(tmp_path, scene, HELLO, WRITE, WRITTEN, write("b.md"), write("c.md"), BYE)


def test_the_budget_applies_to_the_whole_conversation(tmp_path: Path) -> None:
    used = {"usage": {"input": 1000, "output": 100}}

    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.", max_budget_usd=0.009)
        await table.send("And?")
        assert table.state.status == "waiting"
        await table.send("And now?")
        assert (table.state.status, (table.state.error or {}).get("limit")) == ("failed", "max_budget_usd")

    run_scene(tmp_path, scene, HELLO | used, BYE | used, {"say": "again"} | used)


# End


def test_the_owner_concludes_the_conversation(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.complete({"notes": "none"})
        assert (table.state.status, table.state.output) == ("completed", {"notes": "none"})
        assert await table.is_replayed()
        with pytest.raises(Conflict, match="is completed"):
            await table.hall.runs.cancel(table.run)
        with pytest.raises(Conflict, match="cannot resume"):
            await table.resume()

    run_scene(tmp_path, scene, HELLO)


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_conversation_can_be_ended_in_the_middle_of_a_turn(tmp_path: Path, status: str) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        table.post("Write.")
        await wait_until(lambda: len(table.entries("model_asked")) == 2)
        if status == "completed":
            await table.complete("over")
        else:
            assert await table.hall.runs.cancel(table.run) == [table.run]
        assert (table.state.status, table.hall.runs.is_alive(table.run)) == (status, False)
        assert await table.is_replayed()

    run_scene(tmp_path, scene, HELLO, SLOW, held=True)


# Journal


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda c, run: _change_entry(c, run, "u1", words="Something else."), "the message to the model changed"),
        (lambda c, run: _change_entry(c, run, "m2", words=None), "waits for a user message"),
    ],
    ids=["changed message", "missing answer"],
)
def test_replay_reports_a_changed_journal(tmp_path: Path, change: Callable[[Any, str], None], step: str) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.send("One.")
        await table.send("Two.")
        assert await table.is_replayed()
        await table.hall.store.write(lambda connection: change(connection, table.run))
        hooks = replay_hooks((), is_conversation=True)
        result = await table.hall.main.recordings.replay_one(table.state, table.frame, hooks=hooks)
        assert result.difference is not None
        assert step in result.difference.text or "does not reach this step" in result.difference.text

    run_scene(tmp_path, scene, HELLO, WRITTEN, BYE)


def _change_entry(connection: Any, run: str, key: str, words: str | None) -> None:
    if words is None:
        connection.execute(delete(journal).where(journal.c.run == run, journal.c.key == key))
    else:
        one = (journal.c.run == run, journal.c.key == key, journal.c.kind == "said")
        connection.execute(update(journal).where(*one).values(data={"words": words}))


def test_the_log_shows_the_messages_of_the_user(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.send("Good\nbye.")
        lines = [entry_line(entry) for entry in table.entries("said", "listening")]
        assert [line.split("Z", 1)[1].split() for line in lines] == [
            ["listening", "u1"],
            ["said", "u1", "Good", "bye."],
            ["listening", "u2"],
        ]

    run_scene(tmp_path, scene, HELLO, BYE)


def test_the_script_of_a_conversation_has_answers_but_no_test(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.send("Good bye.")
        with pytest.raises(Conflict, match="the run is waiting, not completed or failed"):
            export(table)
        await table.complete("over")
        text = export(table)
        assert "# Left out: the test, because the run is a conversation" in text
        (answers,) = json.loads(bench.script.read_text())["workers"][WORKER]
        assert [one.say for one in load_script(write_script(bench, text)).workers[WORKER][0]] == [
            a["say"] for a in answers
        ]

    run_scene(tmp_path, scene, HELLO, BYE)


def export(table: Conversation) -> str:
    tree = [(table.state, table.hall.history.journal(table.run))]
    return export_script(tree, table.hall.home.path, lambda text: text)


def write_script(bench: Bench, text: str) -> Path:
    path = bench.project / "recorded.yaml"
    path.write_text(text)
    return path


def test_a_conversation_cannot_be_forked_or_resumed_without_its_owner(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        with pytest.raises(Conflict, match=r"cannot fork .*: it is a conversation"):
            await table.hall.main.forks.fork(table.run, 2, table.frame)
        with pytest.raises(Conflict, match=r"cannot resume .*: it is a conversation"):
            await table.hall.runs.prepare_resume(table.run, table.frame)

    run_scene(tmp_path, scene, HELLO)


def test_a_runtime_that_cannot_resume_refuses_a_conversation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "cursor", Guild.environment())
    bench.write_worker(model="cursor:auto", accepts_risk=True)

    async def scene() -> None:
        async with bench.conversation() as table:
            with pytest.raises(Refused, match=r"cannot start a conversation: Cursor"):
                await table.start(WORKER, "Hi.")

    asyncio.run(scene())


def test_a_worker_with_an_output_schema_answers_with_text(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        (bench.project / "out.json").write_text(
            json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
        )
        await table.start(WORKER, "Hi.")
        assert (table.state.status, table.state.reason) == ("waiting", "person")
        assert await table.is_replayed()

    run_scene(tmp_path, scene, HELLO, output_schema_ref="./out.json")


# Hostile


def test_an_empty_message_fails_the_run_and_is_not_recorded(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        await table.send(" ")
        assert (table.state.status, table.state.reason) == ("failed", "usage")
        assert table.entries("said") == []

    run_scene(tmp_path, scene, HELLO)


def test_message_keys_are_used_in_order(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        record = table.hall.history.journal(table.run)
        assert record.message_number("u1") == 1
        for key in ("u0", "u2", "u01", "m1", "", "u", "u-1", "u\u0661", "u1 ", "u" + "9" * 50):
            with pytest.raises(RuntimeFailed, match="the next key is u1"):
                record.message_number(key)

    run_scene(tmp_path, scene, HELLO)


def test_a_process_that_dies_while_waiting_is_replaced(tmp_path: Path) -> None:
    async def scene(bench: Bench, table: Conversation) -> None:
        await table.start(WORKER, "Hi.")
        assert table.hall.runtimes.fork_server is not None
        os.kill(table.hall.runtimes.fork_server.pids[1], signal.SIGKILL)
        await wait_until(lambda: len(table.entries("crashed")) == 1)
        events = await table.send("Good bye.")
        assert types(events, "turn_end") == ["turn_end"]

    run_scene(tmp_path, scene, HELLO, BYE, held=True, children=True)
