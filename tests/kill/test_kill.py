"""Kills of a run at any point: it continues without losing or repeating a recorded step."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.places import Terminal
from tests.kill.harness import (
    DEEP,
    EFFECTS,
    TIMEOUT_S,
    KillHarness,
    Record,
    Undisturbed,
    check_resumed_run,
    ends,
    pair_sides,
)

if TYPE_CHECKING:
    from tests.conftest import Guild
    from tests.kill.harness import When

# The commits of an undisturbed run: of `guild run` until it waits for approval, of `guild answer` until the end. The
# first test holds them to what is really there, so that the sweep below misses none.
RUN_COMMITS = 12
ANSWER_COMMITS = 15
RUN = ("run", "clerk", "go", "--output", "json")


def test_the_sweep_goes_over_every_commit(undisturbed: Undisturbed) -> None:
    assert (undisturbed.run_commits, undisturbed.answer_commits) == (RUN_COMMITS, ANSWER_COMMITS)
    assert undisturbed.result["status"] == "completed"
    assert sorted(undisturbed.book) == sorted(EFFECTS)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(RUN_COMMITS))
def test_killed_at_a_commit_of_a_run(harness: KillHarness, undisturbed: Undisturbed, number: int, when: When) -> None:
    assert harness.guild_until(number, when, *RUN) is None
    check_resumed_run(harness, undisturbed, Record.of(harness))


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(ANSWER_COMMITS))
def test_killed_at_a_commit_after_an_answer(
    harness: KillHarness, undisturbed: Undisturbed, number: int, when: When
) -> None:
    ask = harness.start().json["asks"][0]["ask"]
    assert harness.guild_until(number, when, "answer", ask, "yes", "--output", "json") is None
    check_resumed_run(harness, undisturbed, Record.of(harness))


@pytest.mark.parametrize("number", [2, 6, 10] if DEEP else [6])
def test_killed_inside_a_transaction(harness: KillHarness, undisturbed: Undisturbed, number: int) -> None:
    assert harness.guild_until(number, "inside", *RUN) is None
    check_resumed_run(harness, undisturbed, Record.of(harness))


@pytest.mark.parametrize(("number", "when"), [(6, "before"), (6, "after"), (7, "after")][0 if DEEP else 1 :])
def test_killed_at_a_commit_of_several_entries(
    harness: KillHarness, undisturbed: Undisturbed, number: int, when: When
) -> None:
    assert harness.guild_until(number, when, *RUN, grouped=True) is None
    check_resumed_run(harness, undisturbed, Record.of(harness))


@pytest.mark.parametrize(("function", "when"), pair_sides("_create", "_keep_private"))
def test_killed_while_the_database_is_made(
    harness: KillHarness, undisturbed: Undisturbed, function: str, when: When
) -> None:
    assert harness.guild_until(0, when, *RUN, function=f"guildhall.store.schema:{function}") is None
    check_resumed_run(harness, undisturbed, Record.of(harness))
    assert harness.start().code == 4
    check_resumed_run(harness, undisturbed)


# Inside a tool


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("line", "when"), pair_sides("one", "two"))
def test_killed_between_an_effect_and_its_record(
    harness: KillHarness, undisturbed: Undisturbed, line: str, when: When
) -> None:
    harness.lay_hold(when, line)
    harness.guild_until_file(f"held-{when}-{line}", *RUN)
    harness.lift_holds()
    assert harness.book.count(line) == (when == "after")
    killed = Record.of(harness)
    assert killed.cut_off
    check_resumed_run(harness, undisturbed, killed)
    assert not list((harness.project / "desk").glob("passed-*"))  # the tool has ended with the process it worked for


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("line", "when"), pair_sides("letter", "three"))
def test_killed_between_an_effect_and_its_record_after_an_answer(
    harness: KillHarness, undisturbed: Undisturbed, line: str, when: When
) -> None:
    ask = harness.start().json["asks"][0]["ask"]
    harness.lay_hold(when, line)
    harness.guild_until_file(f"held-{when}-{line}", "answer", ask, "yes")
    harness.lift_holds()
    killed = Record.of(harness)
    assert killed.cut_off
    check_resumed_run(harness, undisturbed, killed)


def test_a_repeatable_call_is_made_again_without_a_question(harness: KillHarness, undisturbed: Undisturbed) -> None:
    harness.lay_hold("after", "look")
    harness.guild_until_file("held-after-look", *RUN)
    harness.lift_holds()
    killed = Record.of(harness)
    check_resumed_run(harness, undisturbed, killed)
    assert (harness.project / "desk" / "looks").read_text().count("look") == 3


@pytest.mark.req("X-2")
def test_what_the_person_says_of_an_interrupted_call_is_done(harness: KillHarness) -> None:
    """Told to make the call again, it is made again though it had been done; told that it failed, it is not."""
    harness.lay_hold("after", "one")
    harness.guild_until_file("held-after-one", *RUN)
    harness.lift_holds()
    run = harness.run_id()
    assert run is not None
    harness.resume(run, unknown="again")
    assert harness.book.count("one") == 2

    told = [entry for entry in harness.entries() if entry[2] == "m1/call_0_0"]
    assert [kind for _, kind, _, _ in told] == [
        "tool_started",
        "tool_doubted",
        "answered",
        "tool_started",
        "tool_ended",
    ]


def test_an_interrupted_call_can_be_called_a_failure(harness: KillHarness) -> None:
    harness.lay_hold("before", "one")
    harness.guild_until_file("held-before-one", *RUN)
    harness.lift_holds()
    run = harness.run_id()
    assert run is not None
    harness.resume(run, unknown="fail")
    assert "one" not in harness.book
    results = {message["id"]: message for message in harness.conversation(run) if message["role"] == "tool"}
    assert results["call_0_0"]["is_error"]
    assert "treat it as failed" in results["call_0_0"]["content"]
    assert harness.guild("replay", run).code == 0


# More than once


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(6))
def test_killed_again_while_it_is_resumed(
    harness: KillHarness, undisturbed: Undisturbed, number: int, when: When
) -> None:
    harness.lay_hold("after", "two")
    harness.guild_until_file("held-after-two", *RUN)
    harness.lift_holds()
    first, run = Record.of(harness), harness.run_id()
    assert run is not None
    ended = harness.guild_until(number, when, "resume", run, "--output", "json")
    check_resumed_run(harness, undisturbed, first, *([] if ended else [Record.of(harness)]))


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("first", "second", "third"), [(4, 4, 3), (5, 5, 6), (9, 7, 4)][: 3 if DEEP else 1])
def test_killed_three_times(
    harness: KillHarness, undisturbed: Undisturbed, first: int, second: int, third: int
) -> None:
    assert harness.guild_until(first, "before", *RUN) is None
    kills, run = [Record.of(harness)], harness.run_id()
    assert run is not None
    for number in (second, third):
        if harness.guild_until(number, "after", "resume", run, "--output", "json") is None:
            kills.append(Record.of(harness))
    check_resumed_run(harness, undisturbed, *kills)


@pytest.mark.parametrize("number", range(2, 8) if DEEP else (2, 7))
def test_killed_while_an_interrupted_call_is_answered(
    harness: KillHarness, undisturbed: Undisturbed, number: int
) -> None:
    """Killed after the person's word was taken: it is not asked for again, and not acted upon twice."""
    harness.lay_hold("before", "three")
    ask = harness.start().json["asks"][0]["ask"]
    harness.guild_until_file("held-before-three", "answer", ask, "yes")
    harness.lift_holds()
    first, run = Record.of(harness), harness.run_id()
    assert run is not None
    doubt = harness.guild("resume", run, "--output", "json").json["asks"][0]
    ended = harness.guild_until(number, "after", "answer", doubt["ask"], "again", "--output", "json")
    if number >= 2:
        harness.asked.append("m2/call_1_1")
    again = [] if ended else [Record.of(harness)]
    started = sum(kind == "tool_started" and key == "m2/call_1_1" for _, kind, key, _ in harness.entries())
    if started == 1 or not again[0].cut_off:
        check_resumed_run(harness, undisturbed, first, *again)
    else:  # made again, and cut off again: that is another doubt
        harness.resume(run)
        assert harness.asked == ["m2/call_1_1"] * 2
        assert sorted(harness.book) == sorted(EFFECTS)


# The command as it is installed


@pytest.mark.req("X-2")
def test_the_installed_command_killed_inside_a_tool(
    harness: KillHarness, undisturbed: Undisturbed, guild: Guild
) -> None:
    harness.lay_hold("after", "one")
    process = guild.start(*RUN, env=harness.environment, installed=True)
    deadline = time.monotonic() + TIMEOUT_S
    while not (harness.project / "desk" / "held-after-one").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(5) == -signal.SIGKILL
    harness.lift_holds()
    killed, run = Record.of(harness), harness.run_id()
    assert run is not None
    listed = guild("ls", "--json", env=harness.environment).json["needs_you"]
    assert [lost["status"] for lost in listed["runs"]] == ["interrupted"]
    waiting = guild("resume", run, env=harness.environment)
    assert waiting.code == 4
    assert "was interrupted in a call of enter: did it take effect?" in waiting.err
    check_resumed_run(harness, undisturbed, killed)


def test_killed_while_it_waits_at_a_terminal(harness: KillHarness, undisturbed: Undisturbed, guild: Guild) -> None:
    terminal = Terminal(guild, *RUN[:3], env=dict(harness.environment))
    terminal.wait_for("wants to call send")
    terminal.close()
    killed = Record.of(harness)
    assert harness.rows("SELECT status FROM runs") == [("running",)]
    assert harness.rows("SELECT status FROM asks") == [("open",)]
    check_resumed_run(harness, undisturbed, killed)


@pytest.mark.req("X-1")
def test_a_run_that_ran_out_of_time_asks_again_when_it_goes_on(harness: KillHarness) -> None:
    """The failure withdrew the ask. The worker does not receive it as unanswered."""
    worker = harness.project / "workers" / "clerk.yaml"
    worker.write_text(f"{worker.read_text()}limits: {{timeout: 4}}\n")
    harness.lay_hold("after", "look")
    late = harness.start()
    assert (late.code, late.json["error"]["code"]) == (5, "limit_reached")
    assert harness.rows("SELECT status FROM asks") == [("withdrawn",)]
    run = late.json["run"]
    assert harness.guild("replay", run).code == 0
    harness.lift_holds()
    harness.resume(run)
    assert harness.rows("SELECT status FROM asks ORDER BY created_at") == [("withdrawn",), ("applied",)]
    assert sorted(harness.book) == sorted(EFFECTS)
    assert harness.guild("replay", run).code == 0
