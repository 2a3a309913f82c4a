"""Kills of a run at any point: it continues without losing or repeating a recorded step."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.places import Terminal
from tests.kill.scene import DEEP, EFFECTS, TIMEOUT_S, Record, Scene, Undisturbed, ends, judge, pair_sides

if TYPE_CHECKING:
    from tests.conftest import Guild
    from tests.kill.scene import When

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
def test_killed_at_a_commit_of_a_run(scene: Scene, undisturbed: Undisturbed, number: int, when: When) -> None:
    assert scene.guild_until(number, when, *RUN) is None
    judge(scene, undisturbed, Record.of(scene))


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(ANSWER_COMMITS))
def test_killed_at_a_commit_after_an_answer(scene: Scene, undisturbed: Undisturbed, number: int, when: When) -> None:
    ask = scene.start().json["asks"][0]["ask"]
    assert scene.guild_until(number, when, "answer", ask, "yes", "--output", "json") is None
    judge(scene, undisturbed, Record.of(scene))


@pytest.mark.parametrize("number", [2, 6, 10] if DEEP else [6])
def test_killed_inside_a_transaction(scene: Scene, undisturbed: Undisturbed, number: int) -> None:
    assert scene.guild_until(number, "inside", *RUN) is None
    judge(scene, undisturbed, Record.of(scene))


@pytest.mark.parametrize(("number", "when"), [(6, "before"), (6, "after"), (7, "after")][0 if DEEP else 1 :])
def test_killed_at_a_commit_of_several_entries(scene: Scene, undisturbed: Undisturbed, number: int, when: When) -> None:
    assert scene.guild_until(number, when, *RUN, grouped=True) is None
    judge(scene, undisturbed, Record.of(scene))


@pytest.mark.parametrize(("function", "when"), pair_sides("_create", "_keep_private"))
def test_killed_while_the_database_is_made(scene: Scene, undisturbed: Undisturbed, function: str, when: When) -> None:
    assert scene.guild_until(0, when, *RUN, function=f"guildhall.store.schema:{function}") is None
    judge(scene, undisturbed, Record.of(scene))
    assert scene.start().code == 4
    judge(scene, undisturbed)


# Inside a tool


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("line", "when"), pair_sides("one", "two"))
def test_killed_between_an_effect_and_its_record(scene: Scene, undisturbed: Undisturbed, line: str, when: When) -> None:
    scene.lay_hold(when, line)
    scene.guild_until_file(f"held-{when}-{line}", *RUN)
    scene.lift_holds()
    assert scene.book.count(line) == (when == "after")
    killed = Record.of(scene)
    assert killed.cut_off
    judge(scene, undisturbed, killed)
    assert not list((scene.project / "desk").glob("passed-*"))  # the tool has ended with the process it worked for


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("line", "when"), pair_sides("letter", "three"))
def test_killed_between_an_effect_and_its_record_after_an_answer(
    scene: Scene, undisturbed: Undisturbed, line: str, when: When
) -> None:
    ask = scene.start().json["asks"][0]["ask"]
    scene.lay_hold(when, line)
    scene.guild_until_file(f"held-{when}-{line}", "answer", ask, "yes")
    scene.lift_holds()
    killed = Record.of(scene)
    assert killed.cut_off
    judge(scene, undisturbed, killed)


def test_a_repeatable_call_is_made_again_without_a_question(scene: Scene, undisturbed: Undisturbed) -> None:
    scene.lay_hold("after", "look")
    scene.guild_until_file("held-after-look", *RUN)
    scene.lift_holds()
    killed = Record.of(scene)
    judge(scene, undisturbed, killed)
    assert (scene.project / "desk" / "looks").read_text().count("look") == 3


@pytest.mark.req("X-2")
def test_what_the_person_says_of_an_interrupted_call_is_done(scene: Scene) -> None:
    """Told to make the call again, it is made again though it had been done; told that it failed, it is not."""
    scene.lay_hold("after", "one")
    scene.guild_until_file("held-after-one", *RUN)
    scene.lift_holds()
    run = scene.run_id()
    assert run is not None
    scene.go_on(run, unknown="again")
    assert scene.book.count("one") == 2

    told = [entry for entry in scene.entries() if entry[2] == "m1/call_0_0"]
    assert [kind for _, kind, _, _ in told] == [
        "tool_started",
        "tool_doubted",
        "answered",
        "tool_started",
        "tool_ended",
    ]


def test_an_interrupted_call_can_be_called_a_failure(scene: Scene) -> None:
    scene.lay_hold("before", "one")
    scene.guild_until_file("held-before-one", *RUN)
    scene.lift_holds()
    run = scene.run_id()
    assert run is not None
    scene.go_on(run, unknown="fail")
    assert "one" not in scene.book
    results = {message["id"]: message for message in scene.conversation(run) if message["role"] == "tool"}
    assert results["call_0_0"]["is_error"]
    assert "treat it as failed" in results["call_0_0"]["content"]
    assert scene.guild("replay", run).code == 0


# More than once


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(6))
def test_killed_again_while_it_is_resumed(scene: Scene, undisturbed: Undisturbed, number: int, when: When) -> None:
    scene.lay_hold("after", "two")
    scene.guild_until_file("held-after-two", *RUN)
    scene.lift_holds()
    first, run = Record.of(scene), scene.run_id()
    assert run is not None
    ended = scene.guild_until(number, when, "resume", run, "--output", "json")
    judge(scene, undisturbed, first, *([] if ended else [Record.of(scene)]))


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("first", "second", "third"), [(4, 4, 3), (5, 5, 6), (9, 7, 4)][: 3 if DEEP else 1])
def test_killed_three_times(scene: Scene, undisturbed: Undisturbed, first: int, second: int, third: int) -> None:
    assert scene.guild_until(first, "before", *RUN) is None
    kills, run = [Record.of(scene)], scene.run_id()
    assert run is not None
    for number in (second, third):
        if scene.guild_until(number, "after", "resume", run, "--output", "json") is None:
            kills.append(Record.of(scene))
    judge(scene, undisturbed, *kills)


@pytest.mark.parametrize("number", range(2, 8) if DEEP else (2, 7))
def test_killed_while_an_interrupted_call_is_answered(scene: Scene, undisturbed: Undisturbed, number: int) -> None:
    """Killed after the person's word was taken: it is not asked for again, and not acted upon twice."""
    scene.lay_hold("before", "three")
    ask = scene.start().json["asks"][0]["ask"]
    scene.guild_until_file("held-before-three", "answer", ask, "yes")
    scene.lift_holds()
    first, run = Record.of(scene), scene.run_id()
    assert run is not None
    doubt = scene.guild("resume", run, "--output", "json").json["asks"][0]
    ended = scene.guild_until(number, "after", "answer", doubt["ask"], "again", "--output", "json")
    if number >= 2:
        scene.asked.append("m2/call_1_1")
    again = [] if ended else [Record.of(scene)]
    started = sum(kind == "tool_started" and key == "m2/call_1_1" for _, kind, key, _ in scene.entries())
    if started == 1 or not again[0].cut_off:
        judge(scene, undisturbed, first, *again)
    else:  # made again, and cut off again: that is another doubt
        scene.go_on(run)
        assert scene.asked == ["m2/call_1_1"] * 2
        assert sorted(scene.book) == sorted(EFFECTS)


# The command as it is installed


@pytest.mark.req("X-2")
def test_the_installed_command_killed_inside_a_tool(scene: Scene, undisturbed: Undisturbed, guild: Guild) -> None:
    scene.lay_hold("after", "one")
    process = guild.start(*RUN, env=scene.environment, installed=True)
    deadline = time.monotonic() + TIMEOUT_S
    while not (scene.project / "desk" / "held-after-one").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(5) == -signal.SIGKILL
    scene.lift_holds()
    killed, run = Record.of(scene), scene.run_id()
    assert run is not None
    listed = guild("ls", "--json", env=scene.environment).json["needs_you"]
    assert [lost["status"] for lost in listed["runs"]] == ["interrupted"]
    waiting = guild("resume", run, env=scene.environment)
    assert waiting.code == 4
    assert "was interrupted in a call of enter: did it take effect?" in waiting.err
    judge(scene, undisturbed, killed)


def test_killed_while_it_waits_at_a_terminal(scene: Scene, undisturbed: Undisturbed, guild: Guild) -> None:
    terminal = Terminal(guild, *RUN[:3], env=dict(scene.environment))
    terminal.wait_for("wants to call send")
    terminal.close()
    killed = Record.of(scene)
    assert scene.rows("SELECT status FROM runs") == [("running",)]
    assert scene.rows("SELECT status FROM asks") == [("open",)]
    judge(scene, undisturbed, killed)


@pytest.mark.req("X-1")
def test_a_run_that_ran_out_of_time_asks_again_when_it_goes_on(scene: Scene) -> None:
    """The failure withdrew the ask. The worker does not receive it as unanswered."""
    worker = scene.project / "workers" / "clerk.yaml"
    worker.write_text(f"{worker.read_text()}limits: {{timeout: 4}}\n")
    scene.lay_hold("after", "look")
    late = scene.start()
    assert (late.code, late.json["error"]["code"]) == (5, "limit_reached")
    assert scene.rows("SELECT status FROM asks") == [("withdrawn",)]
    run = late.json["run"]
    assert scene.guild("replay", run).code == 0
    scene.lift_holds()
    scene.go_on(run)
    assert scene.rows("SELECT status FROM asks ORDER BY created_at") == [("withdrawn",), ("applied",)]
    assert sorted(scene.book) == sorted(EFFECTS)
    assert scene.guild("replay", run).code == 0
