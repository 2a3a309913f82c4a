"""`guild script`: export a run as a script that passes as a test, and report what a script cannot contain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from guildhall.core import yaml
from guildhall.core.errors import Conflict
from guildhall.core.request_frame import RecordedFrame
from guildhall.models.model import Query
from guildhall.models.scripted.source import Script, ScriptSource
from guildhall.runs.model import Run, RunRequest, Usage
from guildhall.runs.record.entries import Entry, ModelAnswered, ModelAsked, Payload, TokenUsage
from guildhall.runs.record.messages import dump_response
from guildhall.runs.replay.script_export import export_script
from guildhall.runtimes.pydantic import OUTPUT_TOOL, call_arguments
from tests.entries import assembly
from tests.runs.places import (
    DONE,
    OTHER,
    WRITE,
    journal,
    kinds,
    put_script,
    put_worker,
    run_until_ask,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import CommandResult, Guild

READ = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "a.md"}}


def export_and_test(guild: Guild, run: str, *, passes: bool = True) -> Script:
    """Export the run as a script, run it as a test and return it."""
    path = Path("tests") / f"{run}.yaml"
    written = guild("script", run, "--out", path)
    assert written.code == 0, written
    tested = guild("test", path)
    assert (tested.code == 0) is passes, tested.out + path.read_text()
    return yaml.validate(Script, yaml.read(path))


def run_answers(
    guild: Guild, project: Path, *answers: dict[str, Any], words: Sequence[str] = (), **fields: Any
) -> CommandResult:
    put_worker(project, **{"tool_rules": None, **fields})
    put_script(project, *answers)
    return guild("run", "scribe", "go", "--output", "json", *words)


# Runs of every kind become tests that pass


@pytest.mark.parametrize("reply", ["done", "fail", "again"])
def test_an_interrupted_call_is_made_by_the_test(guild: Guild, project: Path, reply: str) -> None:
    slow = {"call": "Bash", "with": {"command": "test -e quick || sleep 60; echo slept"}}
    put_worker(project, tool_rules=None, tools=["Bash"])
    put_script(project, slow, DONE)
    process = guild.start("run", "scribe", "go")
    assert process.stderr
    run = process.stderr.readline().split()[1].rstrip(":")
    wait_until(lambda: "tool_started" in kinds(journal(guild, run)))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)
    (project / "quick").touch()
    doubt = guild("resume", run, "--output", "json").json["asks"][0]["ask"]
    assert guild("answer", doubt, reply).code == 0
    script = export_and_test(guild, run)
    (answers,) = script.workers["scribe"]
    assert [answer.sent for answer in answers] == [None, None]
    assert "a call of Bash that was cut off" in guild("script", run).err


@pytest.mark.req("X-17")
def test_a_run_becomes_a_test_that_passes_although_its_files_exist(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "notes" / "b.md").write_text("as it was\n")
    read = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "b.md"}}
    done = run_answers(guild, project, WRITE, read, OTHER, READ, {"say": "two\nlines"})
    script = export_and_test(guild, done.json["run"])
    assert script.test is not None
    assert script.test.files == {"notes/a.md": None, "notes/b.md": "as it was\n"}
    assert script.test.output == "two\nlines"
    (answers,) = script.workers["scribe"]
    assert [answer.sent for answer in answers[1:]] == [
        "Created a.md in the sandbox notes (3 bytes).",
        "as it was\n",
        "Replaced b.md in the sandbox notes (3 bytes).",
        "one",
    ]
    assert (project / "notes" / "b.md").read_text() == "two"


def test_a_file_that_was_read_only_in_part_is_left_out(guild: Guild, project: Path) -> None:
    (project / "wide.txt").write_text("x" * 5000 + "\n")
    (project / "whole.txt").write_text("one\n\ttwo\n")
    reads = [{"call": "Read", "with": {"file_path": name}} for name in ("wide.txt", "whole.txt")]
    edits = [
        {"call": "Edit", "with": {"file_path": "wide.txt", "old_string": "x\n", "new_string": "y\n"}},
        {"call": "Edit", "with": {"file_path": "whole.txt", "old_string": "two", "new_string": "three"}},
    ]
    box = {"all": {"path": ".", "mode": "rw"}}
    done = run_answers(guild, project, {"calls": reads}, {"calls": edits}, DONE, tools=["Read", "Edit"], sandboxes=box)
    written = guild("script", done.json["run"])
    assert "the content of wide.txt before the run" in written.err + written.out
    test = yaml.validate(Script, yaml.parse(Path("x.yaml"), written.out)).test
    assert test is not None
    assert test.files == {"whole.txt": "one\n\ttwo\n"}


@pytest.mark.req("X-17")
def test_approvals_and_denials_are_exported_with_their_notes(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, {"calls": [WRITE, OTHER]}, WRITE, DONE)
    _, run, first = run_until_ask(guild)
    second = guild("show", run, "--json").json["asks"][1]["ask"]
    guild("answer", second, "no", "--note", "not b: that is mine")
    guild("answer", first, "always")
    guild("resume", run)
    script = export_and_test(guild, run)
    assert script.test is not None
    assert [(reply.tool, reply.answer, reply.note) for reply in script.test.answers] == [
        ("sandbox_write_text", "always", None),
        ("sandbox_write_text", "no", "not b: that is mine"),
    ]
    assert script.workers["scribe"][0][1].sent == [
        "Created a.md in the sandbox notes (3 bytes).",
        "error: The user denied this call. Do not repeat it unchanged. not b: that is mine",
    ]


def test_a_timed_out_approval_is_exported(guild: Guild, project: Path) -> None:
    done = run_answers(
        guild, project, WRITE, DONE, tool_rules={"fs.write": {"approval_required": True, "timeout": "0.2s"}}
    )
    if done.json["status"] == "waiting":
        time.sleep(0.2)  # longer than the approval timeout
        guild("resume", done.json["run"])
    script = export_and_test(guild, done.json["run"])
    assert script.test is not None
    assert [reply.answer for reply in script.test.answers] == ["timeout"]


@pytest.mark.parametrize(
    ("answers", "fields", "words", "code"),
    [
        ([{"call": "nonsense", "with": {"x": 1}}, {"call": "sandbox_read_text", "with": {"path": 3}}, DONE], {}, [], 0),
        ([WRITE, DONE], {"tool_rules": {"fs.write": {"allowed": False}}}, [], 0),
        ([WRITE, DONE], {"tool_rules": {"fs.write": {"approval_required": True}}}, ["--strict"], 0),
        ([WRITE, DONE], {"tool_rules": {"fs.write": {"approval_required": True}}}, ["--approve-all"], 0),
        ([READ, READ, DONE], {"limits": {"max_turns": 2}}, [], 5),
        ([READ, READ, DONE], {}, ["--max-turns", "1"], 5),
        ([READ | {"usage": {"input": 900, "output": 50}}, DONE], {}, ["--max-tokens", "1000"], 5),
        ([READ | {"usage": {"input": 900_000, "output": 50}}, DONE], {"limits": {"max_budget_usd": 2.0}}, [], 5),
        ([{"fail": 529}, {"fail": 529}, DONE], {}, [], 0),
        ([READ, {"fail": 401}], {}, [], 1),
        ([{"fail": 529}] * 4, {}, [], 1),
        ([READ], {}, [], 1),
        ([{"say": ""}, DONE], {}, [], 0),
        ([{"say": ""}] * 3, {}, [], 1),
        ([{"say": "half", "cut_off": True}, DONE], {}, [], 0),
        ([{"call": "sandbox_list", "with": "{no json"}, {"call": "sandbox_list", "with": "[1]"}, DONE], {}, [], 0),
        ([{"say": "a", "calls": [READ, {"call": "sandbox_list", "with": {"sandbox": "notes"}}]}, DONE], {}, [], 0),
        ([{"call": "record_decision", "with": {"question": "a", "decision": "b", "reasoning": "c"}}, DONE], {}, [], 0),
    ],
)
def test_runs_with_errors_limits_and_modes_become_passing_tests(
    guild: Guild, project: Path, answers: list[Any], fields: dict[str, Any], words: list[str], code: int
) -> None:
    done = run_answers(guild, project, *answers, words=words, **fields)
    assert done.code == code, done
    export_and_test(guild, done.json["run"])


def test_a_raised_limit_is_exported(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, READ | {"usage": {"input": 300_000, "output": 10}}, DONE)
    waiting = guild("run", "scribe", "go", "--budget", "1", "--output", "json")
    assert waiting.json["status"] == "waiting"
    assert guild("answer", waiting.json["asks"][0]["ask"], "2.50").code == 0
    script = export_and_test(guild, waiting.json["run"])
    assert script.test is not None
    assert [(reply.limit, reply.answer) for reply in script.test.answers] == [("budget", "2.50")]


def test_an_output_schema_mismatch_is_exported(guild: Guild, project: Path) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
    (project / "report.json").write_text(json.dumps(schema))
    both = {"calls": [{"call": OUTPUT_TOOL, "with": {"score": "x"}}, READ]}
    text = {"call": OUTPUT_TOOL, "with": "not json"}
    done = run_answers(
        guild, project, {"output": {"score": "seven"}}, both, {"output": {"score": 7}}, output_schema_ref="report.json"
    )
    assert export_and_test(guild, done.json["run"]).test is not None
    done = run_answers(guild, project, READ, text, {"output": {"score": 7}}, output_schema_ref="report.json")
    assert export_and_test(guild, done.json["run"]).workers["scribe"][0][1].arguments == "not json"


def test_a_run_in_a_subfolder_with_a_worker_path_is_exported(guild: Guild, project: Path) -> None:
    put_worker(project, tools=["Read"], tool_rules=None, sandboxes=None)
    put_script(project, {"call": "Read", "with": {"file_path": str(project / "deep" / "x.txt")}}, DONE)
    (project / "deep").mkdir()
    (project / "deep" / "x.txt").write_text("found\n")
    done = guild("run", "../workers/scribe.yaml", "go", "--output", "json", cwd=project / "deep")
    script = export_and_test(guild, done.json["run"])
    assert script.test is not None
    assert (script.test.folder, script.test.worker) == ("deep", "../workers/scribe.yaml")
    assert script.workers["scribe"][0][0].arguments == {"file_path": "@PROJECT@/deep/x.txt"}
    assert str(project) not in (project / "tests" / f"{done.json['run']}.yaml").read_text()


def test_the_script_of_a_deleted_worker_is_written_and_its_test_fails(guild: Guild, project: Path) -> None:
    done = run_answers(guild, project, WRITE, DONE)
    (project / "workers" / "scribe.yaml").unlink()
    export_and_test(guild, done.json["run"], passes=False)
    output = guild("test").out
    assert "unknown worker 'scribe'" in output


# Refused and left out


def test_secrets_are_replaced_by_their_names(guild: Guild, project: Path) -> None:
    secret = "sk-0123456789abcdef"
    write = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": f"key {secret}"}}
    done = run_answers(guild, project, write, READ, {"say": f"it is {secret}"})
    written = guild("script", done.json["run"], env={"MY_API_KEY": secret})
    assert secret not in written.out + written.err
    assert "# Values of secret variables were replaced" in written.out
    assert "it is [MY_API_KEY]" in written.out


@pytest.mark.parametrize(
    "words", [["--out", "x.txt"], ["--out", ""], ["--out", "there.yaml"], ["--out", "there.yaml/x.yaml"]]
)
def test_an_invalid_or_existing_output_path_is_refused(guild: Guild, project: Path, words: list[str]) -> None:
    done = run_answers(guild, project, DONE)
    (project / "there.yaml").write_text("mine")
    refused = guild("script", done.json["run"], *words)
    assert refused.code in (1, 2)
    assert "Traceback" not in refused.err
    assert (project / "there.yaml").read_text() == "mine"
    assert guild("script", done.json["run"], "--out", "there.yaml", "--force", "--json").json["path"] == "there.yaml"


def test_a_waiting_or_unknown_run_is_not_exported(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, _ = run_until_ask(guild)
    refused = guild("script", run, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "conflict")
    assert "is waiting" in refused.err
    assert guild("script", "r-2222222222").code == 3
    assert guild("script", "nonsense").code == 3


def test_a_running_run_is_not_exported(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, {"say": "late", "sleep": 60})
    working = guild.start("run", "scribe", "go", cwd=project)
    wait_until(lambda: bool(guild("ls", "--json").json["working"]))
    run = guild("ls", "--json").json["working"][0]["run"]
    refused = guild("script", run)
    assert refused.code == 1
    assert f"cannot export {run}: the run is running" in refused.err
    assert guild("fork", run, "--at", "0").code == 7
    working.terminate()
    working.wait(10)
    paused = guild("script", run)
    assert (paused.code, "is paused" in paused.err) == (1, True)


# Arbitrary answers


SOME_TEXT = st.text(st.characters(), max_size=60) | st.text(" \n\t{}[]:#@'\"\\", max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SOME_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOME_TEXT, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.none() | SOME_TEXT | st.dictionaries(SOME_TEXT, JSON, max_size=3)
CALLS = st.builds(
    ToolCallPart, tool_name=st.sampled_from(["sandbox_list", OUTPUT_TOOL, "WebFetch", "é x"]), args=ARGUMENTS
)
PARTS = st.lists(st.builds(TextPart, SOME_TEXT) | CALLS | st.builds(ThinkingPart, SOME_TEXT), max_size=5)
RESPONSES = st.builds(
    ModelResponse,
    parts=PARTS,
    usage=st.builds(RequestUsage, input_tokens=st.integers(0, 10**6), output_tokens=st.integers(0, 10**6)),
    finish_reason=st.sampled_from(["stop", "tool_call", "length", None]),
)


def build_tree(responses: Sequence[ModelResponse], schema: dict[str, Any] | None = None) -> list[tuple[Run, Any]]:
    """Return a tree with one recorded run that received these answers."""
    from guildhall.core.clock import SystemClock
    from guildhall.runs.record.journal import Journal

    entries: list[tuple[str | None, Payload]] = [(None, assembly(output_schema=schema, model="none:known"))]
    for number, response in enumerate(responses, 1):
        message = [{"part": "user-prompt", "content": f"question {number}"}]
        asked = ModelAsked(
            message=message,
            tools="",
            answers="",
            attempt=0,
            reserved_usd=None,
            reserved_tokens=0,
            max_tokens=None,
        )
        usage = TokenUsage(input_tokens=1, output_tokens=1)
        answer = ModelAnswered(response=dump_response(response), usage=usage, cost_usd=None)
        entries += [(f"m{number}", asked), (f"m{number}", answer)]
    record: dict[str, Any] = dict.fromkeys(field.name for field in fields(Run))
    record |= {"id": "r-2222222222", "root": "r-2222222222", "worker": "scribe", "model": "none:known"}
    record |= {"status": "completed", "output": "done", "created_at": "2026-01-01T00:00:00.000Z", "usage": Usage()}
    record["request"] = RunRequest(worker="scribe", input="go")
    record["frame"] = RecordedFrame(cwd=Path("/nowhere"), root=Path("/nowhere"))
    run = Run(**record)
    made = [Entry(run=run.id, seq=seq, key=key, data=data, at="") for seq, (key, data) in enumerate(entries)]
    store: Any = None
    return [(run, Journal(run.id, store, SystemClock(), made))]


def ask_scripted_model(script: Script, count: int, schema: dict[str, Any] | None) -> list[ModelResponse]:
    """Return the answers of the scripted model to `count` questions."""
    source = ScriptSource(Path("written.yaml"), script)
    tool = ToolDefinition(name=OUTPUT_TOOL, parameters_json_schema=schema or {})
    parameters = ModelRequestParameters(output_tools=[tool] if schema else [])
    messages: list[Any] = []
    answers: list[ModelResponse] = []
    for _ in range(count):
        messages.append(ModelRequest(parts=[UserPromptPart("?")]))
        query = Query(worker="scribe", ordinal=0, attempt=0, messages=messages, settings={}, parameters=parameters)
        answers.append(asyncio.run(source.answer(query, lambda _: None)))
        messages.append(answers[-1])
    return answers


def meaning(response: ModelResponse) -> Any:
    """Return the parts of an answer that a run depends on: text, calls with parsed arguments, cut off or not."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = [(part.tool_name, call_arguments(part)) for part in response.parts if isinstance(part, ToolCallPart)]
    return replace_surrogates(text), replace_surrogates(calls), response.finish_reason == "length"


def replace_surrogates(value: Any) -> str:
    """Return the value as text, with lone surrogates replaced as a script replaces them."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in repr(value)).replace("\\ud", "\\UD")


@given(st.lists(RESPONSES, min_size=1, max_size=3), st.none() | st.just({"type": "object"}))
def test_the_script_repeats_every_answer(responses: list[ModelResponse], schema: dict[str, Any] | None) -> None:
    text = export_script(build_tree(responses, schema), Path("/home-of-nobody"), lambda text: text)
    script = yaml.validate(Script, yaml.parse(Path("written.yaml"), text))
    again = ask_scripted_model(script, len(responses), schema)
    for then, now in zip(responses, again, strict=True):
        has_surrogates = any(
            "\ud800" <= c <= "\udfff" for p in then.parts if isinstance(p, TextPart) for c in p.content
        )
        if has_surrogates:
            assert "lone surrogates" in text
            continue
        assert meaning(now) == meaning(then)
        if then.usage.input_tokens or then.usage.output_tokens:
            assert now.usage.input_tokens == then.usage.input_tokens


def test_the_script_names_what_it_left_out() -> None:
    response = ModelResponse(parts=[ThinkingPart("hm"), TextPart("a"), TextPart("b")])
    text = export_script(build_tree([response]), Path("/home-of-nobody"), lambda text: text)
    assert "# Left out: thinking of the model." in text
    assert "say: ab" in text


def test_a_run_that_exceeds_the_size_of_a_script_is_refused() -> None:
    responses = [ModelResponse(parts=[TextPart("x" * 300_000)]) for _ in range(4)]
    with pytest.raises(Conflict, match=r"the script has .* bytes \(maximum: 1,000,000\)"):
        export_script(build_tree(responses), Path("/home-of-nobody"), lambda text: text)


def test_deeply_nested_arguments_are_exported_unchanged() -> None:
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    response = ModelResponse(parts=[ToolCallPart("sandbox_list", {"a": deep})])
    text = export_script(build_tree([response]), Path("/home-of-nobody"), lambda text: text)
    script = yaml.validate(Script, yaml.parse(Path("written.yaml"), text))
    assert meaning(ask_scripted_model(script, 1, None)[0]) == meaning(response)


def test_runs_of_a_tree_are_grouped_by_worker_in_order() -> None:
    tree = build_tree([ModelResponse(parts=[TextPart("top")])])
    for number, reply in enumerate(("first", "second")):
        run, journal = build_tree([ModelResponse(parts=[TextPart(reply)])])[0]
        tree.append((replace(run, id=f"r-333333333{number + 3}", parent="r-2222222222", worker="other"), journal))
    text = export_script(tree, Path("/home-of-nobody"), lambda text: text)
    script = yaml.validate(Script, yaml.parse(Path("written.yaml"), text))
    assert [[answer.say for answer in run] for run in script.workers["other"]] == [["first"], ["second"]]
    assert script.workers["other"][0][0].sent == "question 1"
    assert script.test is not None
    assert set(script.test.shown) == {"scribe", "other"}
