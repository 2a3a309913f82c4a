"""Call order: calls of one answer that change something take effect in order, and calls that read run in parallel."""

from __future__ import annotations

import asyncio
import multiprocessing
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Refused
from guildhall.policy.rules import Rule
from guildhall.sandbox import files as sandbox_files
from guildhall.sandbox.files import SandboxFiles, resolve_view
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import file_handlers
from guildhall.tools.call_order import CallOrder, is_parallel
from guildhall.tools.definition import tool
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from tests.tools.test_gate import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from guildhall.policy.rules import Verdict
    from guildhall.tools.gate import Approval


@tool(capabilities={"fs.read"}, repeatable=True, runs_in="hall")
def look(name: str) -> str:
    """Read a file."""
    return name


@tool(capabilities={"fs.write"}, repeatable=True, runs_in="hall")
def change(name: str) -> str:
    """Write a file."""
    return name


@tool(runs_in="hall")
def own(name: str) -> str:
    """Do something that declares no capability."""
    return name


class AnswerLedger(Ledger):
    """A ledger that knows the calls of the answer, and approves calls of `change` once `approved` is set."""

    def __init__(self, answer: Sequence[ToolCall]) -> None:
        super().__init__()
        self._answer = answer
        self.approved = asyncio.Event()
        self.all_asked = asyncio.Event()
        self._asked = 0

    def answer_calls(self, call: ToolCall) -> Sequence[ToolCall]:
        return self._answer

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        self._asked += 1
        if self._asked == len(self._answer):
            self.all_asked.set()
        await self.approved.wait()
        return "approved", None


class Effects:
    """Executes calls slowly, and records the start and the end of each."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def __call__(self, tool: Tool, call: ToolCall) -> ToolResult:
        name = (call.arguments or {})["name"]
        self.steps.append(f"+{name}")
        await asyncio.sleep(0.001)
        self.steps.append(f"-{name}")
        return ToolResult.of(name)


def answer(*names: str) -> list[ToolCall]:
    """Return the calls of an answer: `look` for names with r, `own` for names with o, else `change`."""
    tools = {"r": "look", "o": "own"}
    return [
        ToolCall(key=f"m1/{number}", tool=tools.get(name[0], "change"), arguments={"name": name})
        for number, name in enumerate(names)
    ]


def execute_calls(calls: Sequence[ToolCall], arrival: Sequence[int], *rules: Rule) -> list[str]:
    """Make the calls in the order of `arrival` and return the starts and ends of their effects."""
    effects = Effects()

    async def make_calls() -> None:
        gate = Gate((look, change, own), rules, "ask", AnswerLedger(calls), effects)
        await asyncio.gather(*(gate.call(calls[number]) for number in arrival))

    asyncio.run(make_calls())
    return effects.steps


@pytest.mark.req("X-20")
@pytest.mark.parametrize("arrival", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_calls_that_write_take_effect_in_the_order_of_the_answer(arrival: Sequence[int]) -> None:
    assert execute_calls(answer("w1", "w2", "o3"), arrival) == ["+w1", "-w1", "+w2", "-w2", "+o3", "-o3"]


@pytest.mark.req("X-20")
def test_calls_that_read_run_in_parallel_between_two_writes() -> None:
    steps = execute_calls(answer("r1", "r2", "w3", "r4", "r5", "w6"), (5, 4, 3, 2, 1, 0))
    assert sorted(steps[:2]) == ["+r1", "+r2"]
    assert steps[4:6] == ["+w3", "-w3"]
    assert sorted(steps[6:8]) == ["+r4", "+r5"]
    assert steps[-2:] == ["+w6", "-w6"]


def test_calls_without_a_known_answer_are_ordered_by_arrival() -> None:
    effects = Effects()
    calls = [ToolCall(key=f"mcp/{n}", tool="change", arguments={"name": f"w{n}"}) for n in range(3)]

    async def make_calls() -> None:
        gate = Gate((change,), (), "ask", AnswerLedger(()), effects)
        await asyncio.gather(*map(gate.call, calls))

    asyncio.run(make_calls())
    assert effects.steps == ["+w0", "-w0", "+w1", "-w1", "+w2", "-w2"]


@pytest.mark.parametrize(
    "refused",
    [
        ToolCall(key="m1/0", tool="no_such_tool", arguments={}),
        ToolCall(key="m1/0", tool="change", arguments=None),
        ToolCall(key="m1/0", tool="change", arguments={"nam": "x"}),
    ],
)
def test_a_call_does_not_wait_for_a_call_that_cannot_take_effect(refused: ToolCall) -> None:
    assert execute_calls([refused, *answer("w0", "w1")[1:]], (1,)) == ["+w1", "-w1"]


async def wait_for_turn(arrival_timeout_s: float) -> None:
    """Wait for the turn of a call whose predecessor never arrives."""
    calls = answer("w1", "w2")
    order = CallOrder({"change": change}, arrival_timeout_s=arrival_timeout_s)
    with order.enter(calls[1], lambda: calls) as place:
        await order.wait(place, nullcontext())


def test_a_call_that_a_program_never_makes_blocks_for_a_limited_time() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(wait_for_turn(arrival_timeout_s=60), 0.05))
    asyncio.run(asyncio.wait_for(wait_for_turn(arrival_timeout_s=0.01), 30))


def test_all_approvals_of_an_answer_are_asked_at_once_and_the_calls_wait_for_their_turn() -> None:
    effects = Effects()
    calls = answer("w1", "w2")

    async def make_calls() -> None:
        ledger = AnswerLedger(calls)
        gate = Gate((change,), (Rule(name="fs.write", approval_required=True),), "ask", ledger, effects)
        made = [asyncio.create_task(gate.call(call)) for call in reversed(calls)]
        await ledger.all_asked.wait()
        assert effects.steps == []
        ledger.approved.set()
        await asyncio.gather(*made)

    asyncio.run(make_calls())
    assert effects.steps == ["+w1", "-w1", "+w2", "-w2"]


def test_a_call_that_fails_lets_the_next_one_start() -> None:
    calls = answer("w1", "w2")
    steps: list[str] = []

    async def fail_first(tool: Tool, call: ToolCall) -> ToolResult:
        steps.append(call.key)
        if call.key == "m1/0":
            raise RuntimeError("broken")
        return ToolResult.of("ok")

    async def make_calls() -> list[Any]:
        gate = Gate((change,), (), "ask", AnswerLedger(calls), fail_first)
        return await asyncio.gather(*map(gate.call, calls), return_exceptions=True)

    first, second = asyncio.run(make_calls())
    assert isinstance(first, RuntimeError)
    assert (second.text, steps) == ("ok", ["m1/0", "m1/1"])


def test_a_call_is_closed_by_the_call_before_it() -> None:
    calls = answer("w1", "w2")
    effects = Effects()

    async def make_calls() -> list[ToolResult]:
        gate = Gate(
            (change,),
            (),
            "ask",
            AnswerLedger(calls),
            effects,
            block_reason=lambda call: "submitted" if effects.steps else None,
        )
        return await asyncio.gather(*map(gate.call, calls))

    assert [result.text for result in asyncio.run(make_calls())] == ["w1", "submitted"]


def test_only_tools_that_declare_reading_run_in_parallel() -> None:
    @tool(capabilities={"net"}, repeatable=True)
    def fetch() -> None:
        """Fetch a page."""

    @tool(capabilities={"net"})
    def post() -> None:
        """Send a form."""

    @tool(capabilities={"fs.read", "proc.exec"}, repeatable=True)
    def execute() -> None:
        """Run a program."""

    verdicts = {one.name: is_parallel(one, {}) for one in (look, change, own, fetch, post, execute)}
    assert verdicts == {"look": True, "change": False, "own": False, "fetch": True, "post": False, "execute": False}


# Edits of one file by several runs


def edit_lines(root: Path, first: int, count: int) -> None:
    edit = file_handlers(view_of(root))["Edit"]
    for number in range(first, first + count):
        edit(file_path="a.txt", old_string=f"line {number}.", new_string=f"LINE {number}.")


def view_of(root: Path) -> View:
    return resolve_view(View(cwd=root, folders=(Folder(path=root, is_writable=True),)))


def test_edits_of_one_file_by_several_processes_are_all_kept(tmp_path: Path) -> None:
    processes, count = 4, 25
    (tmp_path / "a.txt").write_text("".join(f"line {number}.\n" for number in range(processes * count)))
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=edit_lines, args=(tmp_path, n * count, count)) for n in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * processes
    assert (tmp_path / "a.txt").read_text().count("LINE") == processes * count


def test_a_folder_that_another_program_keeps_locked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl
    import os

    monkeypatch.setattr(sandbox_files, "_LOCK_TIMEOUT_S", 0.02)
    (tmp_path / "a.txt").write_text("as it was")
    files = SandboxFiles(view_of(tmp_path))
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another program has locked the folder"):
            files.write(files.locate("a.txt"), b"new")
        assert (tmp_path / "a.txt").read_text() == "as it was"
    finally:
        os.close(fd)
    files.write(files.locate("a.txt"), b"new")
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208
