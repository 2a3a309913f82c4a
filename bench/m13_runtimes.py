"""Metric 13: runs of Claude Code, compared with the same program started by hand and unconfined.

Both use the same scripted answers. Measured are the duration, the time to stop, and the memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import time
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bench.frame import Metric
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.testing.scripted_server import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_WORKER = "runtime: claude\ninstructions: You are Bob.\nmodel: script:{name}.yaml\nbase: false\n"
_QUICK = "workers: {'*': [[{say: done}]]}\nrepeat: true\n"
_LONG = "workers: {'*': [[{sleep: 60, say: done}]]}\nrepeat: true\n"
_WORDS = ["-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json", "--bare"]
_WORDS += ["--tools", "", "--setting-sources", "", "--strict-mcp-config", "--system-prompt", "You are Bob."]


def metrics(scratch: Path) -> list[Metric]:
    (scratch / "workers").mkdir()
    for name, script in (("quick", _QUICK), ("long", _LONG)):
        (scratch / f"{name}.yaml").write_text(script)
        (scratch / "workers" / f"{name}.yaml").write_text(f"name: {name}\n" + _WORKER.format(name=name))
    bench = _Bench(scratch)
    floor = "claude by hand"
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # answers are interrupted on purpose
    return [
        Metric(
            name="13 a run by Claude Code", floor_name=floor, floor=bench.by_hand, measured=bench.by_run, target=1.5
        ),
        Metric(
            name="13 stop during an answer",
            floor_name="killed by hand",
            floor=bench.killed_by_hand,
            measured=bench.pause,
            target=None,
            note="including the journal, its folder and its door",
        ),
        Metric(
            name="13 memory of an agent",
            floor_name=floor,
            floor=bench.memory_by_hand,
            measured=bench.memory,
            target=1.2,
            rounds=3,
            unit="MB",
        ),
    ]


class _Bench:
    """Claude Code, started by hand and by a hall in the same folder."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        found = sorted(Path(os.environ["TESTED_CLIS"]).glob("claude-agent-sdk-*/claude_agent_sdk/_bundled/claude"))
        self._program = str(found[-1])
        self._environ = {**os.environ, "GUILDHALL_CLAUDE": self._program}

    # by hand

    @contextmanager
    def _claude(self, script: str) -> Generator[subprocess.Popen[bytes]]:
        with ScriptedServer(self._scratch / f"{script}.yaml") as server:
            env = {
                "PATH": os.environ["PATH"],
                "HOME": str(self._scratch),
                "CLAUDE_CONFIG_DIR": str(self._scratch / "claude"),
                "ANTHROPIC_BASE_URL": server.anthropic_url,
                "ANTHROPIC_API_KEY": "script-bob",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }
            pipe = subprocess.PIPE
            with subprocess.Popen([self._program, *_WORDS], env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
                assert process.stdin is not None
                message = {"type": "user", "message": {"role": "user", "content": "Go."}}
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
                try:
                    yield process
                finally:
                    process.kill()

    def by_hand(self) -> float:
        began = time.perf_counter()
        with self._claude("quick") as process:
            _line(process.stdout, b'"type":"result"')
            return time.perf_counter() - began

    def killed_by_hand(self) -> float:
        with self._claude("long") as process:
            _line(process.stdout, b'"subtype":"init"')
            began = time.perf_counter()
            process.kill()
            process.wait()
            return time.perf_counter() - began

    def memory_by_hand(self) -> float:
        with self._claude("long") as process:
            _line(process.stdout, b'"subtype":"init"')
            time.sleep(0.5)
            return _pss(process.pid)

    # by a run

    def by_run(self) -> float:
        return asyncio.run(self._measure_run("quick"))

    async def _measure_run(self, worker: str) -> float:
        hall = EmbeddedHall(Hall(Home(self._scratch / "home"), environ=self._environ))
        frame = Frame.here(self._scratch, self._environ)
        await _to_end(hall, "quick", frame)  # the first run checks the version of the program
        began = time.perf_counter()
        await _to_end(hall, worker, frame)
        duration = time.perf_counter() - began
        await hall.close()
        return duration

    def pause(self) -> float:
        return asyncio.run(self._pause_during_answer(lambda: 0.0))[0]

    def memory(self) -> float:
        return asyncio.run(self._pause_during_answer(lambda: sum(map(_pss, _programs(self._program)))))[1]

    async def _pause_during_answer(self, look: Callable[[], float]) -> tuple[float, float]:
        inner = Hall(Home(self._scratch / "home"), environ=self._environ)
        hall = EmbeddedHall(inner)
        frame = Frame.here(self._scratch, self._environ)
        async with aclosing(hall.runs.run(RunRequest(worker="long", input="Go."), frame)) as events:
            async for event in events:
                run = event.run
                break
            while not any(entry.kind == "model_asked" for entry in inner.history.entries(run)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            seen = look()
            began = time.perf_counter()
            await inner.runs.pause(run)
            duration = time.perf_counter() - began
        await hall.close()
        return duration, seen


async def _to_end(hall: EmbeddedHall, worker: str, frame: Frame) -> None:
    async for event in hall.runs.run(RunRequest(worker=worker, input="Go."), frame):
        if event.type == "error":
            raise RuntimeError(str(event.data))


def _line(stream: IO[bytes] | None, word: bytes) -> dict[str, Any]:
    assert stream is not None
    for line in stream:
        if word in line:
            return json.loads(line)
    raise RuntimeError(f"the program ended before it printed {word!r}")


def _programs(program: str) -> list[int]:
    """Return the ids of the processes of a program, confined or not."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(program.encode()):
            found.append(int(process.name))
    return found


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss")
