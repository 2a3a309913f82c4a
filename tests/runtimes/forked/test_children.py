"""A run in a process of its own: what it is given, and that whatever becomes of it harms nobody else."""

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
from tests.runtimes.test_pydantic import Doors, calls, says, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.paths import Home
    from tests.run_processes import ForkServerLoop


def sent(word: str) -> Assignment:
    """What makes a wild child do this."""
    return Assignment(system_prompt="Be.", first_message=word, tools=())


def wildly(
    wild: ForkServerLoop, word: str, doors: Doors | None = None, *, converses: bool = False, **options: Any
) -> Any:
    runtime = ForkedRuntime(wild.fork_server, **options)
    return wild.run(runtime.execute(replace(sent(word), is_conversation=converses), doors or Doors())).output


def still_well(fork_loop: ForkServerLoop) -> bool:
    return fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(sent("looks"), Doors(says("{}")))).output != ""


def gone(pid: int) -> bool:
    try:
        return WatchedProcess(pid).wait_exit()
    except ProcessLookupError:
        return True


async def counted(fork_server: ForkServer, number: int) -> None:
    """Waits until there are so many processes."""
    for _ in range(500):
        if len(fork_server.pids) == number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(fork_server.pids)


class Held(Doors):
    """Doors at which a call waits until it is let go."""

    def __init__(self, *answers: ModelResponse) -> None:
        super().__init__(*answers)
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self.finished: list[str] = []

    async def call_tool(self, call: ToolCall) -> ToolResult:
        self.reached.set()
        await self.let_go.wait()
        self.finished.append(call.key)
        return await super().call_tool(call)


# What a child is


def test_a_child_has_nothing_of_the_hall(wild: ForkServerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    found = json.loads(wildly(wild, "looks"))
    assert found == {
        "environment": {"LC_CTYPE": "C.UTF-8"},  # Python sets it by itself where there is none
        "descriptors": [0, 1, 2, 3],
        "lead_nowhere": [True] * 3,
        "group": True,
        "cwd": "/",
        "files": [0, 0],
    }


def test_a_child_reaches_nothing(wild: ForkServerLoop, home: Home) -> None:
    home.path.mkdir()
    secret = home.path / "hall.json"
    secret.write_text("token")
    others = json.dumps([str(secret), str(home.path), os.getpid()])
    assert json.loads(wildly(wild, f"reaches {others}")) == {}
    assert [path.name for path in home.path.iterdir()] == ["hall.json"]


def test_the_warm_parent_has_nothing_of_the_hall(fork_loop: ForkServerLoop) -> None:
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), Doors(says("up"))))
    folder = Path(f"/proc/{fork_loop.fork_server.pids[0]}")
    assert (folder / "environ").read_bytes() == b""
    assert len(list((folder / "task").iterdir())) == 1, "threads do not live on in a fork"
    wait_until(lambda: len(list((folder / "fd").iterdir())) == 4)  # once it has rehearsed
    assert (folder / "cwd").readlink() == Path("/")


@pytest.mark.parametrize("text", ["half of a pair: \ud83d, a NUL: \0, a line\n", "x" * 3_000_000, "\u2028\x85 end"])
def test_what_is_said_survives_the_way(fork_loop: ForkServerLoop, text: str) -> None:
    blocks = ToolResult(content=(Text(text), Blob(bytes(range(256)), "image/png")))
    doors = Doors(calls("a", args={"n": text}), says(text), result=blocks)
    runtime = ForkedRuntime(fork_loop.fork_server)
    outcome = fork_loop.run(runtime.execute(told(), doors))
    assert outcome.output == text
    assert doors.calls[0].arguments == {"n": text}
    said, picture = doors.last_replies()[0].content
    assert (said, picture.data) == (text, bytes(range(256)))
    assert [message.kind for message in outcome.messages] == ["request", "response"] * 2


@pytest.mark.parametrize("odd", [{"n": float("nan")}, '{"n": NaN}', "[" * 3000])
def test_arguments_that_are_none_come_to_the_door_as_such(fork_loop: ForkServerLoop, odd: Any) -> None:
    doors = Doors(calls("a", args=odd), says("done"))
    assert fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), doors)).output == "done"
    assert doors.calls[0].arguments is None


def test_calls_of_one_answer_are_made_side_by_side(fork_loop: ForkServerLoop) -> None:
    class Meeting(Doors):
        def __init__(self) -> None:
            super().__init__(calls("a", "b", "c"), says("done"))
            self.barrier = asyncio.Barrier(3)

        async def call_tool(self, call: ToolCall) -> ToolResult:
            await self.barrier.wait()
            return await super().call_tool(call)

    assert fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), Meeting())).output == "done"


def test_calls_of_one_answer_come_together(fork_loop: ForkServerLoop) -> None:
    """So that whoever counts what still goes on in a run sees all of them, or none."""

    class Counting(Doors):
        def __init__(self) -> None:
            super().__init__(calls(*map(str, range(30))), says("done"))
            self.begun = 0
            self.seen: list[int] = []

        async def call_tool(self, call: ToolCall) -> ToolResult:
            self.begun += 1
            await asyncio.sleep(0)
            self.seen.append(self.begun)
            return await super().call_tool(call)

    doors = Counting()
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), doors))
    assert doors.seen == [30] * 30


def test_twenty_at_once(fork_loop: ForkServerLoop) -> None:
    runtime = ForkedRuntime(fork_loop.fork_server)

    async def one(number: int) -> None:
        doors = Doors(calls("a"), says(f"run {number}"), result=ToolResult.of(f"seen by {number}"))
        assert (await runtime.execute(told(), doors)).output == f"run {number}"
        assert doors.last_replies()[0].content == f"seen by {number}"

    async def work() -> None:
        await asyncio.gather(*map(one, range(20)))

    fork_loop.run(work())
    assert len(fork_loop.fork_server.pids) == 1, "and nobody is left"


# How a child ends


@pytest.mark.req("AW-21")
@pytest.mark.parametrize(
    ("word", "how"),
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
def test_it_is_told_how_a_child_died(wild: ForkServerLoop, word: str, how: str) -> None:
    with pytest.raises(RuntimeCrashed, match=how):
        wildly(wild, word, memory_bytes=100 * 1024**2)
    assert len(wild.fork_server.pids) == 1
    assert still_well(wild)


@pytest.mark.req("AW-21")
def test_a_run_that_uses_up_its_memory_is_ended_and_the_others_go_on(fork_loop: ForkServerLoop) -> None:
    """The real child: the answer of the model is more than it can hold."""

    async def work() -> None:
        other = Held(calls("a"), says("the other"))
        going = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(told(), other))
        await other.reached.wait()
        small = ForkedRuntime(fork_loop.fork_server, memory_bytes=24 * 1024**2)
        with pytest.raises(RuntimeCrashed, match="ran out of memory: its limit is 24 MB"):
            await small.execute(told(), Doors(says("x" * 30_000_000)))
        other.let_go.set()
        assert (await going).output == "the other"

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
def test_a_child_that_says_what_it_should_not_is_ended(wild: ForkServerLoop, line: str) -> None:
    doors = Doors()
    with pytest.raises(RuntimeCrashed, match=r"^the process of the run .* and was ended"):
        wildly(wild, f"says {line}", doors)
    assert (doors.asked, doors.calls) == ([], [])
    assert len(wild.fork_server.pids) == 1


def test_the_same_call_is_not_made_twice(wild: ForkServerLoop) -> None:
    """By a child that the model has answered with one call."""
    ask = '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": []}\n'
    call = '{"door": "tool", "id": 2, "key": "m1/a"}\n'
    doors = Doors(calls("a"))
    with pytest.raises(RuntimeCrashed, match="without a model answer"):
        wildly(wild, f"asks {ask}{call}{call}", doors)
    assert [one.key for one in doors.calls] == ["m1/a"]


def test_two_questions_at_once_are_out_of_turn(wild: ForkServerLoop) -> None:
    ask = '{"door": "model", "id": %d, "key": "m1", "after": 1, "requests": []}\n'
    with pytest.raises(RuntimeCrashed, match="out of turn"):
        wildly(wild, f"says {ask % 1}{ask % 2}", Doors(says("one")))


MODEL = '{"door": "model", "id": 1, "key": "m1", "after": 1, "requests": []}\n'
SAID = '{"door": "message", "id": 2, "key": "u%d"}\n'


@pytest.mark.parametrize(
    ("lines", "converses", "heard"),
    [
        (SAID % 1, True, []),
        (MODEL + SAID % 1, False, []),
        (MODEL + SAID % 1 + SAID % 2, True, ["u1"]),
        (MODEL + SAID % 1 + SAID % 1, True, ["u1"]),
    ],
    ids=["before an answer", "in no conversation", "twice after one answer", "the same once more"],
)
def test_a_child_hears_what_is_said_in_its_turn(
    wild: ForkServerLoop, lines: str, converses: bool, heard: list[str]
) -> None:
    doors = Doors(says("one"))
    with pytest.raises(RuntimeCrashed, match="requested the user's next message out of turn"):
        wildly(wild, f"asks {lines}", doors, converses=converses)
    assert doors.heard == heard


def test_a_child_that_never_comes_to_the_end_of_a_line_is_ended(wild: ForkServerLoop) -> None:
    with pytest.raises(RuntimeCrashed, match="sent a line of more than"):
        wildly(wild, "endless")
    assert still_well(wild)


@pytest.mark.parametrize("how", ["apart", "together"])
def test_what_a_child_has_started_ends_with_it(wild: ForkServerLoop, how: str) -> None:
    assert gone(int(wildly(wild, f"leaves {how}")))


def test_a_door_s_error_is_the_run_s(fork_loop: ForkServerLoop) -> None:
    error = LimitReached("enough", limit="max_turns")

    class Closed(Doors):
        async def call_tool(self, call: ToolCall) -> ToolResult:
            raise error

    with pytest.raises(LimitReached) as raised:
        fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), Closed(calls("a", "b"))))
    assert raised.value is error
    assert len(fork_loop.fork_server.pids) == 1


# Killing


def test_one_that_hangs_is_ended_at_once_when_its_run_is(wild: ForkServerLoop) -> None:
    async def work() -> list[WatchedProcess]:
        runtime = ForkedRuntime(wild.fork_server)
        hanging = [asyncio.create_task(runtime.execute(sent("hangs"), Doors())) for _ in range(3)]
        await counted(wild.fork_server, 4)
        children = [WatchedProcess(pid) for pid in wild.fork_server.pids[1:]]
        for task in hanging:
            task.cancel()
        for task in hanging:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(wild.fork_server.pids) == 1, "when a cancelled run has ended, so has its process"
        return children

    assert all(child.wait_exit() for child in wild.run(work()))


@pytest.mark.req("AW-21")
def test_calls_under_way_come_to_their_end_when_the_child_dies(fork_loop: ForkServerLoop) -> None:
    async def work() -> None:
        doors = Held(calls("a", "b"), says("never"))
        running = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(told(), doors))
        await doors.reached.wait()
        os.kill(fork_loop.fork_server.pids[1], signal.SIGKILL)
        await asyncio.sleep(0.05)
        assert not running.done()
        doors.let_go.set()
        with pytest.raises(RuntimeCrashed, match="SIGKILL"):
            await running
        assert sorted(doors.finished) == ["m1/a", "m1/b"]

    fork_loop.run(work())


def test_what_waits_for_ever_when_the_child_dies_can_be_cancelled(fork_loop: ForkServerLoop) -> None:
    async def work() -> None:
        doors = Held(calls("a"), says("never"))
        running = asyncio.create_task(ForkedRuntime(fork_loop.fork_server).execute(told(), doors))
        await doors.reached.wait()
        os.kill(fork_loop.fork_server.pids[1], signal.SIGKILL)
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert doors.finished == []

    fork_loop.run(work())


def test_twenty_whose_warm_parent_is_killed(wild: ForkServerLoop) -> None:
    """Those that are not born yet are born of another one."""

    async def work() -> list[BaseException | Any]:
        runtime = ForkedRuntime(wild.fork_server)
        runs = [asyncio.create_task(runtime.execute(sent("looks"), Doors())) for _ in range(20)]
        await asyncio.sleep(0)
        os.kill(wild.fork_server.pids[0], signal.SIGKILL)
        return await asyncio.gather(*runs, return_exceptions=True)

    ended = wild.run(work())
    assert all(isinstance(one, RuntimeCrashed) or json.loads(one.output)["group"] for one in ended)
    assert any(not isinstance(one, RuntimeCrashed) for one in ended)


def test_an_idle_warm_parent_that_is_killed_is_replaced_at_once(wild: ForkServerLoop) -> None:
    assert still_well(wild)
    first = wild.fork_server.pids[0]

    async def work() -> None:
        watched = WatchedProcess(first)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.to_thread(watched.wait_exit)
        for _ in range(500):
            if wild.fork_server.pids[0] != first:
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    wild.run(work())
    assert not Path(f"/proc/{first}").exists(), "it is reaped"
    assert still_well(wild)


@pytest.mark.parametrize("moment", ["before", "at the very moment"])
def test_a_birth_that_nobody_waits_for_any_more(wild: ForkServerLoop, moment: str) -> None:
    async def work() -> None:
        births = [asyncio.create_task(wild.fork_server.spawn(1024**2)) for _ in range(5)]
        await asyncio.sleep(0)
        server = wild.fork_server._server
        assert server is not None
        while moment != "before" and server._pending:  # all replies are read, and whoever waits was not woken yet
            select.select([server._control], [], [], TIMEOUT_S)
            server._receive()
        for task in births:
            task.cancel()
        ended = await asyncio.gather(*births, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        await counted(wild.fork_server, 1)

    wild.run(work())
    assert still_well(wild)


@pytest.mark.req("AW-21")
def test_a_killed_warm_parent_takes_its_children_with_it_and_is_replaced(wild: ForkServerLoop) -> None:
    async def work() -> list[WatchedProcess]:
        runtime = ForkedRuntime(wild.fork_server)
        hanging = [asyncio.create_task(runtime.execute(sent("hangs"), Doors())) for _ in range(3)]
        await counted(wild.fork_server, 4)
        everyone = [WatchedProcess(pid) for pid in wild.fork_server.pids]
        first = wild.fork_server.pids[0]
        os.kill(first, signal.SIGKILL)
        for task in hanging:
            with pytest.raises(RuntimeCrashed, match="was killed with the fork server"):
                await task
        output = (await runtime.execute(sent("looks"), Doors())).output
        assert json.loads(output)["group"]
        assert wild.fork_server.pids[0] != first
        return everyone

    assert all(one.wait_exit() for one in wild.run(work()))


def lonely(command: list[str], work: Callable[[ForkServer], Awaitable[Any]], **options: Any) -> Any:
    async def go() -> Any:
        fork_server = ForkServer(command, **options)
        try:
            async with asyncio.timeout(20):
                return await work(fork_server)
        finally:
            await fork_server.close()

    return asyncio.run(go())


def test_a_warm_parent_that_cannot_come_up_says_why() -> None:
    async def work(fork_server: ForkServer) -> None:
        with pytest.raises(RuntimeFailed, match="the fork server exited 3 times") as raised:
            await ForkedRuntime(fork_server).execute(told(), Doors())
        assert raised.value.hint == "no such module"

    lonely(["/bin/sh", "-c", "echo no such module >&2; exit 1"], work)


def test_a_warm_parent_that_does_not_answer_is_given_up() -> None:
    async def work(fork_server: ForkServer) -> None:
        with pytest.raises(RuntimeFailed, match="the fork server exited 3 times"):
            await fork_server.spawn(1024)

    lonely(["/bin/sh", "-c", "exec sleep 60"], work, timeout_s=0.1)


def test_a_warm_parent_that_does_not_bury_is_replaced(wild: ForkServerLoop) -> None:
    async def work(fork_server: ForkServer) -> None:
        runtime = ForkedRuntime(fork_server)
        hanging = asyncio.create_task(runtime.execute(sent("hangs"), Doors()))
        await counted(fork_server, 2)
        os.kill(fork_server.pids[0], signal.SIGSTOP)
        both = [WatchedProcess(pid) for pid in fork_server.pids]
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert all(one.wait_exit() for one in both)
        assert (await runtime.execute(sent("looks"), Doors())).output

    lonely(list(wild.fork_server._command), work, timeout_s=2.0)


def test_a_child_that_lets_go_of_its_socket_is_ended(wild: ForkServerLoop) -> None:
    with pytest.raises(RuntimeCrashed, match="SIGKILL"):
        wildly(wild, "closes")


def test_a_closed_nursery_has_no_children() -> None:
    async def work(fork_server: ForkServer) -> None:
        await fork_server.close()
        fork_server.start()
        with pytest.raises(RuntimeFailed, match="closing"):
            await fork_server.spawn(1024)
        assert fork_server.pids == []

    lonely(["/bin/false"], work)


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
def test_a_killed_hall_takes_everything_with_it(wild: ForkServerLoop, number: signal.Signals) -> None:
    program = HALL.format(path=[str(ROOT), *sys.path], command=list(wild.fork_server._command))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as hall:
        assert hall.stdout is not None
        pids = [int(word) for word in hall.stdout.readline().split()]
        everyone = [WatchedProcess(pid) for pid in pids]
        wait_until(lambda: len(child_pids(*pids[1:])) == 1)
        below = [WatchedProcess(pid) for pid in child_pids(*pids[1:])]
        hall.send_signal(number)
        hall.wait(TIMEOUT_S)
    assert len(pids) == 4
    assert all(one.wait_exit() for one in (*everyone, *below))


def test_answers_of_all_kinds_are_one_conversation(fork_loop: ForkServerLoop) -> None:
    """What the hall keeps is what the process has: a question brings only what is new, and nothing is missing."""
    doors = Doors(
        ModelResponse(parts=[TextPart("I look."), ToolCallPart("look", {}, "a")]),
        says(""),
        calls("b", "c"),
        says("done"),
    )
    fork_loop.run(ForkedRuntime(fork_loop.fork_server).execute(told(), doors))
    kinds = [[message.kind for message in messages] for _, messages, _ in doors.asked]
    assert kinds == [["request", "response"] * n + ["request"] for n in range(4)]
