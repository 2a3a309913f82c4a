"""Worker files of the system of seed 003 that call other workers: allow list, `worker_call` and attachments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
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
    arguments = {"worker_name": "deck_reviewer", "input_data": {"deck_name": "deck"}, "attachments": list(attachments)}
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
@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        (["outside.pdf"], "is not a file in a sandbox"),
        (["/outside.pdf"], "is not a file in a sandbox"),
        (["./outside.pdf"], "is not a file in a sandbox"),
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
    call = {"call": "worker_call", "with": {"worker_name": "summarizer", "input_data": "go"}}
    ran = run(
        guild, call, {"say": "told", "expect": "calling 'summarizer' is not allowed"}, reviewer=[{"say": "never asked"}]
    )
    assert ran.json["output"] == "told", ran.err
