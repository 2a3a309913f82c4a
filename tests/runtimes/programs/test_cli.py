"""The runtime that is a program of somebody else, with a program that does as it is told, in the real jail."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import RuntimeCrashed, RuntimeFailed, RuntimeToolless
from guildhall.runtimes.catalog import RuntimeInfo
from guildhall.runtimes.discovery import Programs, VersionCache, file_state
from guildhall.runtimes.model import Assignment, DoorAccess
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import ProgramRuntime, TurnEnd
from tests.clis import find_program_pids

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from guildhall.runtimes.model import Outcome, ProgramHooks
    from guildhall.tools.model import ToolResult

PUPPET = Path(__file__).parents[2] / "standins" / "puppet"
ROW = RuntimeInfo(name="puppet", title="The puppet", program="puppet", min_version="1.2.0", install="nowhere")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HELLO = {"answer": "hello"}
DONE = {"done": True}
Part = list[tuple[str, Any]]


class Over(Exception):
    """Nobody says anything any more."""


@dataclass
class Stage:
    """A driver for the puppet and the doors that it comes to, by hand: what the model says is in the puppet's part."""

    part: Part
    info: RuntimeInfo = ROW
    speaks: bool = True  # a further message can be told; else it is started anew with the other part
    anew: Part = field(default_factory=list)
    busy: Callable[[], bool] = lambda: False
    hooks: ProgramHooks | None = None
    seen: list[Mapping[str, Any]] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    closed: int = 0
    settled: int = 0
    words: list[str] = field(default_factory=list)  # what the person says; then the run is over
    pause: float = 0.0  # seconds that they take
    thinks: bool = False
    keys: list[str] = field(default_factory=list)

    # as the doors

    async def next_message(self, key: str) -> str:
        self.keys.append(key)
        self.thinks = True
        await asyncio.sleep(self.pause)
        self.thinks = False
        if len(self.keys) > len(self.words):
            raise Over
        return self.words[len(self.keys) - 1]

    def register(self, hooks: ProgramHooks) -> DoorAccess:
        self.hooks = hooks

        async def settle() -> None:
            self.settled += 1

        def close() -> None:
            self.closed += 1

        return DoorAccess(token="t0ken", servers=("tools",), has_calls=self.busy, wait_for_calls=settle, close=close)

    # as the driver

    def launch(self, assignment: Assignment, entry: DoorAccess, url: str, home: Path, model: str) -> Launch:
        import json

        files = {"part": json.dumps(self.part), "deep/er/token": entry.token}
        return Launch(
            argv=("--url", url, str(home)), env={"TOKEN": entry.token}, files=files, stdin=b"", keeps_stdin_open=True
        )

    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        assert self.hooks is not None
        self.seen.append(line)
        if "answer" in line or "calls" in line:
            parts: list[Any] = [TextPart(line["answer"])] if "answer" in line else []
            parts += [ToolCallPart(name, args, f"c{n}") for n, (name, args) in enumerate(line.get("calls", []))]
            reason = "length" if line.get("cut") else "stop"
            self.hooks.on_answer(ModelResponse(parts=parts, finish_reason=reason))
        if "over" in line:
            self.hooks.is_finished()
        if "result" in line:
            assert self.hooks.on_result is not None
            coroutine = self.hooks.on_result(line["result"])
            with pytest.raises(StopIteration) as stopped:
                coroutine.send(None)  # type: ignore[attr-defined]
            self.results.append(stopped.value.value)
        if "toolless" in line:
            return TurnEnd(RuntimeToolless("no tools"))
        return TurnEnd() if "done" in line else None

    def tool_name(self, server: str, tool: str) -> str:
        return f"{server}.{tool}"

    def next_input(self, text: str) -> bytes | None:
        self.part = self.part if self.speaks else self.anew
        return f"{text}\n".encode() if self.speaks else None

    def exit_error(self, manner: str) -> RuntimeFailed | None:
        return RuntimeFailed("as it does") if "as usual" in manner else None


class Serving:
    """A door at which nobody is."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door

    async def close(self, patience: float) -> None:
        self.door.close()


async def serve(door: socket.socket) -> Serving:
    return Serving(door)


def play(
    stage: Stage, schema: Any = None, quiet: float = 60, listen: Any = serve, *, converses: bool = False
) -> Outcome:
    runtime = ProgramRuntime(lambda: stage, known(), listen, idle_timeout_s=quiet)
    assignment = Assignment(
        system_prompt="Be.", first_message="Go.", tools=(), output_schema=schema, is_conversation=converses
    )

    async def main() -> Outcome:
        async with asyncio.timeout(20):
            return await runtime.execute(assignment, stage)  # type: ignore[arg-type]

    return asyncio.run(main())


def known() -> Programs:
    search = f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    versions = VersionCache()
    versions.save(PUPPET, file_state(PUPPET), "1.2.3")  # asked for it elsewhere
    return Programs({"GUILDHALL_PUPPET": str(PUPPET), "PATH": search}, versions)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever happens, no program and no home of one is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert find_program_pids(tmp_path) == []
    assert list(tmp_path.glob("guild-home-*")) == []


# What comes of it


def test_the_output_is_what_the_model_answered_not_what_the_program_says() -> None:
    stage = Stage([("say", {"answer": "old"}), ("say", HELLO), ("say", {**DONE, "result": "lies"}), ("sleep", 60)])
    del stage.part[2][1]["result"]
    assert play(stage).output == "hello"
    assert (stage.closed > 0, stage.settled) == (True, 0)


def test_an_answer_that_is_not_usable_is_told_and_the_next_one_counts() -> None:
    stage = Stage([("say", {"answer": " "}), ("say", DONE), ("hear", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)])
    assert play(stage).output == "hello"
    assert {"heard": "The answer was empty. Answer in text, or call a tool.\n"} in stage.seen


def test_an_answer_that_was_cut_off_and_that_the_program_lets_go_on_is_one() -> None:
    said: Part = [("say", {"answer": "hel", "cut": 1}), ("say", {"answer": "l", "cut": 1}), ("say", {"answer": "o"})]
    assert play(Stage([*said, ("say", DONE), ("sleep", 60)])).output == "hello"
    told: Part = [("say", {"answer": "hel", "cut": 1}), ("say", DONE), ("hear", 0), ("say", HELLO), ("say", DONE)]
    assert play(Stage([*told, ("sleep", 60)])).output == "hello"
    calls: Part = [("say", {"answer": "hel", "cut": 1}), ("say", {"calls": [("look", {})]}), ("say", HELLO)]
    assert play(Stage([*calls, ("say", DONE), ("sleep", 60)])).output == "hello"


def test_the_third_that_is_not_usable_in_a_row_is_the_end() -> None:
    empty: Part = [("say", {"answer": ""}), ("say", DONE), ("hear", 0)]
    with pytest.raises(RuntimeFailed, match="3 unusable model answers in a row: The answer was empty"):
        play(Stage([*empty, *empty, *empty]))
    called: Part = [("say", {"calls": [("look", {})]})]
    stage = Stage([*empty, *empty, *called, *empty, ("say", HELLO), ("say", DONE), ("sleep", 60)])
    assert play(stage).output == "hello"


def test_one_that_takes_no_more_words_is_started_anew_in_the_same_home() -> None:
    first: Part = [("say", {"answer": "a", "cut": 1}), ("say", DONE), ("show", 0), ("leave", 0)]
    second: Part = [("show", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)]
    stage = Stage(first, speaks=False, anew=second)
    assert play(stage).output == "hello"
    (home,) = {line["env"]["HOME"] for line in stage.seen if "env" in line}
    assert str(home)


# A conversation


def talk(stage: Stage, **options: Any) -> list[str]:
    """Plays until nobody says anything any more; the keys that were asked for."""
    with pytest.raises(Over):
        play(stage, converses=True, **options)
    return stage.keys


def test_in_a_conversation_it_is_told_what_is_said_next() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("hear", 0)]
    stage = Stage([*turn, *turn, *turn], words=["more", "and more"])
    assert talk(stage) == ["u1", "u2", "u3"]
    assert [line["heard"] for line in stage.seen if "heard" in line] == ["more\n", "and more\n"]


def test_in_a_conversation_one_that_takes_no_more_words_is_started_anew() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("leave", 0)]
    assert talk(Stage(turn, speaks=False, anew=turn, words=["more"])) == ["u1", "u2"]


def test_while_somebody_thinks_what_to_say_it_does_not_hang() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("hear", 0)]
    stage = Stage([*turn, *turn], words=["more"], pause=0.2)
    stage.busy = lambda: not stage.thinks
    assert talk(stage, quiet=0.1) == ["u1", "u2"]


def test_answers_that_are_not_usable_end_a_turn_and_no_conversation() -> None:
    empty: Part = [("say", {"answer": ""}), ("say", DONE), ("hear", 0)]
    stage = Stage([*empty, *empty, *empty, *empty, ("say", HELLO), ("say", DONE), ("sleep", 60)], words=["well?"])
    assert talk(stage) == ["u1", "u2"]
    told = [line["heard"] for line in stage.seen if "heard" in line]
    assert told[2:] == ["well?\n", "The answer was empty. Answer in text, or call a tool.\n"], "they count anew"


@pytest.mark.parametrize("place", ["deep", "deep/er", "work", "part"])
def test_a_link_that_one_has_left_in_its_home_leads_nobody_out_of_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "er").mkdir()
    (tmp_path / "token").write_text("theirs")
    target = tmp_path / "token" if place == "part" else tmp_path
    first: Part = [("link", [place, str(target)]), ("say", {"answer": "a", "cut": 1}), ("say", DONE), ("leave", 0)]
    stage = Stage(first, speaks=False, anew=[("say", HELLO), ("say", DONE), ("sleep", 60)])
    if place == "part":  # a file is taken away, whatever it is
        assert play(stage).output == "hello"
    else:
        with pytest.raises(RuntimeFailed, match="cannot write the home of the program"):
            play(stage)
    assert ((tmp_path / "token").read_text(), [*(tmp_path / "er").iterdir()]) == ("theirs", [])


def test_one_that_is_done_without_having_asked_fails() -> None:
    with pytest.raises(RuntimeFailed, match="finished without a model call"):
        play(Stage([("say", DONE), ("sleep", 60)]))


def test_what_it_cannot_do_without_fails_the_run() -> None:
    with pytest.raises(RuntimeToolless):
        play(Stage([("say", {"toolless": 1}), ("sleep", 60)]))


# A result that must fit a schema


def final(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return ("final_result", arguments)


def test_a_result_that_fits_is_the_end_at_once() -> None:
    assert play(Stage([("say", {"calls": [final(n=1)]}), ("sleep", 60)]), SCHEMA).output == {"n": 1}


def test_one_that_does_not_fit_is_told_and_three_are_the_end() -> None:
    wrong: Part = [("say", {"calls": [final(n="x")]}), ("say", {"result": {"n": "x"}})]
    stage = Stage([*wrong, ("say", {"calls": [final(n=2)]}), ("sleep", 60)])
    assert play(stage, SCHEMA).output == {"n": 2}
    (told,) = stage.results
    assert told.is_error
    assert "n: 'x' is not of type 'integer'" in told.text
    with pytest.raises(RuntimeFailed, match="3 unusable model answers in a row"):
        play(Stage([*wrong * 3, ("sleep", 60)]), SCHEMA)


def test_words_in_the_place_of_a_result_are_told() -> None:
    stage = Stage([("say", HELLO), ("say", DONE), ("hear", 0), ("say", {"calls": [final(n=3)]}), ("sleep", 60)])
    assert play(stage, SCHEMA).output == {"n": 3}
    assert {"heard": "Give the result by calling final_result once.\n"} in stage.seen


def test_two_results_in_one_answer_are_one_miss() -> None:
    twice: Part = [("say", {"calls": [final(n=1), final(n=2)]}), *[("say", {"result": {"n": 1}})] * 2]
    stage = Stage([*twice, *twice, ("say", {"calls": [final(n=3)]}), ("sleep", 60)])
    assert play(stage, SCHEMA).output == {"n": 3}
    assert all("once" in told.text for told in stage.results)


def test_calls_beside_the_result_are_made_before_the_end() -> None:
    both = {"calls": [final(n=4), ("look", {})]}
    stage = Stage(
        [("say", both), ("say", {"result": {"n": 4}}), ("say", {"looked": 1}), ("say", {"over": 1}), ("sleep", 60)]
    )
    assert play(stage, SCHEMA).output == {"n": 4}
    assert [told.is_error for told in stage.results] == [False]
    assert {"looked": 1} in stage.seen


# How it ends otherwise


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ([("complain", "boom"), ("leave", 3)], "The puppet exited with code 3. Output: boom"),
        ([("say", HELLO), ("leave", 0)], "The puppet exited with code 0"),
        ([("die", 9)], "The puppet was killed by SIGKILL"),
        ([("die", 11)], "The puppet was killed by SIGSEGV"),
        ([("write", "not json\n[1]\n\xff\xfe\nno end")], "Output: not json\n[1]\n��\nno end"),
        ([("complain", "x" * 9000), ("leave", 1)], "x" * 1000),
    ],
)
def test_one_that_ends_before_the_run_has_crashed(part: Part, said: str) -> None:
    stage = Stage(part)
    with pytest.raises(RuntimeCrashed) as crashed:
        play(stage)
    assert said in crashed.value.message
    assert len(crashed.value.message) < 2_200
    assert stage.settled == 1  # what it had begun comes to its end first


def test_what_its_end_means_is_for_the_driver_to_say() -> None:
    with pytest.raises(RuntimeFailed, match="as it does"):
        play(Stage([("complain", "as usual"), ("leave", 1)]))


def test_odd_lines_between_are_nothing() -> None:
    odd = ["", " ", "{", "[" * 100_000, "null", '"x"', "x" * 3_000_000, '{"a": NaN}']
    part: Part = [("write", f"{line}\n") for line in odd]
    assert (
        play(Stage([*part, ("say", HELLO), ("write", '{"done": 1}'), ("write", "\r\n"), ("sleep", 60)])).output
        == "hello"
    )


def test_one_that_hangs_is_ended_and_one_that_waits_at_a_door_is_not() -> None:
    stage = Stage([("say", {"up": 1}), ("complain", "hm"), ("sleep", 60)], busy=lambda: not stage.seen)
    with pytest.raises(RuntimeCrashed, match=r"was idle for 0\.3 s and was ended\. Output: hm"):
        play(stage, quiet=0.3)
    waits = Stage([("sleep", 1), ("say", HELLO), ("say", DONE), ("sleep", 60)], busy=lambda: not waits.seen)
    assert play(waits, quiet=0.3).output == "hello"


def test_it_is_ended_at_once_with_all_that_it_started(scratch: Path) -> None:
    stage = Stage([("bear", 4242), ("say", {"here": 1}), ("sleep", 60)])
    runtime = ProgramRuntime(lambda: stage, known(), serve)
    assignment = Assignment(system_prompt="", first_message="", tools=())

    async def main() -> float:
        task = asyncio.create_task(runtime.execute(assignment, stage))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while not stage.seen:  # noqa: ASYNC110 - it is said to nobody else
                await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(main()) < 2  # some tens of milliseconds where nothing else runs
    lines = [line.read_bytes() for line in Path("/proc").glob("[0-9]*/cmdline") if line.exists()]
    assert b"sleep\x004242\x00" not in lines


def test_doors_that_cannot_be_served_end_it(scratch: Path) -> None:
    async def fails(door: socket.socket) -> Serving:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        play(Stage([("sleep", 60)]), listen=fails)


# What it is given


def test_its_home_is_its_own_and_what_is_secret_is_on_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-the-real-one")
    stage = Stage([("show", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)])
    play(stage)
    shown = stage.seen[0]
    home = shown["env"]["HOME"]
    assert shown["argv"][1:] == ["--url", "http://127.0.0.1:7420", home]
    assert shown["cwd"] == f"{home}/work"
    modes = shown["files"]
    assert (modes["."], modes["part"], modes["deep/er/token"]) == ("0o700", "0o600", "0o600")
    assert shown["env"].keys() <= {
        "PATH",
        "HOME",
        "TMPDIR",
        "TOKEN",
        "PWD",
        "GIT_CONFIG_NOSYSTEM",
        "LC_CTYPE",
        "_",
        "OLDPWD",
        "SHLVL",
    }
    assert "sk-the-real-one" not in str(shown)


def test_what_a_killed_hall_has_left_behind_is_taken_away(scratch: Path) -> None:
    left = scratch / "guild-home-dead"
    (left / "work").mkdir(parents=True)
    (scratch / "guild-home-link").symlink_to(scratch / "elsewhere")
    (scratch / "elsewhere").mkdir()
    play(Stage([("say", HELLO), ("say", DONE), ("sleep", 60)]))
    assert not left.exists()
    assert (scratch / "elsewhere").exists()
    (scratch / "guild-home-link").unlink()
