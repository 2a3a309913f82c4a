"""Runs in child processes: their isolation, and crashes that do not affect other runs."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import LimitReached, RuntimeCrashed, RuntimeFailed
from guildhall.runtimes.forked.fork_server_client import ForkServer
from guildhall.runtimes.forked.runtime import ForkedRuntime
from guildhall.runtimes.model import Assignment
from guildhall.tools.model import Blob, Text, ToolCall, ToolResult
from tests.conftest import ROOT
from tests.run_processes import TIMEOUT_S, WatchedProcess, child_pids
from tests.runs.places import wait_until
from tests.runtimes.test_pydantic import RecordingDoors, call_answer, make_assignment, text_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.paths import Home
    from tests.run_processes import ForkServerLoop


def assignment_for(word: str) -> Assignment:
    """Return the assignment that makes a misbehaving child execute a command."""
    return Assignment(system_prompt="Be.", first_message=word, tools=())


def run_misbehaving(
    misbehaving_loop: ForkServerLoop,
    word: str,
    doors: RecordingDoors | None = None,
    *,
    converses: bool = False,
    **options: Any,
) -> Any:
    """Make a misbehaving child execute a command, and return its output."""
    runtime = ForkedRuntime(misbehaving_loop.fork_server, **options)
    return misbehaving_loop.run(
        runtime.execute(replace(assignment_for(word), is_conversation=converses), doors or RecordingDoors())
    ).output


def can_still_run(fork_loop: ForkServerLoop) -> bool:
    return (
        fork_loop.run(
            ForkedRuntime(fork_loop.fork_server).execute(assignment_for("looks"), RecordingDoors(text_answer("{}")))
        ).output
        != ""
    )


def has_ended(pid: int) -> bool:
    try:
        return WatchedProcess(pid).wait_exit()
    except ProcessLookupError:
        return True


async def wait_for_processes(fork_server: ForkServer, number: int) -> None:
    """Wait until the fork server has this number of processes."""
    for _ in range(500):
        if len(fork_server.pids) == number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(fork_server.pids)


class HeldDoors(RecordingDoors):
    """Doors that hold every tool call until they are released."""

    def __init__(self, *answers: ModelResponse) -> None:
        super().__init__(*answers)
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.finished: list[str] = []

    async def call_tool(self, call: ToolCall) -> ToolResult:
        self.reached.set()
        await self.release.wait()
        self.finished.append(call.key)
        return await super().call_tool(call)


# Isolation


def test_a_child_inherits_nothing_from_the_hall(
    misbehaving_loop: ForkServerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    found = json.loads(run_misbehaving(misbehaving_loop, "looks"))
    assert found == {
        "environment": {"LC_CTYPE": "C.UTF-8"},  # Python sets it if the environment is empty
        "descriptors": [0, 1, 2, 3],
        "lead_nowhere": [True] * 3,
        "group": True,
        "cwd": "/",
        "files": [0, 0],
    }


def test_a_child_reaches_no_file_process_or_network(misbehaving_loop: ForkServerLoop, home: Home) -> None:
    home.path.mkdir()
    secret = home.path / "hall.json"
    secret.write_text("token")
    others = json.dumps([str(secret), str(home.path), os.getpid()])
    assert json.loads(run_misbehaving(misbehaving_loop, f"reaches {others}")) == {}
    assert [path.name for path in home.path.iterdir()] == ["hall.json"]


def test_the_fork_server_inherits_nothing_from_the_hall(fork_loop: ForkServerLoop) -> None:
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), RecordingDoors(text_answer("up"))))
    folder = Path(f"/proc/{fork_loop.fork_server.pids[0]}")
    assert (folder / "environ").read_bytes() == b""
    assert len(list((folder / "task").iterdir())) == 1, "a fork must not lose threads"
    wait_until(lambda: len(list((folder / "fd").iterdir())) == 4)  # after its warm-up
    assert (folder / "cwd").readlink() == Path("/")


@pytest.mark.parametrize("text", ["half of a pair: \ud83d, a NUL: \0, a line\n", "x" * 3_000_000, "\u2028\x85 end"])
def test_texts_and_bytes_arrive_unchanged(fork_loop: ForkServerLoop, text: str) -> None:
    blocks = ToolResult(content=(Text(text), Blob(bytes(range(256)), "image/png")))
    doors = RecordingDoors(call_answer("a", args={"n": text}), text_answer(text), result=blocks)
    runtime = ForkedRuntime(fork_loop.fork_server)
    outcome = fork_loop.run(runtime.execute(make_assignment(), doors))
    assert outcome.output == text
    assert doors.calls[0].arguments == {"n": text}
    text_part, picture = doors.last_replies()[0].content
    assert (text_part, picture.data) == (text, bytes(range(256)))
    assert [message.kind for message in outcome.messages] == ["request", "response"] * 2


@pytest.mark.parametrize("odd", [{"n": float("nan")}, '{"n": NaN}', "[" * 3000])
def test_invalid_arguments_reach_the_door_as_none(fork_loop: ForkServerLoop, odd: Any) -> None:
    doors = RecordingDoors(call_answer("a", args=odd), text_answer("done"))
    assert fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), doors)).output == "done"
    assert doors.calls[0].arguments is None


def test_calls_of_one_answer_are_made_in_parallel(fork_loop: ForkServerLoop) -> None:
    class BarrierDoors(RecordingDoors):
        def __init__(self) -> None:
            super().__init__(call_answer("a", "b", "c"), text_answer("done"))
            self.barrier = asyncio.Barrier(3)

        async def call_tool(self, call: ToolCall) -> ToolResult:
            await self.barrier.wait()
            return await super().call_tool(call)

    assert (
        fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), BarrierDoors())).output == "done"
    )


def test_all_calls_of_one_answer_start_before_any_of_them_ends(fork_loop: ForkServerLoop) -> None:
    """A count of active calls then includes all of them."""

    class CountingDoors(RecordingDoors):
        def __init__(self) -> None:
            super().__init__(call_answer(*map(str, range(30))), text_answer("done"))
            self.started = 0
            self.counts: list[int] = []

        async def call_tool(self, call: ToolCall) -> ToolResult:
            self.started += 1
            await asyncio.sleep(0)
            self.counts.append(self.started)
            return await super().call_tool(call)

    doors = CountingDoors()
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), doors))
    assert doors.counts == [30] * 30


def test_twenty_runs_work_in_parallel(fork_loop: ForkServerLoop) -> None:
    runtime = ForkedRuntime(fork_loop.fork_server)

    async def run_one(number: int) -> None:
        doors = RecordingDoors(
            call_answer("a"), text_answer(f"run {number}"), result=ToolResult.of(f"seen by {number}")
        )
        assert (await runtime.execute(make_assignment(), doors)).output == f"run {number}"
        assert doors.last_replies()[0].content == f"seen by {number}"

    async def work() -> None:
        await asyncio.gather(*map(run_one, range(20)))

    fork_loop.run(work())
    assert len(fork_loop.fork_server.pids) == 1, "no child is left"


# Ends of a child


@pytest.mark.req("AW-21")
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("exits 3", r"exited with code 3"),
        ("exits 0", r"exited with code 0"),
        ("signals 9", "was killed by SIGKILL .by a user, or because the machine ran out of memory."),
        ("signals 15", "was killed by SIGTERM"),
        ("signals 40", "was killed by signal 40"),
        ("crashes", "was killed by SIGSEGV"),
        ("eats", "ran out of memory: its limit is 100 MB"),
    ],
)
def test_the_error_names_the_reason_of_a_child_s_death(
    misbehaving_loop: ForkServerLoop, word: str, reason: str
) -> None:
    with pytest.raises(RuntimeCrashed, match=reason):
        run_misbehaving(misbehaving_loop, word, memory_bytes=100 * 1024**2)
    assert len(misbehaving_loop.fork_server.pids) == 1
    assert can_still_run(misbehaving_loop)


@pytest.mark.req("AW-21")
def test_a_run_out_of_memory_is_ended_and_the_others_continue(fork_loop: ForkServerLoop) -> None:
    """Give a real child an answer that exceeds its memory."""

    async def work() -> None:
        other = HeldDoors(call_answer("a"), text_answer("the other"))
        running = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), other))
        await other.reached.wait()
        small = ForkedRuntime(fork_loop.fork_server, memory_bytes=24 * 1024**2)
        with pytest.raises(RuntimeCrashed, match="ran out of memory: its limit is 24 MB"):
            await small.execute(make_assignment(), RecordingDoors(text_answer("x" * 30_000_000)))
        other.release.set()
        assert (await running).output == "the other"

    fork_loop.run(work())


@pytest.mark.parametrize(
    "line",
    [
        "\n",
        "nonsense\n",
        "\xff\xfe\x00\n",
        "null\n",
        "[]\n",
        "{}\n",
        '{"door": "window"}\n',
        '{"door": "model"}\n',
        '{"door": "model", "id": 1, "key": "m1", "after": 0, "requests": []}\n',
        '{"door": "model", "id": 1, "key": "m1", "after": 2, "requests": []}\n',
        '{"door": "model", "id": 0, "key": "m1", "after": 1, "requests": []}\n',
        '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": [{"parts": 5}]}\n',
        '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": [{"kind": "response", "parts": []}]}\n',
        '{"door": "tool", "id": 1, "key": "m1/a"}\n',
        '{"door": "tool", "id": 1, "key": "m1/a", "tool": "Bash", "arguments": {"command": "ls"}}\n',
        '{"door": "out", "output": {"n": NaN}}\n',
        '{"door": "out", "output": 5}\n',
        '{"door": "out"}\n',
        "[" * 100_000 + "\n",
        '{"door": "out", "output": ' + '{"a": ' * 50_000 + "\n",
        '{"id": ' + "9" * 10_000 + "}\n",
    ],
)
def test_a_child_that_sends_an_invalid_line_is_ended(misbehaving_loop: ForkServerLoop, line: str) -> None:
    doors = RecordingDoors()
    with pytest.raises(RuntimeCrashed, match=r"^the process of the run .* and was killed"):
        run_misbehaving(misbehaving_loop, f"says {line}", doors)
    assert (doors.requests, doors.calls) == ([], [])
    assert len(misbehaving_loop.fork_server.pids) == 1


def test_a_repeated_call_is_refused(misbehaving_loop: ForkServerLoop) -> None:
    """The model has answered with one call."""
    ask = '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": []}\n'
    call = '{"door": "tool", "id": 2, "key": "m1/a"}\n'
    doors = RecordingDoors(call_answer("a"))
    with pytest.raises(RuntimeCrashed, match="that no model response contains"):
        run_misbehaving(misbehaving_loop, f"asks {ask}{call}{call}", doors)
    assert [one.key for one in doors.calls] == ["m1/a"]


def test_two_parallel_model_requests_are_refused(misbehaving_loop: ForkServerLoop) -> None:
    ask = '{"door": "model", "id": %d, "key": "m1", "after": 1, "requests": []}\n'
    with pytest.raises(RuntimeCrashed, match="out of turn"):
        run_misbehaving(misbehaving_loop, f"says {ask % 1}{ask % 2}", RecordingDoors(text_answer("one")))


MODEL = '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": []}\n'
MESSAGE = '{"door": "message", "id": 2, "key": "u%d"}\n'


@pytest.mark.parametrize(
    ("lines", "converses", "message_keys"),
    [
        (MESSAGE % 1, True, []),
        (MODEL + MESSAGE % 1, False, []),
        (MODEL + MESSAGE % 1 + MESSAGE % 2, True, ["u1"]),
        (MODEL + MESSAGE % 1 + MESSAGE % 1, True, ["u1"]),
    ],
    ids=["before an answer", "in no conversation", "twice after one answer", "the same once more"],
)
def test_a_child_gets_messages_only_in_its_turn(
    misbehaving_loop: ForkServerLoop, lines: str, converses: bool, message_keys: list[str]
) -> None:
    doors = RecordingDoors(text_answer("one"))
    with pytest.raises(RuntimeCrashed, match="requested the next user message out of turn"):
        run_misbehaving(misbehaving_loop, f"asks {lines}", doors, converses=converses)
    assert doors.message_keys == message_keys


def test_a_child_that_sends_an_endless_line_is_ended(misbehaving_loop: ForkServerLoop) -> None:
    with pytest.raises(RuntimeCrashed, match="sent a line of more than"):
        run_misbehaving(misbehaving_loop, "endless")
    assert can_still_run(misbehaving_loop)


@pytest.mark.parametrize("session", ["apart", "together"])
def test_processes_of_a_child_end_with_it(misbehaving_loop: ForkServerLoop, session: str) -> None:
    assert has_ended(int(run_misbehaving(misbehaving_loop, f"leaves {session}")))


def test_an_error_of_a_door_is_the_error_of_the_run(fork_loop: ForkServerLoop) -> None:
    error = LimitReached("enough", limit="max_turns")

    class ClosedDoors(RecordingDoors):
        async def call_tool(self, call: ToolCall) -> ToolResult:
            raise error

    with pytest.raises(LimitReached) as raised:
        fork_loop.run(
            ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), ClosedDoors(call_answer("a", "b")))
        )
    assert raised.value is error
    assert len(fork_loop.fork_server.pids) == 1


# Killed processes


def test_a_hanging_child_is_killed_if_its_run_is_cancelled(misbehaving_loop: ForkServerLoop) -> None:
    async def work() -> list[WatchedProcess]:
        runtime = ForkedRuntime(misbehaving_loop.fork_server)
        hanging = [asyncio.create_task(runtime.execute(assignment_for("hangs"), RecordingDoors())) for _ in range(3)]
        await wait_for_processes(misbehaving_loop.fork_server, 4)
        children = [WatchedProcess(pid) for pid in misbehaving_loop.fork_server.pids[1:]]
        for task in hanging:
            task.cancel()
        for task in hanging:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(misbehaving_loop.fork_server.pids) == 1, "a cancelled run must end its process"
        return children

    assert all(child.wait_exit() for child in misbehaving_loop.run(work()))


@pytest.mark.req("AW-21")
def test_active_calls_finish_after_the_child_dies(fork_loop: ForkServerLoop) -> None:
    async def work() -> None:
        doors = HeldDoors(call_answer("a", "b"), text_answer("never"))
        running = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), doors))
        await doors.reached.wait()
        os.kill(fork_loop.fork_server.pids[1], signal.SIGKILL)
        await asyncio.sleep(0.05)
        assert not running.done()
        doors.release.set()
        with pytest.raises(RuntimeCrashed, match="SIGKILL"):
            await running
        assert sorted(doors.finished) == ["m1/a", "m1/b"]

    fork_loop.run(work())


def test_a_call_that_never_ends_can_be_cancelled_after_the_child_dies(fork_loop: ForkServerLoop) -> None:
    async def work() -> None:
        doors = HeldDoors(call_answer("a"), text_answer("never"))
        running = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), doors))
        await doors.reached.wait()
        os.kill(fork_loop.fork_server.pids[1], signal.SIGKILL)
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert doors.finished == []

    fork_loop.run(work())


def test_runs_survive_or_crash_cleanly_if_the_fork_server_is_killed(misbehaving_loop: ForkServerLoop) -> None:
    """Runs without a process get one from the next fork server."""

    async def work() -> list[BaseException | Any]:
        runtime = ForkedRuntime(misbehaving_loop.fork_server)
        runs = [asyncio.create_task(runtime.execute(assignment_for("looks"), RecordingDoors())) for _ in range(20)]
        await asyncio.sleep(0)
        os.kill(misbehaving_loop.fork_server.pids[0], signal.SIGKILL)
        return await asyncio.gather(*runs, return_exceptions=True)

    ended = misbehaving_loop.run(work())
    assert all(isinstance(one, RuntimeCrashed) or json.loads(one.output)["group"] for one in ended)
    assert any(not isinstance(one, RuntimeCrashed) for one in ended)


def test_a_killed_idle_fork_server_is_replaced(misbehaving_loop: ForkServerLoop) -> None:
    assert can_still_run(misbehaving_loop)
    first = misbehaving_loop.fork_server.pids[0]

    async def work() -> None:
        watched = WatchedProcess(first)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.to_thread(watched.wait_exit)
        for _ in range(500):
            if misbehaving_loop.fork_server.pids[0] != first:
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    misbehaving_loop.run(work())
    assert not Path(f"/proc/{first}").exists(), "a killed fork server must be reaped"
    assert can_still_run(misbehaving_loop)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_cancelled_spawn_leaves_no_process(misbehaving_loop: ForkServerLoop, moment: str) -> None:
    async def work() -> None:
        spawns = [asyncio.create_task(misbehaving_loop.fork_server.spawn(1024**2)) for _ in range(5)]
        await asyncio.sleep(0)
        server = misbehaving_loop.fork_server._server
        assert server is not None
        while moment != "before" and server._pending:  # all replies are read, but no waiter was woken yet
            select.select([server._control], [], [], TIMEOUT_S)
            server._receive()
        for task in spawns:
            task.cancel()
        ended = await asyncio.gather(*spawns, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        await wait_for_processes(misbehaving_loop.fork_server, 1)

    misbehaving_loop.run(work())
    assert can_still_run(misbehaving_loop)


@pytest.mark.req("AW-21")
def test_children_die_with_a_killed_fork_server_which_is_replaced(misbehaving_loop: ForkServerLoop) -> None:
    async def work() -> list[WatchedProcess]:
        runtime = ForkedRuntime(misbehaving_loop.fork_server)
        hanging = [asyncio.create_task(runtime.execute(assignment_for("hangs"), RecordingDoors())) for _ in range(3)]
        await wait_for_processes(misbehaving_loop.fork_server, 4)
        processes = [WatchedProcess(pid) for pid in misbehaving_loop.fork_server.pids]
        first = misbehaving_loop.fork_server.pids[0]
        os.kill(first, signal.SIGKILL)
        for task in hanging:
            with pytest.raises(RuntimeCrashed, match="was killed with the fork server"):
                await task
        output = (await runtime.execute(assignment_for("looks"), RecordingDoors())).output
        assert json.loads(output)["group"]
        assert misbehaving_loop.fork_server.pids[0] != first
        return processes

    assert all(one.wait_exit() for one in misbehaving_loop.run(work()))


def run_with_fork_server(command: list[str], work: Callable[[ForkServer], Awaitable[Any]], **options: Any) -> Any:
    async def run_work() -> Any:
        fork_server = ForkServer(command, **options)
        try:
            async with asyncio.timeout(20):
                return await work(fork_server)
        finally:
            await fork_server.close()

    return asyncio.run(run_work())


def test_a_fork_server_that_cannot_start_reports_the_reason() -> None:
    async def work(fork_server: ForkServer) -> None:
        with pytest.raises(RuntimeFailed, match="the fork server exited 3 times") as raised:
            await ForkedRuntime(fork_server).execute(make_assignment(), RecordingDoors())
        assert raised.value.hint == "no such module"

    run_with_fork_server(["/bin/sh", "-c", "echo no such module >&2; exit 1"], work)


def test_a_fork_server_that_does_not_answer_times_out() -> None:
    async def work(fork_server: ForkServer) -> None:
        with pytest.raises(RuntimeFailed, match="the fork server exited 3 times"):
            await fork_server.spawn(1024)

    run_with_fork_server(["/bin/sh", "-c", "exec sleep 60"], work, timeout_s=0.1)


def test_a_fork_server_that_does_not_reap_is_replaced(misbehaving_loop: ForkServerLoop) -> None:
    async def work(fork_server: ForkServer) -> None:
        runtime = ForkedRuntime(fork_server)
        hanging = asyncio.create_task(runtime.execute(assignment_for("hangs"), RecordingDoors()))
        await wait_for_processes(fork_server, 2)
        os.kill(fork_server.pids[0], signal.SIGSTOP)
        both = [WatchedProcess(pid) for pid in fork_server.pids]
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert all(one.wait_exit() for one in both)
        assert (await runtime.execute(assignment_for("looks"), RecordingDoors())).output

    run_with_fork_server(list(misbehaving_loop.fork_server._command), work, timeout_s=2.0)


def test_a_child_that_closes_its_socket_is_ended(misbehaving_loop: ForkServerLoop) -> None:
    with pytest.raises(RuntimeCrashed, match="SIGKILL"):
        run_misbehaving(misbehaving_loop, "closes")


def test_a_closed_fork_server_spawns_no_children() -> None:
    async def work(fork_server: ForkServer) -> None:
        await fork_server.close()
        fork_server.start()
        with pytest.raises(RuntimeFailed, match="the hall is stopping"):
            await fork_server.spawn(1024)
        assert fork_server.pids == []

    run_with_fork_server(["/bin/false"], work)


HALL = """
import asyncio, sys
sys.path[:0] = {path!r}
from guildhall.runtimes.forked.runtime import ForkedRuntime
from guildhall.runtimes.model import Assignment
from guildhall.runtimes.forked.fork_server_client import ForkServer

async def main():
    fork_server = ForkServer({command!r})
    runtime = ForkedRuntime(fork_server)
    words = [Assignment(system_prompt="", first_message=word, tools=()) for word in ("hangs", "hangs", "stays")]
    tasks = [asyncio.create_task(runtime.execute(word, None)) for word in words]
    while len(fork_server.pids) < 4:
        await asyncio.sleep(0.01)
    print(*fork_server.pids, flush=True)
    await asyncio.gather(*tasks)

asyncio.run(main())
"""


@pytest.mark.req("AW-21")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_die_with_a_killed_hall(misbehaving_loop: ForkServerLoop, number: signal.Signals) -> None:
    program = HALL.format(path=[str(ROOT), *sys.path], command=list(misbehaving_loop.fork_server._command))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as hall:
        assert hall.stdout is not None
        pids = [int(word) for word in hall.stdout.readline().split()]
        processes = [WatchedProcess(pid) for pid in pids]
        wait_until(lambda: len(child_pids(*pids[1:])) == 1)
        sleepers = [WatchedProcess(pid) for pid in child_pids(*pids[1:])]
        hall.send_signal(number)
        hall.wait(TIMEOUT_S)
    assert len(pids) == 4
    assert all(one.wait_exit() for one in (*processes, *sleepers))


def test_answers_of_all_kinds_form_one_conversation(fork_loop: ForkServerLoop) -> None:
    """A request sends only new messages. The hall appends them to the conversation."""
    doors = RecordingDoors(
        ModelResponse(parts=[TextPart("I look."), ToolCallPart("look", {}, "a")]),
        text_answer(""),
        call_answer("b", "c"),
        text_answer("done"),
    )
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(make_assignment(), doors))
    kinds = [[message.kind for message in messages] for _, messages, _ in doors.requests]
    assert kinds == [["request", "response"] * n + ["request"] for n in range(4)]
