"""The program runtime, with a scripted program (the puppet) in the real confinement."""

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


class ConversationOver(Exception):
    """There are no more messages of the user."""


@dataclass
class Stage:
    """A driver for the puppet and its doors. The script of the puppet contains the answers of the model."""

    part: Part
    info: RuntimeInfo = ROW
    accepts_input: bool = True  # accepts further messages; otherwise it is restarted with `restart_part`
    restart_part: Part = field(default_factory=list)
    busy: Callable[[], bool] = lambda: False
    hooks: ProgramHooks | None = None
    seen: list[Mapping[str, Any]] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    closings: int = 0
    waits: int = 0
    user_messages: list[str] = field(default_factory=list)  # messages of the user
    pause_s: float = 0.0
    user_is_typing: bool = False
    keys: list[str] = field(default_factory=list)

    # doors

    async def next_message(self, key: str) -> str:
        self.keys.append(key)
        self.user_is_typing = True
        await asyncio.sleep(self.pause_s)
        self.user_is_typing = False
        if len(self.keys) > len(self.user_messages):
            raise ConversationOver
        return self.user_messages[len(self.keys) - 1]

    def register(self, hooks: ProgramHooks) -> DoorAccess:
        self.hooks = hooks

        async def settle() -> None:
            self.waits += 1

        def close() -> None:
            self.closings += 1

        return DoorAccess(token="t0ken", servers=("tools",), has_calls=self.busy, wait_for_calls=settle, close=close)

    # driver

    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        import json

        files = {"part": json.dumps(self.part), "deep/er/token": access.token}
        return Launch(
            argv=("--url", url, str(home)), env={"TOKEN": access.token}, files=files, stdin=b"", keeps_stdin_open=True
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
        self.part = self.part if self.accepts_input else self.restart_part
        return f"{text}\n".encode() if self.accepts_input else None

    def exit_error(self, manner: str) -> RuntimeFailed | None:
        return RuntimeFailed("as it does") if "as usual" in manner else None


class IdleListener:
    """A listener that serves nothing."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door

    async def close(self, patience: float) -> None:
        self.door.close()


async def listen_idle(door: socket.socket) -> IdleListener:
    return IdleListener(door)


def run_stage(
    stage: Stage,
    schema: Any = None,
    idle_timeout_s: float = 60,
    listen: Any = listen_idle,
    *,
    is_conversation: bool = False,
) -> Outcome:
    runtime = ProgramRuntime(lambda: stage, puppet_programs(), listen, idle_timeout_s=idle_timeout_s)
    assignment = Assignment(
        system_prompt="Be.", first_message="Go.", tools=(), output_schema=schema, is_conversation=is_conversation
    )

    async def main() -> Outcome:
        async with asyncio.timeout(20):
            return await runtime.execute(assignment, stage)  # type: ignore[arg-type]

    return asyncio.run(main())


def puppet_programs() -> Programs:
    search = f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    versions = VersionCache()
    versions.save(PUPPET, file_state(PUPPET), "1.2.3")  # so that it is not started for its version
    return Programs({"GUILDHALL_PUPPET": str(PUPPET), "PATH": search}, versions)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the temporary folder, and check that no program and no home is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert find_program_pids(tmp_path) == []
    assert list(tmp_path.glob("guild-home-*")) == []


# Output


def test_the_output_is_the_answer_of_the_model_and_not_of_the_program() -> None:
    stage = Stage([("say", {"answer": "old"}), ("say", HELLO), ("say", {**DONE, "result": "lies"}), ("sleep", 60)])
    del stage.part[2][1]["result"]
    assert run_stage(stage).output == "hello"
    assert (stage.closings > 0, stage.waits) == (True, 0)


def test_an_unusable_answer_is_sent_back_and_the_next_one_counts() -> None:
    stage = Stage([("say", {"answer": " "}), ("say", DONE), ("hear", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)])
    assert run_stage(stage).output == "hello"
    assert {"heard": "The answer was empty. Answer in text, or call a tool.\n"} in stage.seen


def test_a_truncated_answer_that_the_program_continues_is_one_answer() -> None:
    said: Part = [("say", {"answer": "hel", "cut": 1}), ("say", {"answer": "l", "cut": 1}), ("say", {"answer": "o"})]
    assert run_stage(Stage([*said, ("say", DONE), ("sleep", 60)])).output == "hello"
    replies: Part = [("say", {"answer": "hel", "cut": 1}), ("say", DONE), ("hear", 0), ("say", HELLO), ("say", DONE)]
    assert run_stage(Stage([*replies, ("sleep", 60)])).output == "hello"
    calls: Part = [("say", {"answer": "hel", "cut": 1}), ("say", {"calls": [("look", {})]}), ("say", HELLO)]
    assert run_stage(Stage([*calls, ("say", DONE), ("sleep", 60)])).output == "hello"


def test_the_third_unusable_answer_in_a_row_fails_the_run() -> None:
    empty: Part = [("say", {"answer": ""}), ("say", DONE), ("hear", 0)]
    with pytest.raises(RuntimeFailed, match="3 unusable model responses in a row: The answer was empty"):
        run_stage(Stage([*empty, *empty, *empty]))
    called: Part = [("say", {"calls": [("look", {})]})]
    stage = Stage([*empty, *empty, *called, *empty, ("say", HELLO), ("say", DONE), ("sleep", 60)])
    assert run_stage(stage).output == "hello"


def test_a_program_without_further_input_is_restarted_in_the_same_home() -> None:
    first: Part = [("say", {"answer": "a", "cut": 1}), ("say", DONE), ("show", 0), ("leave", 0)]
    second: Part = [("show", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)]
    stage = Stage(first, accepts_input=False, restart_part=second)
    assert run_stage(stage).output == "hello"
    (home,) = {line["env"]["HOME"] for line in stage.seen if "env" in line}
    assert str(home)


# Conversations


def run_conversation(stage: Stage, **options: Any) -> list[str]:
    """Run until the user has no more messages, and return the requested keys."""
    with pytest.raises(ConversationOver):
        run_stage(stage, is_conversation=True, **options)
    return stage.keys


def test_a_conversation_sends_the_next_message_to_the_program() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("hear", 0)]
    stage = Stage([*turn, *turn, *turn], user_messages=["more", "and more"])
    assert run_conversation(stage) == ["u1", "u2", "u3"]
    assert [line["heard"] for line in stage.seen if "heard" in line] == ["more\n", "and more\n"]


def test_a_conversation_restarts_a_program_without_further_input() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("leave", 0)]
    assert run_conversation(Stage(turn, accepts_input=False, restart_part=turn, user_messages=["more"])) == ["u1", "u2"]


def test_a_program_is_not_idle_while_the_user_types() -> None:
    turn: Part = [("say", HELLO), ("say", DONE), ("hear", 0)]
    stage = Stage([*turn, *turn], user_messages=["more"], pause_s=0.2)
    stage.busy = lambda: not stage.user_is_typing
    assert run_conversation(stage, idle_timeout_s=0.1) == ["u1", "u2"]


def test_unusable_answers_end_a_turn_but_not_the_conversation() -> None:
    empty: Part = [("say", {"answer": ""}), ("say", DONE), ("hear", 0)]
    stage = Stage(
        [*empty, *empty, *empty, *empty, ("say", HELLO), ("say", DONE), ("sleep", 60)], user_messages=["well?"]
    )
    assert run_conversation(stage) == ["u1", "u2"]
    replies = [line["heard"] for line in stage.seen if "heard" in line]
    assert replies[2:] == ["well?\n", "The answer was empty. Answer in text, or call a tool.\n"], (
        "unusable answers are counted for each turn"
    )


@pytest.mark.parametrize("place", ["deep", "deep/er", "work", "part"])
def test_a_link_in_the_home_of_a_program_is_not_followed(tmp_path: Path, place: str) -> None:
    (tmp_path / "er").mkdir()
    (tmp_path / "token").write_text("theirs")
    target = tmp_path / "token" if place == "part" else tmp_path
    first: Part = [("link", [place, str(target)]), ("say", {"answer": "a", "cut": 1}), ("say", DONE), ("leave", 0)]
    stage = Stage(first, accepts_input=False, restart_part=[("say", HELLO), ("say", DONE), ("sleep", 60)])
    if place == "part":  # a file is replaced, also if it is a link
        assert run_stage(stage).output == "hello"
    else:
        with pytest.raises(RuntimeFailed, match="cannot write the home of the program"):
            run_stage(stage)
    assert ((tmp_path / "token").read_text(), [*(tmp_path / "er").iterdir()]) == ("theirs", [])


def test_a_program_that_ends_without_a_model_call_fails() -> None:
    with pytest.raises(RuntimeFailed, match="ended its turn without a model call"):
        run_stage(Stage([("say", DONE), ("sleep", 60)]))


def test_missing_tools_fail_the_run() -> None:
    with pytest.raises(RuntimeToolless):
        run_stage(Stage([("say", {"toolless": 1}), ("sleep", 60)]))


# Results with a schema


def final(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return ("final_result", arguments)


def test_a_valid_result_ends_the_run() -> None:
    assert run_stage(Stage([("say", {"calls": [final(n=1)]}), ("sleep", 60)]), SCHEMA).output == {"n": 1}


def test_an_invalid_result_is_sent_back_and_the_third_fails_the_run() -> None:
    wrong: Part = [("say", {"calls": [final(n="x")]}), ("say", {"result": {"n": "x"}})]
    stage = Stage([*wrong, ("say", {"calls": [final(n=2)]}), ("sleep", 60)])
    assert run_stage(stage, SCHEMA).output == {"n": 2}
    (replies,) = stage.results
    assert replies.is_error
    assert "n: 'x' is not of type 'integer'" in replies.text
    with pytest.raises(RuntimeFailed, match="3 unusable model responses in a row"):
        run_stage(Stage([*wrong * 3, ("sleep", 60)]), SCHEMA)


def test_text_instead_of_a_result_is_sent_back() -> None:
    stage = Stage([("say", HELLO), ("say", DONE), ("hear", 0), ("say", {"calls": [final(n=3)]}), ("sleep", 60)])
    assert run_stage(stage, SCHEMA).output == {"n": 3}
    assert {"heard": "Give the result by calling final_result once.\n"} in stage.seen


def test_two_results_in_one_answer_count_as_one_unusable_answer() -> None:
    twice: Part = [("say", {"calls": [final(n=1), final(n=2)]}), *[("say", {"result": {"n": 1}})] * 2]
    stage = Stage([*twice, *twice, ("say", {"calls": [final(n=3)]}), ("sleep", 60)])
    assert run_stage(stage, SCHEMA).output == {"n": 3}
    assert all("once" in replies.text for replies in stage.results)


def test_other_calls_beside_the_result_are_made_before_the_end() -> None:
    both = {"calls": [final(n=4), ("look", {})]}
    stage = Stage(
        [("say", both), ("say", {"result": {"n": 4}}), ("say", {"looked": 1}), ("say", {"over": 1}), ("sleep", 60)]
    )
    assert run_stage(stage, SCHEMA).output == {"n": 4}
    assert [replies.is_error for replies in stage.results] == [False]
    assert {"looked": 1} in stage.seen


# Failures


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ([("complain", "boom"), ("leave", 3)], "The puppet exited with code 3. Output: boom"),
        ([("say", HELLO), ("leave", 0)], "The puppet exited with code 0"),
        ([("die", 9)], "The puppet was killed by SIGKILL"),
        ([("die", 11)], "The puppet was killed by SIGSEGV"),
        ([("write", "not json\n[1]\n\xff\xfe\nno end")], "Output: not json\n[1]\n��\nno end"),
        ([("complain", "x" * 9000), ("leave", 1)], "x" * 1000),
    ],
)
def test_a_program_that_exits_before_the_end_has_crashed(part: Part, message: str) -> None:
    stage = Stage(part)
    with pytest.raises(RuntimeCrashed) as crashed:
        run_stage(stage)
    assert message in crashed.value.message
    assert len(crashed.value.message) < 2_200
    assert stage.waits == 1  # active calls finish first


def test_the_driver_can_explain_the_exit_of_a_program() -> None:
    with pytest.raises(RuntimeFailed, match="as it does"):
        run_stage(Stage([("complain", "as usual"), ("leave", 1)]))


def test_invalid_lines_are_ignored() -> None:
    odd = ["", " ", "{", "[" * 100_000, "null", '"x"', "x" * 3_000_000, '{"a": NaN}']
    part: Part = [("write", f"{line}\n") for line in odd]
    assert (
        run_stage(Stage([*part, ("say", HELLO), ("write", '{"done": 1}'), ("write", "\r\n"), ("sleep", 60)])).output
        == "hello"
    )


def test_an_idle_program_is_ended_and_one_that_waits_at_a_door_is_not() -> None:
    stage = Stage([("say", {"up": 1}), ("complain", "hm"), ("sleep", 60)], busy=lambda: not stage.seen)
    with pytest.raises(RuntimeCrashed, match=r"was silent for 0\.3 s and was killed\. Output: hm"):
        run_stage(stage, idle_timeout_s=0.3)
    waits = Stage([("sleep", 1), ("say", HELLO), ("say", DONE), ("sleep", 60)], busy=lambda: not waits.seen)
    assert run_stage(waits, idle_timeout_s=0.3).output == "hello"


def test_a_cancelled_program_ends_with_all_its_processes(scratch: Path) -> None:
    stage = Stage([("bear", 4242), ("say", {"here": 1}), ("sleep", 60)])
    runtime = ProgramRuntime(lambda: stage, puppet_programs(), listen_idle)
    assignment = Assignment(system_prompt="", first_message="", tools=())

    async def main() -> float:
        task = asyncio.create_task(runtime.execute(assignment, stage))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while not stage.seen:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(main()) < 2  # some 10 ms on an idle machine
    lines = [line.read_bytes() for line in Path("/proc").glob("[0-9]*/cmdline") if line.exists()]
    assert b"sleep\x004242\x00" not in lines


def test_a_failed_listener_ends_the_run(scratch: Path) -> None:
    async def fail_to_listen(door: socket.socket) -> IdleListener:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run_stage(Stage([("sleep", 60)]), listen=fail_to_listen)


# Environment


def test_a_program_has_a_private_home_and_no_secret_on_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-the-real-one")
    stage = Stage([("show", 0), ("say", HELLO), ("say", DONE), ("sleep", 60)])
    run_stage(stage)
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


def test_homes_left_by_a_killed_hall_are_deleted(scratch: Path) -> None:
    left = scratch / "guild-home-dead"
    (left / "work").mkdir(parents=True)
    (scratch / "guild-home-link").symlink_to(scratch / "elsewhere")
    (scratch / "elsewhere").mkdir()
    run_stage(Stage([("say", HELLO), ("say", DONE), ("sleep", 60)]))
    assert not left.exists()
    assert (scratch / "elsewhere").exists()
    (scratch / "guild-home-link").unlink()
