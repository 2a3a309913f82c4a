"""Hostile input at every boundary: every tool and every command of the live tables."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.cli import command_table
from guildhall.cli.main import main
from guildhall.core.ids import fingerprint
from guildhall.runs.assembly.tools_and_folders import BASE_TOOLS
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import sandbox_tools
from guildhall.tools.call_router import BUILT_IN, CallRouter, ToolEnvironment, built_in_tools
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from tests.cli.test_exit_codes import EXIT_CODES
from tests.runs.places import DONE, put_script, put_worker
from tests.tools.places import refuse_run_tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.policy.rules import Verdict
    from guildhall.tools.gate import Approval, EffectChoice
    from tests.conftest import Guild

TOOLS = [*BUILT_IN, "sandbox_list", "sandbox_read_text", "sandbox_write_text", *(t.name for t in BASE_TOOLS)]
DEEP: Any = "x"
for _ in range(60):
    DEEP = {"a": [DEEP]}
WRONG: list[Any] = [None, True, 0, -1, 10**30, 1.5, [], ["a"], {}, {"a": 1}, DEEP]
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\u202e\u0000\ufeff",
    "\x1b[2J",
    "x" * 2_000_000,
    "../" * 40 + "OUTSIDE/secret",
    "OUTSIDE/secret",
    "OUTSIDE/new",
    "link/secret",
    "link/new",
    "~/secret",
    "file:OUTSIDE/secret",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/dev/zero",
    "pipe",
    "a/" * 3000,
    "con.\\..\\..\\x",
    "$(touch OUTSIDE/new)",
    "(" * 500,
    "(a+)+$",
    "[" * 200,
    "{a,{b,{c,*}}}/**/" * 20,
    "http://127.0.0.1:1/",
    "http://[::ffff:127.0.0.1]/",
    "http://0x7f.1/",
    "http://user:pass@localhost/",
    "gopher://localhost/",
]
GOOD: dict[str, Any] = {
    "file_path": "a.txt",
    "path": "a.txt",
    "pattern": "a",
    "content": "text",
    "old_string": "a",
    "new_string": "b",
    "command": "true",
    "url": "http://127.0.0.1:1/",
    "query": "q",
    "sandbox": "notes",
    "timeout": 5,
    "question": "q",
    "decision": "d",
    "reasoning": "r",
}


class OpenLedger:
    """A ledger that approves everything and records nothing."""

    def find_result(self, call: ToolCall) -> ToolResult | None:
        return None

    def is_interrupted(self, call: ToolCall) -> bool:
        return False

    def answer_calls(self, call: ToolCall) -> Sequence[ToolCall]:
        return ()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        return "approved", None

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        return "again", None

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
        return result

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None: ...

    async def record_end(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return result


@dataclass
class Scene:
    """A working folder, and a folder beside it that must not change."""

    inside: Path
    outside: Path

    def tools(self) -> tuple[tuple[Tool, ...], ToolEnvironment]:
        view = View(
            cwd=self.inside,
            folders=(
                Folder(path=self.inside, is_writable=True),
                Folder(path=self.inside / "notes", name="notes", is_writable=True),
            ),
            hidden=(self.outside / "home",),
        )
        search = {"searxng": "http://127.0.0.1:1", "provider": None}
        environment = ToolEnvironment(view=view, env={"PATH": os.environ["PATH"]}, web_search=search)
        tools = (*BASE_TOOLS, *sandbox_tools(view), *built_in_tools(BUILT_IN, environment))
        return tools, environment

    def outside_fingerprint(self) -> str:
        return fingerprint(
            [
                [str(file), file.lstat().st_mode, file.read_bytes().hex() if file.is_file() else ""]
                for file in sorted(self.outside.rglob("*"))
            ]
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "notes").mkdir(parents=True)
    (outside / "home").mkdir(parents=True)
    (outside / "secret").write_text("SECRET")
    (outside / "home" / "hall.db").write_text("SECRET")
    (inside / "a.txt").write_text("a\n")
    (inside / "notes" / "a.txt").write_text("a\n")
    (inside / "link").symlink_to(outside)
    (inside / "notes" / "link").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    os.mkfifo(inside / "notes" / "pipe")
    return Scene(inside, outside)


def attacks(tool: Tool, outside: Path) -> Iterator[Any]:
    """Yield arguments with each parameter replaced by each hostile value, and then invalid arguments."""
    properties: dict[str, Any] = dict(tool.input_schema.get("properties", {}))
    good = {name: GOOD[name] for name in properties if name in GOOD}
    required = list(tool.input_schema.get("required", []))
    assert all(name in good for name in required), f"{tool.name}: GOOD lacks a valid value for {required}"
    for name in properties:
        for value in [*WRONG, *(text.replace("OUTSIDE", str(outside)) for text in TEXTS)]:
            yield {**good, name: value}
    yield from ({}, None, {**good, "\ud800": 1}, {**good, "extra": 1}, {"": ""}, {**good, "x" * 100_000: 1})


@pytest.mark.req("DO-4")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TOOLS)
def test_hostile_arguments_get_results_without_effects(scene: Scene, name: str) -> None:
    tools, environment = scene.tools()
    tool = next(tool for tool in tools if tool.name == name)
    before = scene.outside_fingerprint()

    async def attack() -> list[ToolResult]:
        executor = CallRouter(tools, environment, refuse_run_tool)
        gate = Gate(tools, (), "ask", OpenLedger(), executor)
        try:
            calls = [
                ToolCall(key=f"m1/{i}", tool=name, arguments=a) for i, a in enumerate(attacks(tool, scene.outside))
            ]
            return [await gate.call(call) for call in calls]
        finally:
            await executor.close()

    results = asyncio.run(attack())
    assert results
    for result in results:
        assert isinstance(result, ToolResult)
        assert "SECRET" not in result.text
        json.dumps(result.as_dict()).encode()
        result.text.encode()  # the output is always valid UTF-8
        assert "Traceback" not in result.text
    assert scene.outside_fingerprint() == before


def test_every_tool_is_attacked(scene: Scene) -> None:
    tools, _ = scene.tools()
    assert sorted(tool.name for tool in tools) == sorted(TOOLS)


# The command line

WORDS = [
    "",
    " ",
    "-",
    "--",
    "---",
    "-x",
    "--nonsense",
    "--output",
    "--output=",
    "--json=5",
    "\0",
    "a\0b",
    "\udcff\udcfe",  # how Python decodes bytes that are not UTF-8
    "\x1b[2J\u202e",
    "x" * 100_000,
    "../../../../etc/passwd",
    "/dev/null",
    "/proc/self/mem",
    "r-2222222222",
    "a-2222222222",
    "r-" + "2" * 1000,
    "*",
    "$(reboot)",
    "'; drop table runs; --",
    "%s%n{0}",
    "🂡" * 50,
]
SLOW_COMMANDS = {"demo"}  # a demo takes long, so it is started with invalid words only


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert code in EXIT_CODES, (words, code)
    assert "Traceback" not in out + err, (words, err)
    assert "internal error" not in err, (words, err)
    assert "\x1b" not in err, words
    assert code == 0 or err.strip(), words


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [command.name for command in command_table.COMMANDS])
def test_hostile_words_end_with_a_documented_code(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    deep = project / "a" / "b" / "c"  # `guild init ../../../..` stays in the folder of the test
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    put_worker(project)
    put_script(project, DONE)
    for word in WORDS:
        words = [*command.split(), word]
        if command in SLOW_COMMANDS and word in ("", "-", "--"):
            continue
        run_command(words, capsys)
        if command in ("answer", "run", "worker show", "log"):
            run_command([*words, word], capsys)
            run_command([*command.split(), "scribe", word, "--model", word], capsys)
            run_command([*command.split(), "a-2222222222", "no", "--note", word], capsys)


@pytest.mark.parametrize("word", WORDS)
def test_hostile_commands_are_reported(project: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    for words in ([word], [word, word], ["help", word], ["worker", word]):
        run_command(words, capsys)


@pytest.mark.parametrize("option", ["--budget", "--max-turns"])
@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "٣", "1_000", "0x10", "two"])
def test_hostile_numbers_are_reported(
    project: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    put_worker(project)
    put_script(project, DONE)
    run_command(["run", "scribe", "go", f"{option}={value}"], capsys)
    run_command(["resume", "r-2222222222", option, value], capsys)


# The environment


def run_guild(guild: Guild, *words: str, env: dict[str, str] | None = None, codes: set[int] | None = None) -> str:
    ran = guild(*words, env=env)
    assert ran.code in EXIT_CODES, ran
    assert codes is None or ran.code in codes, ran
    assert "Traceback" not in ran.out + ran.err
    assert "internal error" not in ran.err, ran
    return ran.out + ran.err


@pytest.mark.parametrize("words", [("ls",), ("run", "scribe", "go"), ("doctor",), ("worker", "ls")])
@pytest.mark.parametrize(
    "kind", ["a file", "below a file", "a link to itself", "read-only", "too long", "a device", "not a database"]
)
def test_an_unusable_home_is_reported(
    guild: Guild, project: Path, tmp_path: Path, words: tuple[str, ...], kind: str
) -> None:
    put_worker(project)
    put_script(project, DONE)
    place = tmp_path / "place"
    homes = {
        "a file": place,
        "below a file": place / "home",
        "a link to itself": tmp_path / "loop",
        "read-only": "/proc/sys/kernel/home",
        "too long": "/tmp/" + "x" * 5000,
        "a device": "/dev/null",
        "not a database": tmp_path / "folder",
    }
    place.write_text("in the way")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "hall.db").write_bytes(b"something else" * 100)
    output = run_guild(guild, *words, env={"GUILDHALL_HOME": str(homes[kind])}, codes={1, 2, 7})
    assert "GUILDHALL_HOME" in output or str(homes[kind])[:40] in output


@pytest.mark.parametrize("home", ["relative/home", ".", "~/home", ""])
def test_a_home_can_be_a_relative_path(guild: Guild, project: Path, home: str) -> None:
    put_worker(project)
    put_script(project, DONE)
    run_guild(guild, "run", "scribe", "go", env={"GUILDHALL_HOME": home}, codes={0})


@pytest.mark.parametrize(
    "model", ["nonsense", ":", "script:", "script:/dev/zero", "replay:", "replay:r-2222222222", "a:b"]
)
def test_an_invalid_model_is_reported(guild: Guild, project: Path, model: str) -> None:
    put_worker(project)
    run_guild(guild, "run", "scribe", "go", env={"GUILDHALL_MODEL": model}, codes={2, 3})


CONFIGS = [
    "[",
    "- 1",
    "5",
    "budget: -1",
    "budget: .nan",
    "budget: .inf",
    "budget: much",
    "env: 5",
    'env: ["A=B"]',
    "model: {}",
    "model: ''",
    "!!python/object/apply:os.system [true]",
    "a: &a [*a]",
    "modle: x",
    "budget: 1\nbudget: 2",
    "\0",
    "model: \ud800",
    "approvals: {timeout: -5s}",
    "web_search: {searxng: 'file:///etc/passwd'}",
    "[" * 5000,
    "x: " + "y" * 3_000_000,
]


@pytest.mark.parametrize("text", CONFIGS)
def test_hostile_settings_are_reported_with_their_file(guild: Guild, project: Path, home: Home, text: str) -> None:
    put_worker(project)
    put_script(project, DONE)
    home.path.mkdir()
    home.settings.write_bytes(text.encode("utf-8", "surrogatepass"))
    output = run_guild(guild, "run", "scribe", "go", codes={2, 7})
    assert "config.yaml" in output
    run_guild(guild, "doctor")
    run_guild(guild, "ls")


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop", "device"])
def test_settings_that_are_not_a_file_are_reported(guild: Guild, project: Path, home: Home, kind: str) -> None:
    put_worker(project)
    put_script(project, DONE)
    home.path.mkdir()
    if kind == "folder":
        home.settings.mkdir()
    elif kind == "fifo":
        os.mkfifo(home.settings)
    elif kind == "loop":
        home.settings.symlink_to(home.settings)
    else:
        home.settings.symlink_to("/dev/zero")
    run_guild(guild, "run", "scribe", "go", codes={2, 7} if kind != "loop" else None)
