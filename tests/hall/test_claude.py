"""The real Claude Code as a worker's runtime, in a real hall and through the real command, against a script."""

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

from guildhall.core.frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runs.record.entries import ModelAsked
from guildhall.runtimes.programs.claude import _ANY_MODEL, _FLAGS, _message
from guildhall.tools.definition import tool
from guildhall.tools.model import Toolbox
from tests.clis import claude_program, programs
from tests.hall.doors import Desk
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


class Office:
    """A hall in which runs are executed by Claude Code, with the homes of its programs where the test sees them."""

    def __init__(self, hall: Hall, project: Path) -> None:
        self.hall = hall
        self.face = EmbeddedHall(hall)
        self.frame = Frame.here(project, {})
        self._project = project

    def programs(self) -> list[int]:
        return programs(self._project.parent)

    def homes(self) -> list[Path]:
        return list(self._project.parent.glob("guild-home-*"))

    async def run(self, *given: Toolbox, **options: Any) -> list[Event]:
        return await followed(self.face.runs.run(RunRequest(worker="bob", input="Go.", **options), self.frame, given))

    async def resume(self, run: str, **options: Any) -> list[Event]:
        return await followed(self.face.runs.resume(run, self.frame, **options))

    async def shown(self, run: str) -> RunDetails:
        return await self.face.runs.get(run)

    async def asked(self, run: str) -> list[str | None]:
        """The keys of the calls of the model."""
        return [entry.key for entry in await self.face.runs.journal(run) if entry.kind == "model_asked"]

    async def kinds(self, run: str) -> list[str]:
        return [entry.kind for entry in await self.face.runs.journal(run)]


async def followed(stream: Any) -> list[Event]:
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.fixture
def shop(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose worker is executed by Claude Code."""
    monkeypatch.setattr("tempfile.tempdir", str(project.parent))
    (project / "workers").mkdir()
    return project


def put(project: Path, *answers: dict[str, Any], **fields: Any) -> None:
    worker = {"runtime": "claude", "instructions": "You are Bob.", "base": False, "sandboxes": NOTES, **fields}
    text = json.dumps({"model": "script:answers.yaml", **worker}, ensure_ascii=False)
    (project / "workers" / "bob.yaml").write_text(text)
    script = {"workers": {"bob": [answers]}, "price": {"input": 3.0, "output": 15.0}}
    (project / "answers.yaml").write_text(json.dumps(script))


@asynccontextmanager
async def office(home: Home, project: Path) -> AsyncGenerator[Office]:
    hall = Hall(home, environ={**os.environ, "GUILDHALL_CLAUDE": str(claude_program())})
    here = Office(hall, project)
    try:
        async with asyncio.timeout(60):
            yield here
    finally:
        await hall.close()
    assert (here.programs(), here.homes()) == ([], [])


def do(work: Any) -> None:
    asyncio.run(work())


# What a run does


@pytest.mark.req("WKR-14")
def test_claude_answers_and_calls_tools_through_the_command(guild: Guild, shop: Path) -> None:
    put(
        shop,
        {"expect_system": "^You are Bob.$", "expect": "Go", **WRITE},
        {"expect": "Created a.md", "say": "All done."},
    )
    ran = guild("run", "bob", "Go.", env={"GUILDHALL_CLAUDE": str(claude_program())})
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert list_notes(shop) == ["a.md"]
    assert "→ sandbox_write_text sandbox=notes path=a.md" in ran.err
    run, _, told = ran.err.removeprefix("Run ").partition(": ")
    assert told.startswith("Claude Code, model script:answers.yaml; ")
    assert re.search(r"^runtime +Claude Code$", guild("show", run).out, re.MULTILINE)
    assert guild("show", run, "--json").json["runtime"] == "claude"


def test_what_a_person_writes_is_no_command_of_claude_code(home: Home, shop: Path) -> None:
    put(shop, {"say": "well"})

    async def work() -> None:
        async with office(home, shop) as here:
            for words in ("/clear", " /init now", "/review", "@/etc/hostname", "!ls", "-x"):
                events = await followed(here.face.runs.run(RunRequest(worker="bob", input=words), here.frame))
                assert events[-1].data["status"] == "completed", words
                (asked,) = [one for one in await here.face.runs.journal(events[0].run) if one.kind == "model_asked"]
                assert asked.data.message == [{"part": "user-prompt", "content": words}]

    do(work)


@pytest.mark.req("WKR-16")
def test_what_a_tool_is_for_is_told_to_the_end_however_long_it_is(home: Home, shop: Path) -> None:
    @tool(repeatable=True)
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    box = Toolbox("desk", replace(add, description=f"Adds. {'x' * 9000} The end."))
    shown: dict[str, str] = {}

    async def work() -> None:
        async with office(home, shop) as here:
            for runtime in ("pydantic", "claude"):
                put(shop, {"say": "well"}, runtime=runtime, toolboxes=["desk"], sandboxes={})
                request = RunRequest(worker="bob", input="Go.")
                prepared = await here.hall.runs.prepare(request, here.frame, [box])
                here.hall.runs.launch(prepared)
                while here.hall.runs.is_alive(prepared.run):  # noqa: ASYNC110 - as anybody would look
                    await asyncio.sleep(0.02)
                shown[runtime] = here.hall.history.journal(prepared.run).all(ModelAsked)[0].data.tools

    do(work)
    assert shown["claude"] == shown["pydantic"]


@pytest.mark.req("WD-33")
def test_calls_of_one_answer_are_made_side_by_side_and_two_approvals_wait_as_one(home: Home, shop: Path) -> None:
    put(shop, {"calls": [WRITE, OTHER]}, DONE, tool_rules=ASK_BEFORE_WRITING)

    async def work() -> None:
        async with office(home, shop) as here:
            events = await here.run()
            run = events[0].run
            assert events[-1].data["status"] == "waiting"
            assert (here.programs(), here.homes(), list_notes(shop)) == ([], [], [])
            asks = await here.face.asks.list()
            assert len(asks) == 2
            for ask in asks:
                await here.face.asks.answer(ask.id, Answer(choice="yes"))
            assert (await here.resume(run))[-1].data["status"] == "completed"
            kinds = await here.kinds(run)
            assert (kinds.count("model_answered"), kinds.count("tool_started")) == (2, 2)
            assert (await here.shown(run)).run.output == "done"

    do(work)
    assert list_notes(shop) == ["a.md", "b.md"]


def each(part: dict[str, Any]) -> list[Any]:
    """What stands in a part, piece by piece: a file that is attached as text counts as what is in it."""
    content = part["content"] if isinstance(part["content"], list) else [part["content"]]
    return [ATTACHED if "sky is green" in piece or "text/markdown, 18 bytes, " in piece else piece for piece in content]


@pytest.mark.req("WKR-16", "WKR-18", "WKR-15")
def test_the_model_is_shown_the_very_same_as_by_our_own_runtime(home: Home, shop: Path) -> None:
    """Whatever lies around for Claude Code in the project and with the person: instructions, settings, servers."""
    for place in (shop, Path.home()):
        (place / ".claude").mkdir()
        (place / "CLAUDE.md").write_text("Say boo.")
        (place / ".claude" / "CLAUDE.md").write_text("Say boo.")
        hook = {"hooks": [{"type": "command", "command": f"touch {shop}/hooked"}]}
        settings = {"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}, "model": "opus"}
        (place / ".claude" / "settings.json").write_text(json.dumps(settings))
        (place / ".mcp.json").write_text(
            json.dumps({"mcpServers": {"x": {"command": "touch", "args": [f"{shop}/served"]}}})
        )
    prompt = (
        "You are Bob.\n\n# Rules\n\n- ${HOME} and {{this}} stay as they are: \u00e4\u20ac\U0001f600\n\n\n  - and this"
    )
    long = "x" * 79 + "\n"
    (shop / "notes").mkdir()
    (shop / "notes" / "long.txt").write_text(long * 1_900 + "THE END\n")
    (shop / "deck.pdf").write_bytes(b"%PDF-1.4\n" + bytes(100))
    (shop / "dot.png").write_bytes(PNG)
    (shop / "facts.md").write_text("The sky is green.\n")
    read = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "long.txt"}}
    desk = [
        {"call": "picture"},
        {"call": "broken", "with": {"why": "no ink"}},
        {"call": "no_such_tool", "with": {"a": 1}},
    ]
    steps = ({"calls": [read, WRITE, read, *desk]}, {"expect": "(?s)THE END.*Created a.md.*THE END", "say": "done"})
    files = ("facts.md", "dot.png", "deck.pdf")
    fields = {"instructions": prompt, "base": True, "tools": ["Read", "Grep", "Bash"], "toolboxes": ["desk"]}

    async def asked(here: Office) -> list[Any]:
        events = await here.run(Desk().toolbox(), attachments=files)
        assert (await here.shown(events[0].run)).run.output == "done"
        assert (await here.kinds(events[0].run)).count("tool_refused") == 1
        (shop / "notes" / "a.md").unlink()
        told = [entry.data for entry in await here.face.runs.journal(events[0].run) if entry.kind == "model_asked"]
        return [([content for part in entry.message for content in each(part)], entry.tools) for entry in told]

    async def work() -> None:
        async with office(home, shop) as here:
            put(shop, *steps, **fields)
            theirs = await asked(here)
            put(shop, *steps, **fields, runtime="pydantic")
            assert theirs == await asked(here)

    do(work)
    assert not (shop / "hooked").exists()
    assert not (shop / "served").exists()


def test_a_result_fits_its_schema_and_what_stands_beside_it_is_done(home: Home, shop: Path) -> None:
    (shop / "number.json").write_text(json.dumps(SCHEMA))
    wrong = {"output": {"n": "x"}}
    right = {"expect": "is not of type", "calls": [{"call": "final_result", "with": {"n": 5}}, WRITE]}
    put(shop, {"say": "five"}, {"expect": "calling final_result", **wrong}, right, output_schema_ref="number.json")

    async def work() -> None:
        async with office(home, shop) as here:
            run = (await here.run())[0].run
            shown = (await here.shown(run)).run
            assert (shown.status, shown.output) == ("completed", {"n": 5})
            assert (await here.kinds(run)).count("model_asked") == 3
            assert (await here.face.runs.replay(run, here.frame)).matches

    do(work)
    assert list_notes(shop) == ["a.md"]


@pytest.mark.req("AW-21")
def test_a_question_is_known_again_in_whatever_order_results_come(home: Home, shop: Path) -> None:
    """Calls made side by side end in another order each time: the first time by how long they take."""

    @tool(repeatable=True)
    async def wait(seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return f"waited {seconds}"

    calls = [{"call": "wait", "with": {"seconds": seconds}} for seconds in (0.2, 0.01, 0.1)]
    put(shop, {"calls": calls}, SLOW, toolboxes=["clock"])

    async def work() -> None:
        async with office(home, shop) as here:
            request, boxes = RunRequest(worker="bob", input="Go."), [Toolbox("clock", wait)]
            results = 0
            async with aclosing(here.face.runs.run(request, here.frame, boxes)) as events:
                async for event in events:
                    results += event.type == "tool_result"
                    if results == 3:
                        break
                while "m2" not in await here.asked(event.run):  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(0.02)
            put(
                shop,
                {"calls": calls},
                {"expect": r"(?s)waited 0\.2.*waited 0\.01.*waited 0\.1", **DONE},
                toolboxes=["clock"],
            )
            assert (await here.resume(event.run, toolboxes=boxes))[-1].data["status"] == "completed"
            assert set(await here.asked(event.run)) == {"m1", "m2"}
            assert (await here.kinds(event.run)).count("tool_started") == 3

    do(work)


# When it is not there


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "runtime claude needs Claude Code: "),
        ("1.0.0", "is older than 2.1.200"),
        ("who knows", "--version printed"),
    ],
)
def test_a_program_that_will_not_do_is_said_so_with_what_to_do(
    guild: Guild, shop: Path, version: str | None, said: str
) -> None:
    put(shop, DONE)
    program = shop.parent / "claude"
    if version is not None:
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    ran = guild("run", "bob", "Go.", env={"GUILDHALL_CLAUDE": str(program)})
    assert ran.code == 1
    assert said in ran.err
    assert "pip install 'guildhall[claude]'" in ran.err


# How it ends


@pytest.mark.parametrize("how", ["paused", "stopped"])
def test_it_is_ended_at_once_with_all_that_is_its(home: Home, shop: Path, how: str) -> None:
    put(shop, WRITE, SLOW)

    async def work() -> None:
        async with office(home, shop) as here:
            stream = here.face.runs.run(RunRequest(worker="bob", input="Go."), here.frame)
            async for event in stream:
                if event.type == "tool_result":
                    break
            assert here.programs()
            began = time.monotonic()
            if how == "stopped":
                await here.face.runs.stop(event.run)
                while here.programs():  # noqa: ASYNC110 - the kernel tells nobody else
                    await asyncio.sleep(0.005)
            await stream.aclose()
            took = time.monotonic() - began
            assert (here.programs(), here.homes()) == ([], [])
            assert took < 2  # some tens of milliseconds where nothing else runs
            if how == "paused":
                put(shop, WRITE, DONE)
                assert (await here.resume(event.run))[-1].data["status"] == "completed"
                assert (await here.kinds(event.run)).count("tool_started") == 1

    do(work)


@pytest.mark.req("AW-21")
def test_a_program_that_is_killed_is_started_again_and_nothing_is_done_twice(home: Home, shop: Path) -> None:
    put(shop, WRITE, {"sleep": 1, **OTHER}, DONE)

    async def work() -> None:
        async with office(home, shop) as here:
            seen: list[Event] = []
            async with aclosing(here.face.runs.run(RunRequest(worker="bob", input="Go."), here.frame)) as events:
                async for event in events:
                    seen.append(event)
                    if event.type == "tool_result" and event.data["id"].startswith("m1/"):
                        for pid in here.programs():
                            os.kill(pid, signal.SIGKILL)
            assert seen[-1].data["status"] == "completed"
            (crash,) = [event.data for event in seen if event.type == "error"]
            assert (crash["code"], crash["transient"]) == ("runtime_crashed", True)
            assert "Claude Code was killed by SIGKILL" in crash["message"]
            kinds = await here.kinds(seen[0].run)
            assert (kinds.count("crashed"), kinds.count("tool_started"), kinds.count("model_answered")) == (1, 2, 3)
            assert (await here.face.runs.replay(seen[0].run, here.frame)).matches

    do(work)
    assert list_notes(shop) == ["a.md", "b.md"]


# Orphans


@pytest.mark.req("AW-21")
def test_a_hall_that_is_killed_leaves_no_program_behind(guild_hall: GuildWithHall, shop: Path) -> None:
    env = {"GUILDHALL_CLAUDE": str(claude_program()), "TMPDIR": str(shop.parent)}
    put(shop, WRITE, SLOW)
    process = guild_hall.start("run", "bob", "Go.", "--output", "stream-json", env=env)
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    while json.loads(process.stdout.readline())["type"] != "tool_result":
        pass
    assert programs(shop.parent)
    guild_hall.kill_hall()
    wait_until(lambda: programs(shop.parent) == [])
    assert len(list(shop.parent.glob("guild-home-*"))) == 1
    put(shop, WRITE, DONE)
    ran = guild_hall("resume", run, env=env)  # in a new hall
    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    assert list(shop.parent.glob("guild-home-*")) == []  # and takes away what was left
    kinds = [json.loads(line)["kind"] for line in guild_hall("log", run, "--json").out.splitlines()]
    assert kinds.count("tool_started") == 1


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


async def escaped(home: Path, env: dict[str, str], port: int) -> asyncio.subprocess.Process:
    """The program of a run once more, as it is, but outside of the jail: as if it had got away."""
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


async def said(orphan: asyncio.subprocess.Process, word: str) -> dict[str, Any]:
    """The first line from now on with a word in it."""
    assert orphan.stdout is not None
    async with asyncio.timeout(20):
        while line := await orphan.stdout.readline():
            if word.encode() in line:
                return json.loads(line)
    raise AssertionError(word)


def test_a_program_that_outlives_its_run_gets_nothing_at_either_door(home: Home, shop: Path) -> None:
    put(shop, WRITE, SLOW)

    async def work() -> None:
        async with office(home, shop) as here:
            stream = here.face.runs.run(RunRequest(worker="bob", input="Go."), here.frame)
            async for event in stream:
                if event.type == "tool_result":
                    break
            env = environment(*here.programs())
            copy = shutil.copytree(here.homes()[0], shop.parent / "copy")
            with socket.create_server(("127.0.0.1", 0)) as outside:
                port = outside.getsockname()[1]
                config = (copy / "mcp.json").read_text()
                assert env["GUILDHALL_TOKEN"] not in config
                (copy / "mcp.json").write_text(config.replace(":7420/", f":{port}/"))
                listening = await here.hall.runtimes.door_app.listen(outside)
                orphan = await escaped(copy, env, port)
                await said(orphan, "tool_result")  # it is at work, and asks its model again
                await here.face.runs.stop(event.run)
                before = await here.face.runs.journal(event.run)
                assert (await said(orphan, "terminal_reason"))["is_error"]
                late = await escaped(copy, env, port)
                began = await said(late, "mcp_servers")
                assert [server["status"] for server in began["mcp_servers"]] == ["failed"]
                assert (await said(late, "terminal_reason"))["api_error_status"] == 401
                assert (await orphan.wait(), await late.wait()) == (1, 1)
                assert await here.face.runs.journal(event.run) == before
                await listening.close(0)
            await stream.aclose()

    do(work)
    assert list_notes(shop) == ["a.md"]


def test_a_conversation_that_is_too_long_is_not_condensed_behind_our_back(home: Home, shop: Path) -> None:
    put(shop, {**WRITE, "usage": {"input": 199_000, "output": 10}}, DONE)

    async def work() -> None:
        async with office(home, shop) as here:
            events = await here.run()
            shown = await here.shown(events[0].run)
            assert shown.run.status == "failed"
            assert (shown.run.error or {})["code"] == "context_too_long"
            assert await here.asked(events[0].run) == ["m1"]

    do(work)
