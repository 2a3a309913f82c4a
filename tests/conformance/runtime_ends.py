"""How runs of a runtime are ended, and go on: limits, failures, a stop, a kill. See runtime_conformance."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from tests.conformance.bench import heard, write
from tests.conformance.shelf_checks import same

if TYPE_CHECKING:
    from tests.conformance.bench import Bench, Desk

_USAGE = {"usage": {"input": 1000, "output": 100}}
_SLOW = {"sleep": 300, "say": "too late"}
_SOON = 5.0  # seconds for something to be ended, on a machine that has much to do


async def a_limit_of_turns_ends_it(bench: Bench) -> None:
    await _limited(bench, {"max_turns": 1}, max_turns=5)


async def a_limit_of_tokens_ends_it(bench: Bench) -> None:
    await _limited(bench, {"max_tokens": 1500}, max_tokens=1_000_000)


async def a_limit_of_dollars_ends_it(bench: Bench) -> None:
    bench.put({**write("a.md"), **_USAGE}, {"say": "done", **_USAGE}, limits={"max_budget_usd": 0.004})
    async with bench.hall() as desk:
        run = await desk.state((await desk.run())[0].run)
        same((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "how it ended")


async def a_limit_of_time_ends_it(bench: Bench) -> None:
    bench.put(_SLOW, limits={"timeout": 1})
    async with bench.hall() as desk:
        before = _below()
        run = await desk.state((await desk.run())[0].run)
        same((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "how it ended")
        same(sorted(_below() - before), [], "the processes that are left of it")


async def a_failure_that_may_pass_is_asked_again(bench: Bench) -> None:
    bench.put({"fail": 529}, {"fail": 429}, write("a.md"), {"fail": 500}, {"say": "done"})
    async with bench.hall() as desk:
        run = await desk.state((await desk.run())[0].run)
        same((run.status, run.output), ("completed", "done"), "how it ended")
        same(len(await desk.record(run.id, "model_answered")), 2, "the number of answers on record")


async def a_failure_that_stays_ends_it_and_it_goes_on(bench: Bench) -> None:
    bench.put(write("a.md"), {"fail": 401})
    async with bench.hall() as desk:
        run = await desk.state((await desk.run())[0].run)
        same((run.status, (run.error or {}).get("code")), ("failed", "key_refused"), "how it ended")
        bench.put(write("a.md"), {"say": "done"})
        await _ends_well(bench, desk, run.id, calls=1)


async def a_stop_ends_it_for_good(bench: Bench) -> None:
    bench.put(write("a.md"), _SLOW)
    async with bench.hall() as desk:
        before = _below()
        stream = desk.stream()
        async for event in stream:
            if event.type == "tool_result":
                break
        else:
            raise AssertionError("the run ended before it could be stopped")
        async with asyncio.timeout(_SOON):
            await desk.hall.runs.stop(event.run)
            await heard(stream)
            while _below() - before:  # noqa: ASYNC110 - the kernel tells nobody else
                await asyncio.sleep(0.01)
        same((await desk.state(event.run)).status, "cancelled", "how it ended")


async def left_alone_it_is_paused_and_goes_on(bench: Bench) -> None:
    bench.put(write("a.md"), _SLOW)
    async with bench.hall() as desk:
        before = _below()
        run = (await heard(desk.stream(), until="tool_result"))[0].run
        same((await desk.state(run)).status, "paused", "how it stands")
        same(sorted(_below() - before), [], "the processes that are left of it")
        bench.put(write("a.md"), {"say": "done"})
        await _ends_well(bench, desk, run, calls=1)


async def its_processes_are_killed_and_nothing_is_done_twice(bench: Bench) -> None:
    """It is started again by itself, or the run fails as crashed and can be resumed."""
    bench.put(write("a.md"), {**write("b.md"), "sleep": 1}, {"say": "done"})
    async with bench.hall(children=True) as desk:
        before = _below()
        killed = run = ""
        async for event in desk.stream():
            run = event.run
            if event.type == "tool_result" and not killed:
                killed = event.data["id"]
                for pid in _below() - before:
                    _kill(pid)
        if (await desk.state(run)).status != "completed":
            same(((await desk.state(run)).error or {}).get("code"), "runtime_crashed", "why it has failed")
            await desk.resume(run)
        await _ends_well(bench, desk, run, calls=2)
        same(await desk.is_replayed(run), True, "whether it can be replayed")


async def its_hall_is_killed_and_another_goes_on(bench: Bench) -> None:
    bench.put(write("a.md"), _SLOW)
    run = ""
    async with bench.hall_process() as desk:
        try:
            async for event in desk.stream():
                run = event.run
                if event.type == "tool_result":
                    bench.kill_hall()
        except GuildError:
            pass  # the hall is gone, as it should be
    bench.put(write("a.md"), {"say": "done"})
    async with bench.hall() as desk:
        same((await desk.state(run)).status, "interrupted", "how it stands in another hall")
        await _ends_well(bench, desk, run, calls=1)
        same(await desk.is_replayed(run), True, "whether it can be replayed")


async def _limited(bench: Bench, limits: dict[str, Any], **more: int) -> None:
    answers = ({**write("a.md"), **_USAGE}, {**write("b.md"), **_USAGE}, {"say": "done", **_USAGE})
    bench.put(*answers, limits=limits)
    async with bench.hall() as desk:
        run = await desk.state((await desk.run())[0].run)
        same((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "how it ended")
        await desk.resume(run.id, **more)
        await _ends_well(bench, desk, run.id, calls=2)


async def _ends_well(bench: Bench, desk: Desk, run: str, *, calls: int) -> None:
    """Lets a run go on to its end: nothing of what it had done is done again, no answer is asked for twice."""
    if (await desk.state(run)).status != "completed":
        await desk.resume(run)
    ended = await desk.state(run)
    same((ended.status, ended.output, ended.error), ("completed", "done", None), "how it ended when it went on")
    same(len(await desk.record(run, "tool_started")), calls, "the number of calls that were made")
    answered = [entry.key for entry in await desk.record(run, "model_answered")]
    same(answered, [f"m{number + 1}" for number in range(calls + 1)], "the answers of the model on record: each once")
    same(list(bench.notes), ["a.md", "b.md"][:calls], "what was written")


def _below() -> set[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue
        state, parent = text[text.rindex(")") + 2 :].split()[:2]
        if state != "Z":
            parents[int(folder.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
