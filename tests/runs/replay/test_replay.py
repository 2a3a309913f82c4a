"""`guild replay`: repeat a run offline from its journal, and report the first difference."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import HOME_VARIABLE
from guildhall.testing.scripted_server import ScriptedServer
from tests.conftest import Guild
from tests.runs.places import DONE, OTHER, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from tests.conftest import CommandResult
    from tests.warm import WarmProcess

SCRIPT = """
repeat: true
workers:
  clerk:
    - - say: I begin.
        calls:
          - {call: enter, with: {line: one}}
          - {call: send, with: {line: letter}}
          - {call: burn, with: {line: old}}
          - {call: entre, with: {line: two}}
          - {call: enter, with: {lime: two}}
          - {call: read, with: {}}
      - {output: {report: all entered}}
"""
WORKER = """name: clerk
instructions: |
  Enter the requested lines.
  Be neat.
model: script:answers.yaml
toolboxes: [desk]
sandboxes:
  desk: {path: ./desk, mode: rw}
output_schema_ref: report.json
tool_rules:
  send: {approval_required: true}
  burn: {allowed: false}
"""
SCHEMA = {"type": "object", "properties": {"report": {"type": "string"}}, "required": ["report"]}
TOOLBOX = '''
from pathlib import Path

from guildhall import tool

BOOK = Path(@DESK@) / "book"


def _effect(line):
    with BOOK.open("a") as book:
        book.write(line + "\\n")
    return f"entered {line}"


@tool(capabilities={"fs.write"})
def enter(line: str) -> str:
    """Enter a line into the book."""
    return _effect(line)


@tool(capabilities={"fs.write"})
def send(line: str) -> str:
    """Send a letter."""
    return _effect(line)


@tool(capabilities={"fs.write"})
def burn(line: str) -> str:
    """Burn a letter."""
    return _effect(line)


@tool(capabilities={"fs.read"}, repeatable=True)
def read() -> str:
    """Read the book."""
    return "a book"
'''


@dataclass(frozen=True)
class Place:
    """A project and a home with one recorded run. Many tests share it, and each restores it."""

    project: Path
    home: Path
    command: Guild

    def guild(self, *words: str) -> CommandResult:
        own = {HOME_VARIABLE: str(self.home), "HOME": str(self.home.parent)}
        return self.command(*words, env=own, cwd=self.project)

    @property
    def book(self) -> list[str]:
        return (self.project / "desk" / "book").read_text().splitlines()

    @property
    def run(self) -> str:
        return self.rows("SELECT id FROM runs ORDER BY created_at")[0][0]

    def rows(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.home / "hall.db", timeout=5, isolation_level=None)) as connection:
            return connection.execute(query, values).fetchall()

    def read_tables(self) -> dict[str, list[Any]]:
        """Return every row of every table."""
        tables = [name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: self.rows(f'SELECT * FROM "{table}"') for table in tables}  # noqa: S608

    def entry(self, kind: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
        """Return step and data of the first entry of a kind."""
        found = self.rows(
            "SELECT seq, data FROM journal WHERE kind = ? AND (key = ? OR ? IS NULL) ORDER BY seq", kind, key, key
        )
        return found[0][0], json.loads(found[0][1])

    def change_entry(self, seq: int, data: Mapping[str, Any]) -> None:
        self.rows("UPDATE journal SET data = ? WHERE seq = ?", json.dumps(data), seq)

    def change(self, name: str, old: str, new: str) -> None:
        """Edit a file of the project or of the home."""
        path = next(folder / name for folder in (self.project, self.home) if (folder / name).exists())
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def recorded_place(tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess) -> Place:
    folder = tmp_path_factory.mktemp("replay")
    place = Place(folder / "project", folder / "home", Guild(warm, folder, measured=True))
    (place.project / "workers").mkdir(parents=True)
    (place.project / "desk").mkdir()
    (place.home / "toolboxes").mkdir(parents=True)
    (place.project / "workers" / "clerk.yaml").write_text(WORKER)
    (place.project / "report.json").write_text(json.dumps(SCHEMA))
    (place.project / "answers.yaml").write_text(SCRIPT)
    (place.home / "toolboxes" / "desk.py").write_text(TOOLBOX.replace("@DESK@", repr(str(place.project / "desk"))))
    started = place.guild("run", "clerk", "go", "--output", "json")
    assert started.code == 4, started
    ended = place.guild("answer", started.json["asks"][0]["ask"], "yes", "--output", "json")
    assert (ended.code, ended.json["output"]) == (0, {"report": "all entered"}), ended
    return place


@pytest.fixture
def place(recorded_place: Place) -> Generator[Place]:
    """Recorded run, restored after the test."""
    places = [
        path for folder in (recorded_place.project, recorded_place.home) for path in folder.rglob("*") if path.is_file()
    ]
    before = {path: path.read_bytes() for path in places}
    yield recorded_place
    for folder in (recorded_place.project, recorded_place.home):
        for path in folder.rglob("*"):
            if path.is_file() and path not in before:
                path.unlink()
    for path, data in before.items():
        path.write_bytes(data)


@pytest.mark.req("X-1")
def test_an_unchanged_run_matches_and_nothing_is_written(place: Place) -> None:
    before, book = place.read_tables(), place.book
    ran = place.guild("replay", place.run)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"Replay matches the recording ({len(before['journal'])} steps).\n"
    assert place.read_tables() == before
    assert place.book == book == ["one", "letter"]
    result = place.guild("replay", place.run, "--json").json
    assert (result["same"], result["step"], result["difference"]) == (True, None, None)


@pytest.mark.req("X-1")
def test_a_replay_needs_no_provider(project: Path, guild: Guild, tmp_path: Path) -> None:
    """Record over real HTTP, then replay without server and key."""
    put_worker(project, model="anthropic:claude-sonnet-4-5", tool_rules={})
    script = tmp_path / "wire.yaml"
    script.write_text(json.dumps({"workers": {"scribe": [[{"calls": [WRITE, OTHER]}, DONE]]}}))
    with ScriptedServer(script) as server:
        env = {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-scribe"}
        run = guild("run", "scribe", "go", "--output", "json", env=env).json["run"]
        asked = len(server.requests)
        assert guild("replay", run, env=env).code == 0
        assert len(server.requests) == asked == 2
    (project / "notes" / "a.md").unlink()
    assert guild("replay", run).code == 0
    assert not (project / "notes" / "a.md").exists()


# Changed files


def require_approval(place: Place) -> None:
    place.change("workers/clerk.yaml", "tool_rules:\n", "tool_rules:\n  enter: {approval_required: true}\n")


def forbid_writes(place: Place) -> None:
    place.change("workers/clerk.yaml", "tool_rules:\n", "tool_rules:\n  fs.write: {allowed: false}\n")


def remove_approval(place: Place) -> None:
    place.change("workers/clerk.yaml", "  send: {approval_required: true}\n", "")


def allow_burn(place: Place) -> None:
    place.change("workers/clerk.yaml", "  burn: {allowed: false}\n", "")


def ask_before_burn(place: Place) -> None:
    place.change("workers/clerk.yaml", "burn: {allowed: false}", "burn: {approval_required: true}")


def change_prompt(place: Place) -> None:
    place.change("workers/clerk.yaml", "Be neat.", "Be quick.")


def change_description(place: Place) -> None:
    place.change("toolboxes/desk.py", "Send a letter.", "Send a parcel.")


def change_parameters(place: Place) -> None:
    place.change("toolboxes/desk.py", "def send(line: str)", "def send(line: str, copies: int = 1)")


def rename_tool(place: Place) -> None:
    place.change("toolboxes/desk.py", "def read(", "def skim(")


def remove_tools(place: Place) -> None:
    place.change("workers/clerk.yaml", "toolboxes: [desk]", "toolboxes: []")
    place.change("workers/clerk.yaml", WORKER[WORKER.index("tool_rules") :], "")


def change_schema(place: Place) -> None:
    place.change("report.json", '"string"', '"number"')


def remove_schema(place: Place) -> None:
    place.change("workers/clerk.yaml", "output_schema_ref: report.json\n", "")


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("change", "kind", "key", "expected"),
    [
        (change_prompt, "assembled", None, ["the system prompt changed", "- Be neat.", "+ Be quick."]),
        (change_description, "assembled", None, ["the tools of the model", "letter", "parcel"]),
        (change_parameters, "assembled", None, ["the tools of the model", "copies"]),
        (rename_tool, "assembled", None, ["the tools of the model", "read", "skim"]),
        (remove_tools, "assembled", None, ["the tools of the model"]),
        (change_schema, "assembled", None, ["the output schema", '-    "type": "string"', '+    "type": "number"']),
        (remove_schema, "assembled", None, ["the output schema"]),
        (require_approval, "tool_started", "m1/call_0_0", ["enter was allowed; now it needs approval", "'enter'"]),
        (forbid_writes, "assembled", None, ["the tools of the model"]),
        (remove_approval, "tool_started", "m1/call_0_1", ["send needed approval; now it needs none"]),
        (allow_burn, "assembled", None, ["the tools of the model"]),
        (ask_before_burn, "assembled", None, ["the tools of the model"]),
    ],
)
def test_a_change_is_reported_with_its_step(
    place: Place, change: Callable[[Place], None], kind: str, key: str | None, expected: list[str]
) -> None:
    change(place)
    before, book = place.read_tables(), place.book
    result = place.guild("replay", place.run, "--json")
    assert result.code == 1, result
    assert result.json["step"] == place.entry(kind, key)[0]
    for text in expected:
        assert text in result.json["difference"]
    assert (place.read_tables(), place.book) == (before, book)


def test_a_difference_is_printed_as_text(place: Place) -> None:
    change_prompt(place)
    ran = place.guild("replay", place.run)
    assert ran.code == 1
    assert ran.out == (f"{place.run} differs at step 0.\nthe system prompt changed\n- Be neat.\n+ Be quick.\n")


def test_a_rule_that_no_call_matches_makes_no_difference(place: Place) -> None:
    place.change("workers/clerk.yaml", "tool_rules:\n", "tool_rules:\n  net: {allowed: false}\n")
    assert place.guild("replay", place.run).code == 0


def test_a_deleted_worker_is_replayed_from_the_journal(place: Place) -> None:
    (place.project / "workers" / "clerk.yaml").rename(place.project / "clerk.txt")
    assert place.guild("replay", place.run).code == 0
    (place.project / "clerk.txt").rename(place.project / "workers" / "clerk.yaml")


def test_a_missing_toolbox_is_reported(place: Place) -> None:
    (place.home / "toolboxes" / "desk.py").unlink()
    ran = place.guild("replay", place.run)
    assert ran.code == 1
    assert "unknown toolbox 'desk'" in ran.err


# Changed journal


def edit_result(place: Place) -> int:
    seq, data = place.entry("tool_ended", "m1/call_0_0")
    data["result"]["content"][0]["text"] = "entered nothing"
    place.change_entry(seq, data)
    return _find_step(place, "model_asked", "m2")


def edit_refusal(place: Place) -> int:
    seq, data = place.entry("tool_refused", "m1/call_0_3")
    data["result"]["content"][0]["text"] = "No."
    place.change_entry(seq, data)
    return seq


def edit_text(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    data["response"]["parts"][0]["content"] = "I end."
    place.change_entry(seq, data)
    return _find_step(place, "model_asked", "m2")


def edit_arguments(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    data["response"]["parts"][1]["args"] = {"line": "nothing"}
    place.change_entry(seq, data)
    return _find_step(place, "tool_started", "m1/call_0_0")


def drop_call(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    del data["response"]["parts"][1]
    place.change_entry(seq, data)
    return _find_step(place, "tool_started", "m1/call_0_0")


def drop_calls(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    data["response"]["parts"] = place.entry("model_answered", "m2")[1]["response"]["parts"]
    place.change_entry(seq, data)
    return seq + 1


def add_call(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    part = data["response"]["parts"][1]
    data["response"]["parts"].append({**part, "tool_call_id": "call_0_9"})
    place.change_entry(seq, data)
    return seq


def edit_run_result(place: Place) -> int:
    seq, data = place.entry("model_answered", "m2")
    data["response"]["parts"][0]["args"] = {"report": "nothing entered"}
    place.change_entry(seq, data)
    return _find_step(place, "ended")


def edit_end(place: Place) -> int:
    seq, data = place.entry("ended")
    place.change_entry(seq, {**data, "output": {"report": "more"}})
    return seq


def fail_run(place: Place) -> int:
    seq, data = place.entry("ended")
    place.change_entry(seq, {**data, "status": "failed", "error": {"code": "model_failed", "message": "no"}})
    return seq


def drop_answer(place: Place) -> int:
    place.rows("DELETE FROM journal WHERE kind = 'model_answered' AND key = 'm2'")
    return _find_step(place, "model_asked", "m2")


def drop_model_call(place: Place) -> int:
    place.rows("DELETE FROM journal WHERE key = 'm2'")
    return _find_step(place, "ended")


def drop_call_end(place: Place) -> int:
    place.rows("DELETE FROM journal WHERE kind = 'tool_ended' AND key = 'm1/call_0_0'")
    return _find_step(place, "tool_started", "m1/call_0_0")


def corrupt_answer(place: Place) -> int:
    seq, data = place.entry("model_answered", "m1")
    place.change_entry(seq, {**data, "response": {"kind": "response", "parts": "none"}})
    return seq


def corrupt_result(place: Place) -> int:
    seq, _ = place.entry("tool_ended", "m1/call_0_0")
    place.change_entry(seq, {"result": {"content": [{"type": "song"}]}})
    return seq


def _find_step(place: Place, kind: str, key: str | None = None) -> int:
    return place.entry(kind, key)[0]


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    "edit",
    [
        edit_result,
        edit_refusal,
        edit_text,
        edit_arguments,
        drop_call,
        drop_calls,
        add_call,
        edit_run_result,
        edit_end,
        fail_run,
        drop_answer,
        drop_model_call,
        drop_call_end,
        corrupt_answer,
        corrupt_result,
    ],
)
def test_an_inconsistent_journal_is_reported(place: Place, edit: Callable[[Place], int]) -> None:
    step = edit(place)
    result = place.guild("replay", place.run, "--json")
    assert result.code == 1, result
    assert result.json["step"] == step, result.json
    assert result.json["difference"]


def test_of_several_differences_the_first_is_reported(place: Place) -> None:
    edit_end(place)
    remove_approval(place)
    require_approval(place)
    result = place.guild("replay", place.run, "--json").json
    assert result["step"] == _find_step(place, "tool_started", "m1/call_0_0")


# Runs with limits, asks and errors


def check_replay(guild: Guild, run: str) -> None:
    ran = guild("replay", run)
    assert ran.code == 0, ran


@pytest.mark.req("X-1")
def test_a_run_that_was_resumed_after_a_limit_is_replayed(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules={})
    put_script(project, WRITE, OTHER, DONE)
    ran = guild("run", "scribe", "go", "--max-turns", "1", "--output", "json")
    assert ran.code == 5
    check_replay(guild, ran.json["run"])
    assert guild("resume", ran.json["run"], "--max-turns", "2").code == 5
    check_replay(guild, ran.json["run"])
    assert guild("resume", ran.json["run"], "--max-turns", "9").code == 0
    check_replay(guild, ran.json["run"])


@pytest.mark.req("X-1")
@pytest.mark.parametrize("choice", ["yes", "no", "always"])
def test_a_run_that_asked_is_replayed(guild: Guild, project: Path, choice: str) -> None:
    """Compare while the run waits, after changes of the rule, and after the answer."""
    worker = put_worker(project)
    put_script(project, {"calls": [WRITE, OTHER]}, WRITE, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4
    run = ran.json["run"]
    check_replay(guild, run)
    text = worker.read_text()
    worker.write_text(text.replace("approval_required", "allowed"))
    result = guild("replay", run, "--json")
    assert (result.code, result.json["step"]) == (1, 3)
    assert "needed approval; now it needs none" in result.json["difference"]
    worker.write_text(text.replace('"approval_required": true', '"allowed": false'))
    result = guild("replay", run, "--json")
    assert (result.code, result.json["step"]) == (1, 0)
    assert "the tools of the model" in result.json["difference"]
    worker.write_text(text)
    while ran.code == 4:
        ran = guild("answer", ran.json["asks"][0]["ask"], choice, "--note", "so be it", "--output", "json")
    assert ran.code == 0
    check_replay(guild, run)


@pytest.mark.req("X-1")
def test_a_run_whose_approval_timed_out_is_replayed(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules={"fs.write": {"approval_required": True, "timeout": 0.01}})
    put_script(project, WRITE, {"expect": "Approval timed out", **DONE})
    ran = guild("run", "scribe", "go", "--output", "json")
    while ran.code == 4:
        ran = guild("resume", ran.json["run"], "--output", "json")
    assert ran.code == 0, ran
    check_replay(guild, ran.json["run"])


@pytest.mark.req("X-1")
@pytest.mark.parametrize("mode", ["--approve-all", "--strict"])
def test_a_run_with_an_approval_mode_is_replayed(guild: Guild, project: Path, mode: str) -> None:
    worker = put_worker(project)
    put_script(project, WRITE, DONE)
    ran = guild("run", "scribe", "go", mode, "--output", "json")
    assert ran.code == 0
    check_replay(guild, ran.json["run"])
    worker.write_text(worker.read_text().replace("approval_required", "allowed"))
    result = guild("replay", ran.json["run"], "--json")
    assert (result.code, result.json["step"]) == (1, 3), result
    assert "now it" in result.json["difference"]


def test_a_new_approval_rule_is_a_difference_despite_approve_all(guild: Guild, project: Path) -> None:
    worker = put_worker(project, tool_rules={})
    put_script(project, WRITE, DONE)
    run = guild("run", "scribe", "go", "--approve-all", "--output", "json").json["run"]
    put_worker(project)
    result = guild("replay", run, "--json")
    assert (result.code, result.json["step"]) == (1, 3), result
    assert "needed no approval; now it does" in result.json["difference"]
    assert worker.exists()


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([WRITE, {"fail": 400}], "model_failed"),
        ([{"fail": 529}, WRITE, {"fail": 401}], "key_refused"),
        ([WRITE, {"say": " "}, {"say": ""}, {"say": "\n"}], "runtime_failed"),
        ([WRITE, {"expect": "never", **DONE}], "script_mismatch"),
    ],
)
def test_a_failed_run_is_replayed(guild: Guild, project: Path, answers: list[Any], code: str) -> None:
    put_worker(project, tool_rules={})
    put_script(project, *answers)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["error"]["code"]) == (1, code)
    check_replay(guild, ran.json["run"])


def test_an_unknown_run_is_not_found(guild: Guild, project: Path) -> None:
    assert guild("replay", "r-2222222222").code == 3
    assert guild("replay", "../hall.db").code == 3


# A recording as a model


@pytest.mark.req("X-1")
def test_a_recording_answers_for_a_new_run(place: Place) -> None:
    """Recorded answers are used, but tools are called and the user is asked again."""
    (place.project / "answers.yaml").write_text("workers: {}")
    started = place.guild("run", "clerk", "go", "--override-model", f"replay:{place.run}", "--output", "json")
    assert started.code == 4, started
    ended = place.guild("answer", started.json["asks"][0]["ask"], "yes", "--output", "json")
    assert (ended.code, ended.json["output"]) == (0, {"report": "all entered"})
    assert ended.json["cost_usd"] == 0.0
    assert place.book == ["one", "letter"] * 2
    assert ended.json["run"] != place.run
    assert place.guild("replay", ended.json["run"]).code == 0


def test_a_recording_without_further_answers_fails_the_run(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules={})
    put_script(project, WRITE, DONE)
    run = guild("run", "scribe", "go", "--max-turns", "1", "--output", "json").json["run"]
    ran = guild("run", "scribe", "go", "--override-model", f"replay:{run}")
    assert ran.code == 1
    assert f"the recording of {run} has only 1 responses" in ran.err
    assert guild("run", "scribe", "go", "--override-model", "replay:r-2222222222").code == 3


@pytest.mark.parametrize(
    ("version", "code"),
    [(None, "runtime_missing"), ("1.0.0", "runtime_outdated"), ("who knows", "runtime_unusable")],
)
def test_an_unusable_runtime_is_an_error_and_not_a_difference(
    guild: Guild, project: Path, version: str | None, code: str
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    put_worker(project, tool_rules=None, runtime="claude")
    program = project.parent / "claude"
    if version is not None:
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    result = guild("replay", run, "--json", env={"GUILDHALL_CLAUDE": str(program)})
    assert (result.code, result.json["error"]["code"]) == (1, code)
    assert "differs" not in result.out + result.err
    assert "pip install 'guildhall[claude]'" in result.err
