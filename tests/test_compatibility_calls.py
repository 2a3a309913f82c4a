"""Worker files of the system of seed 003 that call other workers: allow list, `worker_call` and attachments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall import Worker

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild

FILES = Path(__file__).parent / "compatibility"
PDF = b"%PDF-1.7\n<< /Type /Page >>\nthe very bytes of the deck"
FOREMAN = """\
name: foreman
description: Has every deck in the input sandbox reviewed.
model: null
instructions: Call deck_reviewer for each deck, and write what it says into the sandbox "reviews".
allow_workers:
  - deck_reviewer
sandboxes:
  input:
    path: ./input
    mode: ro
    allowed_suffixes: [.pdf, .txt]
    attachment_suffixes: [.pdf]
    max_bytes: 10000000
  reviews: {path: ./reviews, mode: rw, allowed_suffixes: [.md]}
tool_rules:
  sandbox.write: {allowed: true, approval_required: false}
  worker.call:
    name: worker.call
    allowed: true
    approval_required: false
  worker.create: {allowed: true, approval_required: true}
"""


@pytest.fixture
def seed_project(project: Path) -> Path:
    shutil.copytree(FILES, project, dirs_exist_ok=True)
    (project / "workers" / "foreman.yaml").write_text(FOREMAN)
    (project / "input" / "deck.pdf").write_bytes(PDF)
    (project / "input" / "team.txt").write_text("secret of the team")
    (project / "outside.pdf").write_bytes(PDF)
    return project


def run(guild: Guild, *answers: dict[str, Any], reviewer: list[dict[str, Any]]) -> CommandResult:
    Path("answers.yaml").write_text(json.dumps({"workers": {"foreman": [answers], "deck_reviewer": [reviewer]}}))
    return guild("run", "foreman", "go", "--model", "script:answers.yaml", "--output", "json")


def review(*attachments: str) -> dict[str, Any]:
    arguments = {"worker": "deck_reviewer", "input_data": {"deck_name": "deck"}, "attachments": list(attachments)}
    return {"call": "worker_call", "with": arguments}


@pytest.mark.req("DO-5", "DO-7")
def test_a_worker_attaches_a_file_of_its_sandbox_to_a_call(guild: Guild, seed_project: Path) -> None:
    write = {"sandbox": "reviews", "path": "deck.md", "content": "GO"}
    ran = run(
        guild,
        review("input/deck.pdf"),
        {"call": "sandbox_write_text", "with": write, "expect": "Verdict: GO"},
        {"say": "all reviewed"},
        reviewer=[{"say": "Verdict: GO", "expect": r'(?s)deck_name.*"input/deck.pdf" \(application/pdf, 53 bytes\)'}],
    )
    assert ran.json["output"] == "all reviewed", ran.err
    assert (seed_project / "reviews" / "deck.md").read_text() == "GO"


@pytest.mark.req("DO-5", "DO-7")
def test_a_published_project_runs_without_an_input(guild: Guild, seed_project: Path) -> None:
    """`worker_call(worker=..., attachments=[...])` without `input_data`, from a command without a text."""
    call = {"call": "worker_call", "with": {"worker": "deck_reviewer", "attachments": ["input/deck.pdf"]}}
    expected = r'(?s)Begin\..*"input/deck.pdf" \(application/pdf, 53 bytes\)'
    script = {
        "foreman": [[{"expect": r"Begin\.", **call}, {"say": "all reviewed", "expect": "Verdict: GO"}]],
        "deck_reviewer": [[{"say": "Verdict: GO", "expect": expected}]] * 2,
    }
    Path("answers.yaml").write_text(json.dumps({"workers": script}))
    ran = guild("run", "foreman", "--model", "script:answers.yaml", "--approve-all", "--output", "json", input="")
    assert ran.json["output"] == "all reviewed", ran.err
    ran = guild("run", "deck_reviewer", "", "--attach", "input/deck.pdf", "--model", "script:answers.yaml")
    assert (ran.code, ran.out) == (0, "Verdict: GO\n"), ran.err


@pytest.mark.req("DO-6")
def test_the_description_of_a_rule_is_in_the_ask(guild: Guild, seed_project: Path) -> None:
    rule = "{allowed: true, approval_required: true, description: Notes need review.}"
    worker = f"instructions: x\nsandboxes: {{notes: {{path: ., mode: rw}}}}\ntool_rules: {{sandbox.write: {rule}}}\n"
    (seed_project / "workers" / "noter.yaml").write_text(worker)
    write = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "x"}}
    Path("answers.yaml").write_text(json.dumps({"workers": {"noter": [[write, {"say": "done"}]]}}))
    ran = guild("run", "noter", "go", "--model", "script:answers.yaml", "--output", "json")
    assert ran.code == 4
    assert "requires approval: Notes need review." in guild("show", ran.json["asks"][0]["ask"]).out


@pytest.mark.req("DO-8")
def test_a_worker_created_with_the_published_arguments_has_the_default_rights(
    guild: Guild, seed_project: Path, home: Home
) -> None:
    settings = "worker_creation: {attachment_policy: {max_attachments: 1}, allow_workers: [deck_reviewer, other]}\n"
    home.path.mkdir(parents=True, exist_ok=True)
    home.settings.write_text(settings)
    (seed_project / "schemas").mkdir(exist_ok=True)
    (seed_project / "schemas" / "result.json").write_text('{"type": "object"}')
    create = {"name": "counter", "instructions": "Count.", "output_schema_ref": "schemas/result.json", "force": True}
    again = {**create, "instructions": "Count twice."}
    refused = {**again, "name": "foreman"}
    steps = [{"call": "worker_create", "with": arguments} for arguments in (create, again, refused)]
    script = {"workers": {"foreman": [[*steps, {"say": "done", "expect": "already exists"}]]}}
    Path("answers.yaml").write_text(json.dumps(script))
    ran = guild("run", "foreman", "go", "--model", "script:answers.yaml", "--approve-all", "--output", "json")
    assert ran.json["output"] == "done", ran.err
    made = guild("worker", "show", "counter", "--json").json
    assert made["instructions"] == "Count twice."
    assert (made["allow_workers"], made["attachment_policy"]["max_attachments"]) == (["deck_reviewer"], 1)
    assert made["output_schema_ref"] == "schemas/result.json"


@pytest.mark.req("DO-12")
def test_the_library_accepts_an_object_or_no_input(guild: Guild, seed_project: Path) -> None:
    script = {"deck_reviewer": [[{"say": "one", "expect": '"note": "x"'}], [{"say": "two", "expect": "Begin"}]]}
    Path("answers.yaml").write_text(json.dumps({"workers": script}))
    worker = Worker.load("deck_reviewer")
    outputs = [worker.run({"note": "x"}, model="script:answers.yaml").output]
    Path("answers.yaml").write_text(json.dumps({"workers": {"deck_reviewer": script["deck_reviewer"][1:]}}))
    assert [*outputs, worker.run(model="script:answers.yaml").output] == ["one", "two"]


@pytest.mark.req("DO-5", "DO-7")
@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        (["outside.pdf"], "not in a sandbox"),
        (["/outside.pdf"], "not in a sandbox"),
        (["./outside.pdf"], "not in a sandbox"),
        (["input/../outside.pdf"], "leads out of"),
        (["inbox/deck.pdf"], "unknown sandbox 'inbox'"),
        (["input/none.pdf"], "none.pdf"),
        (["input/team.txt"], "the worker accepts only .pdf"),
        (["input/deck.pdf", "input/other.pdf"], "(the worker accepts at most 1)"),
    ],
)
def test_a_forbidden_attachment_is_reported_and_starts_no_run(
    guild: Guild, seed_project: Path, attachments: list[str], message: str
) -> None:
    ran = run(guild, review(*attachments), {"say": "told", "expect": message}, reviewer=[{"say": "never asked"}])
    assert ran.json["output"] == "told", ran.err
    assert guild("show", ran.json["run"], "--json").json["below"] == []


def test_a_worker_outside_of_the_allow_list_is_not_called(guild: Guild, seed_project: Path) -> None:
    call = {"call": "worker_call", "with": {"worker": "summarizer", "input_data": "go"}}
    ran = run(
        guild, call, {"say": "told", "expect": "calling 'summarizer' is not allowed"}, reviewer=[{"say": "never asked"}]
    )
    assert ran.json["output"] == "told", ran.err
