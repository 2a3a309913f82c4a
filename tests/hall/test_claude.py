"""Claude Code as a runtime, with the real program, a real hall and a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runs.record.entries import ModelAsked
from guildhall.runtimes.programs.claude import _ANY_MODEL, _FLAGS, _message
from guildhall.tools.definition import tool
from guildhall.tools.model import Toolbox
from tests.clis import claude_program, find_program_pids
from tests.hall.doors import SampleTools
from tests.runs.places import ASK_BEFORE_WRITING, DONE, NOTES, OTHER, WRITE, wait_until
from tests.runs.trees import list_notes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.hall.client.model import RunDetails
    from tests.conftest import Guild, GuildWithHall

SLOW = {"sleep": 60, "say": "too late"}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
ATTACHED = "the file that is attached"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class ClaudeHall:
    """A hall with runs of Claude Code, whose home directories are visible to the test."""

    def __init__(self, hall: Hall, project: Path) -> None:
        self.hall = hall
        self.client = EmbeddedHall(hall)
        self.frame = Frame.here(project, {})
        self._project = project

    def programs(self) -> list[int]:
        return find_program_pids(self._project.parent)

    def homes(self) -> list[Path]:
        return list(self._project.parent.glob("guild-home-*"))

    async def run(self, *given: Toolbox, **options: Any) -> list[Event]:
        return await collect_events(
            self.client.runs.run(RunRequest(worker="bob", input="Go.", **options), self.frame, given)
        )

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await collect_events(self.client.runs.resume(run, self.frame, **options))

    async def get_details(self, run: str) -> RunDetails:
        return await self.client.runs.get(run)

    async def model_call_keys(self, run: str) -> list[str | None]:
        """Return the keys of the model calls."""
        return [entry.key for entry in await self.client.runs.journal(run) if entry.kind == "model_asked"]

    async def entry_kinds(self, run: str) -> list[str]:
        return [entry.kind for entry in await self.client.runs.journal(run)]


async def collect_events(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.fixture
def claude_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose worker is executed by Claude Code."""
    monkeypatch.setattr("tempfile.tempdir", str(project.parent))
    (project / "workers").mkdir()
    return project


def write_worker(project: Path, *answers: dict[str, Any], **fields: Any) -> None:
    worker = {"runtime": "claude", "instructions": "You are Bob.", "base": False, "sandboxes": NOTES, **fields}
    text = json.dumps({"model": "script:answers.yaml", **worker}, ensure_ascii=False)
    (project / "workers" / "bob.yaml").write_text(text)
    script = {"workers": {"bob": [answers]}, "price": {"input": 3.0, "output": 15.0}}
    (project / "answers.yaml").write_text(json.dumps(script))


@asynccontextmanager
async def open_claude_hall(home: Home, project: Path) -> AsyncGenerator[ClaudeHall]:
    hall = Hall(home, environ={**os.environ, "GUILDHALL_CLAUDE": str(claude_program())})
    here = ClaudeHall(hall, project)
    try:
        async with asyncio.timeout(60):
            yield here
    finally:
        await hall.close()
    assert (here.programs(), here.homes()) == ([], [])


def run_async(work: Any) -> None:
    asyncio.run(work())


# Runs


@pytest.mark.req("WKR-14", "WD-33")
def test_claude_answers_and_calls_tools_through_the_command(guild: Guild, claude_project: Path) -> None:
    write_worker(
        claude_project,
        {"expect_system": "^You are Bob.$", "expect": "Go", **WRITE},
        {"expect": "Created a.md", "say": "All done."},
    )
    ran = guild("run", "bob", "Go.", env={"GUILDHALL_CLAUDE": str(claude_program())})
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert list_notes(claude_project) == ["a.md"]
    assert "→ sandbox_write_text sandbox=notes path=a.md" in ran.err
    run, _, rest = ran.err.removeprefix("Run ").partition(": ")
    assert rest.startswith("Claude Code, model script:answers.yaml; ")
    assert re.search(r"^runtime +Claude Code$", guild("show", run).out, re.MULTILINE)
    assert guild("show", run, "--json").json["runtime"] == "claude"


def test_an_input_is_not_a_command_of_claude_code(home: Home, claude_project: Path) -> None:
    write_worker(claude_project, {"say": "well"})

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            for words in ("/clear", " /init now", "/review", "@/etc/hostname", "!ls", "-x"):
                events = await collect_events(here.client.runs.run(RunRequest(worker="bob", input=words), here.frame))
                assert events[-1].data["status"] == "completed", words
                (asked,) = [one for one in await here.client.runs.journal(events[0].run) if one.kind == "model_asked"]
                assert asked.data.message == [{"part": "user-prompt", "content": words}]

    run_async(work)


@pytest.mark.req("WKR-16")
def test_a_long_tool_description_is_not_cut(home: Home, claude_project: Path) -> None:
    @tool(repeatable=True)
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    box = Toolbox("desk", replace(add, description=f"Adds. {'x' * 9000} The end."))
    shown: dict[str, str] = {}

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            for runtime in ("pydantic", "claude"):
                write_worker(claude_project, {"say": "well"}, runtime=runtime, toolboxes=["desk"], sandboxes={})
                request = RunRequest(worker="bob", input="Go.")
                prepared = await here.hall.runs.prepare(request, here.frame, [box])
                here.hall.runs.launch(prepared)
                while here.hall.runs.is_alive(prepared.run_id):  # noqa: ASYNC110 - polls like a client
                    await asyncio.sleep(0.02)
                shown[runtime] = here.hall.history.journal(prepared.run_id).all(ModelAsked)[0].data.tools

    run_async(work)
    assert shown["claude"] == shown["pydantic"]


def test_parallel_calls_wait_for_their_approvals_together(home: Home, claude_project: Path) -> None:
    write_worker(claude_project, {"calls": [WRITE, OTHER]}, DONE, tool_rules=ASK_BEFORE_WRITING)

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            events = await here.run()
            run = events[0].run
            assert events[-1].data["status"] == "waiting"
            assert (here.programs(), here.homes(), list_notes(claude_project)) == ([], [], [])
            asks = await here.client.asks.list()
            assert len(asks) == 2
            for ask in asks:
                await here.client.asks.answer(ask.id, Answer(choice="yes"))
            assert (await here.resume(run))[-1].data["status"] == "completed"
            kinds = await here.entry_kinds(run)
            assert (kinds.count("model_answered"), kinds.count("tool_started")) == (2, 2)
            assert (await here.get_details(run)).run.output == "done"

    run_async(work)
    assert list_notes(claude_project) == ["a.md", "b.md"]


def split_content(part: dict[str, Any]) -> list[Any]:
    """Return the pieces of a message part. A text attachment is replaced by ATTACHED."""
    content = part["content"] if isinstance(part["content"], list) else [part["content"]]
    return [ATTACHED if "sky is green" in piece or "text/markdown, 18 bytes, " in piece else piece for piece in content]


@pytest.mark.req("WKR-16", "WKR-18", "WKR-15")
def test_the_model_gets_the_same_requests_as_with_pydantic_ai(home: Home, claude_project: Path) -> None:
    """Instructions, settings and servers for Claude Code in the project and the user's home are ignored."""
    for place in (claude_project, Path.home()):
        (place / ".claude").mkdir()
        (place / "CLAUDE.md").write_text("Say boo.")
        (place / ".claude" / "CLAUDE.md").write_text("Say boo.")
        hook = {"hooks": [{"type": "command", "command": f"touch {claude_project}/hooked"}]}
        settings = {"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}, "model": "opus"}
        (place / ".claude" / "settings.json").write_text(json.dumps(settings))
        (place / ".mcp.json").write_text(
            json.dumps({"mcpServers": {"x": {"command": "touch", "args": [f"{claude_project}/served"]}}})
        )
    prompt = (
        "You are Bob.\n\n# Rules\n\n- ${HOME} and {{this}} stay as they are: \u00e4\u20ac\U0001f600\n\n\n  - and this"
    )
    long = "x" * 79 + "\n"
    (claude_project / "notes").mkdir()
    (claude_project / "notes" / "long.txt").write_text(long * 1_900 + "THE END\n")
    (claude_project / "deck.pdf").write_bytes(b"%PDF-1.4\n" + bytes(100))
    (claude_project / "dot.png").write_bytes(PNG)
    (claude_project / "facts.md").write_text("The sky is green.\n")
    read = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "long.txt"}}
    desk = [
        {"call": "picture"},
        {"call": "broken", "with": {"why": "no ink"}},
        {"call": "no_such_tool", "with": {"a": 1}},
    ]
    steps = ({"calls": [read, WRITE, read, *desk]}, {"expect": "(?s)THE END.*Created a.md.*THE END", "say": "done"})
    files = ("facts.md", "dot.png", "deck.pdf")
    fields = {"instructions": prompt, "base": True, "tools": ["Read", "Grep", "Bash"], "toolboxes": ["desk"]}

    async def run_and_read_calls(here: ClaudeHall) -> list[Any]:
        events = await here.run(SampleTools().toolbox(), attachments=files)
        assert (await here.get_details(events[0].run)).run.output == "done"
        assert (await here.entry_kinds(events[0].run)).count("tool_refused") == 1
        (claude_project / "notes" / "a.md").unlink()
        requests = [
            entry.data for entry in await here.client.runs.journal(events[0].run) if entry.kind == "model_asked"
        ]
        return [
            ([content for part in entry.message for content in split_content(part)], entry.tools) for entry in requests
        ]

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            write_worker(claude_project, *steps, **fields)
            theirs = await run_and_read_calls(here)
            write_worker(claude_project, *steps, **fields, runtime="pydantic")
            assert theirs == await run_and_read_calls(here)

    run_async(work)
    assert not (claude_project / "hooked").exists()
    assert not (claude_project / "served").exists()


def test_a_result_matches_its_schema_and_calls_beside_it_are_executed(home: Home, claude_project: Path) -> None:
    (claude_project / "number.json").write_text(json.dumps(SCHEMA))
    wrong = {"output": {"n": "x"}}
    right = {"expect": "is not of type", "calls": [{"call": "final_result", "with": {"n": 5}}, WRITE]}
    write_worker(
        claude_project,
        {"say": "five"},
        {"expect": "calling final_result", **wrong},
        right,
        output_schema_ref="number.json",
    )

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            run = (await here.run())[0].run
            shown = (await here.get_details(run)).run
            assert (shown.status, shown.output) == ("completed", {"n": 5})
            assert (await here.entry_kinds(run)).count("model_asked") == 3
            assert (await here.client.runs.replay(run, here.frame)).matches

    run_async(work)
    assert list_notes(claude_project) == ["a.md"]


@pytest.mark.req("AW-21")
def test_a_model_call_is_recognised_in_any_order_of_results(home: Home, claude_project: Path) -> None:
    """Parallel calls end in a different order each time."""

    @tool(repeatable=True)
    async def wait(seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return f"waited {seconds}"

    calls = [{"call": "wait", "with": {"seconds": seconds}} for seconds in (0.2, 0.01, 0.1)]
    write_worker(claude_project, {"calls": calls}, SLOW, toolboxes=["clock"])

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            request, boxes = RunRequest(worker="bob", input="Go."), [Toolbox("clock", wait)]
            results = 0
            async with aclosing(here.client.runs.run(request, here.frame, boxes)) as events:
                async for event in events:
                    results += event.type == "tool_result"
                    if results == 3:
                        break
                while "m2" not in await here.model_call_keys(event.run):  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.02)
            write_worker(
                claude_project,
                {"calls": calls},
                {"expect": r"(?s)waited 0\.2.*waited 0\.01.*waited 0\.1", **DONE},
                toolboxes=["clock"],
            )
            assert (await here.resume(event.run, toolboxes=boxes))[-1].data["status"] == "completed"
            assert set(await here.model_call_keys(event.run)) == {"m1", "m2"}
            assert (await here.entry_kinds(event.run)).count("tool_started") == 3

    run_async(work)


# Missing or old programs


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "runtime claude needs Claude Code: "),
        ("1.0.0", "is older than 2.1.200"),
        ("who knows", "--version printed"),
    ],
)
def test_an_unusable_program_is_reported_with_a_hint(
    guild: Guild, claude_project: Path, version: str | None, message: str
) -> None:
    write_worker(claude_project, DONE)
    program = claude_project.parent / "claude"
    if version is not None:
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    ran = guild("run", "bob", "Go.", env={"GUILDHALL_CLAUDE": str(program)})
    assert ran.code == 1
    assert message in ran.err
    assert "pip install 'guildhall[claude]'" in ran.err


# Ends of a run


@pytest.mark.parametrize("end", ["paused", "stopped"])
def test_a_paused_or_stopped_program_ends_at_once_with_its_home(home: Home, claude_project: Path, end: str) -> None:
    write_worker(claude_project, WRITE, SLOW)

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            stream = here.client.runs.run(RunRequest(worker="bob", input="Go."), here.frame)
            async for event in stream:
                if event.type == "tool_result":
                    break
            assert here.programs()
            began = time.monotonic()
            if end == "stopped":
                await here.client.runs.stop(event.run)
                while here.programs():  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.005)
            await stream.aclose()
            took = time.monotonic() - began
            assert (here.programs(), here.homes()) == ([], [])
            assert took < 2  # some tens of milliseconds on an idle machine
            if end == "paused":
                write_worker(claude_project, WRITE, DONE)
                assert (await here.resume(event.run))[-1].data["status"] == "completed"
                assert (await here.entry_kinds(event.run)).count("tool_started") == 1

    run_async(work)


@pytest.mark.req("AW-21")
def test_a_killed_program_is_restarted_and_repeats_nothing(home: Home, claude_project: Path) -> None:
    write_worker(claude_project, WRITE, {"sleep": 1, **OTHER}, DONE)

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            seen: list[Event] = []
            async with aclosing(here.client.runs.run(RunRequest(worker="bob", input="Go."), here.frame)) as events:
                async for event in events:
                    seen.append(event)
                    if event.type == "tool_result" and event.data["id"].startswith("m1/"):
                        for pid in here.programs():
                            os.kill(pid, signal.SIGKILL)
            assert seen[-1].data["status"] == "completed"
            (crash,) = [event.data for event in seen if event.type == "error"]
            assert (crash["code"], crash["transient"]) == ("runtime_crashed", True)
            assert "Claude Code was killed by SIGKILL" in crash["message"]
            kinds = await here.entry_kinds(seen[0].run)
            assert (kinds.count("crashed"), kinds.count("tool_started"), kinds.count("model_answered")) == (1, 2, 3)
            assert (await here.client.runs.replay(seen[0].run, here.frame)).matches

    run_async(work)
    assert list_notes(claude_project) == ["a.md", "b.md"]


# Orphans


@pytest.mark.req("AW-21")
def test_a_killed_hall_leaves_no_program(guild_hall: GuildWithHall, claude_project: Path) -> None:
    env = {"GUILDHALL_CLAUDE": str(claude_program()), "TMPDIR": str(claude_project.parent)}
    write_worker(claude_project, WRITE, SLOW)
    process = guild_hall.start("run", "bob", "Go.", "--output", "stream-json", env=env)
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    while json.loads(process.stdout.readline())["type"] != "tool_result":
        pass
    assert find_program_pids(claude_project.parent)
    guild_hall.kill_hall()
    wait_until(lambda: find_program_pids(claude_project.parent) == [])
    assert len(list(claude_project.parent.glob("guild-home-*"))) == 1
    write_worker(claude_project, WRITE, DONE)
    ran = guild_hall("resume", run, env=env)  # in a new hall
    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    assert list(claude_project.parent.glob("guild-home-*")) == []  # it deletes what was left
    kinds = [json.loads(line)["kind"] for line in guild_hall("log", run, "--json").out.splitlines()]
    assert kinds.count("tool_started") == 1


def read_environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


async def start_escaped_program(home: Path, env: dict[str, str], port: int) -> asyncio.subprocess.Process:
    """Start the program of a run again, outside of the confinement, as if it had escaped."""
    env = {
        **env,
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}/llm/anthropic",
        "HOME": str(home),
        "TMPDIR": str(home),
    }
    env["CLAUDE_CONFIG_DIR"] = str(home / "claude")
    flags = [*_FLAGS, "--model", _ANY_MODEL, "--mcp-config", str(home / "mcp.json")]
    flags += ["--system-prompt-file", str(home / "prompt.md")]
    pipe = asyncio.subprocess.PIPE
    orphan = await asyncio.create_subprocess_exec(
        claude_program(), *flags, env=env, cwd=home, stdin=pipe, stdout=pipe, limit=2**24
    )
    assert orphan.stdin is not None
    orphan.stdin.write(_message([{"type": "text", "text": "Go."}]))
    orphan.stdin.close()
    return orphan


async def read_line_with(orphan: asyncio.subprocess.Process, word: str) -> dict[str, Any]:
    """Return the next line that contains the word."""
    assert orphan.stdout is not None
    async with asyncio.timeout(20):
        while line := await orphan.stdout.readline():
            if word.encode() in line:
                return json.loads(line)
    raise AssertionError(word)


def test_a_program_that_outlives_its_run_is_refused_at_both_doors(home: Home, claude_project: Path) -> None:
    write_worker(claude_project, WRITE, SLOW)

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            stream = here.client.runs.run(RunRequest(worker="bob", input="Go."), here.frame)
            async for event in stream:
                if event.type == "tool_result":
                    break
            env = read_environment(*here.programs())
            copy = shutil.copytree(here.homes()[0], claude_project.parent / "copy")
            with socket.create_server(("127.0.0.1", 0)) as outside:
                port = outside.getsockname()[1]
                config = (copy / "mcp.json").read_text()
                assert env["GUILDHALL_TOKEN"] not in config
                (copy / "mcp.json").write_text(config.replace(":7420/", f":{port}/"))
                listener = await here.hall.runtimes.door_app.listen(outside)
                orphan = await start_escaped_program(copy, env, port)
                await read_line_with(orphan, "tool_result")  # it runs, and calls its model again
                await here.client.runs.stop(event.run)
                before = await here.client.runs.journal(event.run)
                assert (await read_line_with(orphan, "terminal_reason"))["is_error"]
                late = await start_escaped_program(copy, env, port)
                began = await read_line_with(late, "mcp_servers")
                assert [server["status"] for server in began["mcp_servers"]] == ["failed"]
                assert (await read_line_with(late, "terminal_reason"))["api_error_status"] == 401
                assert (await orphan.wait(), await late.wait()) == (1, 1)
                assert await here.client.runs.journal(event.run) == before
                await listener.close(0)
            await stream.aclose()

    run_async(work)
    assert list_notes(claude_project) == ["a.md"]


def test_claude_code_does_not_compact_a_conversation_that_is_too_long(home: Home, claude_project: Path) -> None:
    write_worker(claude_project, {**WRITE, "usage": {"input": 199_000, "output": 10}}, DONE)

    async def work() -> None:
        async with open_claude_hall(home, claude_project) as here:
            events = await here.run()
            shown = await here.get_details(events[0].run)
            assert shown.run.status == "failed"
            assert (shown.run.error or {})["code"] == "context_too_long"
            assert await here.model_call_keys(events[0].run) == ["m1"]

    run_async(work)
