"""Checks of how runs end and are resumed: limits, failures, stops, kills."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from tests.conformance.bench import collect_events, write
from tests.conformance.document_store_checks import check_equal

if TYPE_CHECKING:
    from tests.conformance.bench import Bench, HallSession

_USAGE = {"usage": {"input": 1000, "output": 100}}
_SLOW = {"sleep": 300, "say": "too late"}
_STOP_TIMEOUT_S = 5.0  # for a stop on a loaded machine


async def a_limit_of_turns_fails_the_run(bench: Bench) -> None:
    await _check_limit(bench, {"max_turns": 1}, max_turns=5)


async def a_limit_of_tokens_fails_the_run(bench: Bench) -> None:
    await _check_limit(bench, {"max_tokens": 1500}, max_tokens=1_000_000)


async def a_limit_of_dollars_fails_the_run(bench: Bench) -> None:
    bench.write_worker({**write("a.md"), **_USAGE}, {"say": "done", **_USAGE}, limits={"max_budget_usd": 0.004})
    async with bench.hall() as session:
        run = await session.state((await session.run())[0].run)
        check_equal((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "end of the run")


async def a_limit_of_time_fails_the_run(bench: Bench) -> None:
    bench.write_worker(_SLOW, limits={"timeout": 1})
    async with bench.hall() as session:
        before = _find_child_processes()
        run = await session.state((await session.run())[0].run)
        check_equal((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "end of the run")
        check_equal(sorted(_find_child_processes() - before), [], "remaining processes")


async def a_temporary_failure_is_retried(bench: Bench) -> None:
    bench.write_worker({"fail": 529}, {"fail": 429}, write("a.md"), {"fail": 500}, {"say": "done"})
    async with bench.hall() as session:
        run = await session.state((await session.run())[0].run)
        check_equal((run.status, run.output), ("completed", "done"), "end of the run")
        check_equal(len(await session.entries(run.id, "model_answered")), 2, "number of recorded answers")


async def a_permanent_failure_fails_a_run_that_can_be_resumed(bench: Bench) -> None:
    bench.write_worker(write("a.md"), {"fail": 401})
    async with bench.hall() as session:
        run = await session.state((await session.run())[0].run)
        check_equal((run.status, (run.error or {}).get("code")), ("failed", "key_refused"), "end of the run")
        bench.write_worker(write("a.md"), {"say": "done"})
        await _complete(bench, session, run.id, calls=1)


async def a_stop_cancels_the_run(bench: Bench) -> None:
    bench.write_worker(write("a.md"), _SLOW)
    async with bench.hall() as session:
        before = _find_child_processes()
        stream = session.stream()
        async for event in stream:
            if event.type == "tool_result":
                break
        else:
            raise AssertionError("the run ended before it could be stopped")
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await session.hall.runs.stop(event.run)
            await collect_events(stream)
            while _find_child_processes() - before:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        check_equal((await session.state(event.run)).status, "cancelled", "end of the run")


async def a_run_without_a_follower_is_paused_and_can_be_resumed(bench: Bench) -> None:
    bench.write_worker(write("a.md"), _SLOW)
    async with bench.hall() as session:
        before = _find_child_processes()
        run = (await collect_events(session.stream(), until="tool_result"))[0].run
        check_equal((await session.state(run)).status, "paused", "status")
        check_equal(sorted(_find_child_processes() - before), [], "remaining processes")
        bench.write_worker(write("a.md"), {"say": "done"})
        await _complete(bench, session, run, calls=1)


async def killed_processes_repeat_no_effect(bench: Bench) -> None:
    """Accept both: the process is restarted, or the run fails with runtime_crashed and can be resumed."""
    bench.write_worker(write("a.md"), {**write("b.md"), "sleep": 1}, {"say": "done"})
    async with bench.hall(children=True) as session:
        before = _find_child_processes()
        killed = run = ""
        async for event in session.stream():
            run = event.run
            if event.type == "tool_result" and not killed:
                killed = event.data["id"]
                for pid in _find_child_processes() - before:
                    _kill(pid)
        if (await session.state(run)).status != "completed":
            check_equal(((await session.state(run)).error or {}).get("code"), "runtime_crashed", "error code")
            await session.resume(run)
        await _complete(bench, session, run, calls=2)
        check_equal(await session.is_replayed(run), True, "replay matches")


async def a_run_of_a_killed_hall_is_resumed_in_another_hall(bench: Bench) -> None:
    bench.write_worker(write("a.md"), _SLOW)
    run = ""
    async with bench.hall_process() as session:
        try:
            async for event in session.stream():
                run = event.run
                if event.type == "tool_result":
                    bench.kill_hall()
        except GuildError:
            pass  # the hall was killed
    bench.write_worker(write("a.md"), {"say": "done"})
    async with bench.hall() as session:
        check_equal((await session.state(run)).status, "interrupted", "status in another hall")
        await _complete(bench, session, run, calls=1)
        check_equal(await session.is_replayed(run), True, "replay matches")


async def _check_limit(bench: Bench, limits: dict[str, Any], **more: int) -> None:
    answers = ({**write("a.md"), **_USAGE}, {**write("b.md"), **_USAGE}, {"say": "done", **_USAGE})
    bench.write_worker(*answers, limits=limits)
    async with bench.hall() as session:
        run = await session.state((await session.run())[0].run)
        check_equal((run.status, (run.error or {}).get("code")), ("failed", "limit_reached"), "end of the run")
        await session.resume(run.id, **more)
        await _complete(bench, session, run.id, calls=2)


async def _complete(bench: Bench, session: HallSession, run: str, *, calls: int) -> None:
    """Resume a run to its end, and check that no effect and no model call is repeated."""
    if (await session.state(run)).status != "completed":
        await session.resume(run)
    ended = await session.state(run)
    check_equal((ended.status, ended.output, ended.error), ("completed", "done", None), "end of the resumed run")
    check_equal(len(await session.entries(run, "tool_started")), calls, "number of executed calls")
    answered = [entry.key for entry in await session.entries(run, "model_answered")]
    check_equal(answered, [f"m{number + 1}" for number in range(calls + 1)], "recorded model answers")
    check_equal(list(bench.notes), ["a.md", "b.md"][:calls], "written files")


def _find_child_processes() -> set[int]:
    """Return the pids of all descendants of this process."""
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
