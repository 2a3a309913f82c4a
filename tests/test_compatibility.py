"""Worker files as the system of seed 003 documents them: they load, and they run, unchanged.

tests/compatibility is a project of that system: sandboxes that alone give tools, its names of rules, prompts beside the
workers, models left to the caller, a worker that was generated. Only the model is scripted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import journal, put_script

if TYPE_CHECKING:
    from tests.conftest import Guild, Ran

FILES = Path(__file__).parent / "compatibility"
PDF = b"%PDF-1.7\n<< /Type /Page >>\n"


@pytest.fixture
def theirs(project: Path) -> Path:
    """Their project, in a folder that can be written."""
    shutil.copytree(FILES, project, dirs_exist_ok=True)
    (project / "input" / "deck.pdf").write_bytes(PDF)
    return project


def run(guild: Guild, worker: str, *words: str, answers: list[dict[str, Any]]) -> Ran:
    """As a person does it there: the worker names no model, the command does."""
    Path("answers.yaml").write_text(json.dumps({"workers": {worker: [answers]}}))
    return guild("run", worker, "go", "--model", "script:answers.yaml", "--output", "json", *words)


def assembled(guild: Guild, ran: Ran) -> dict[str, Any]:
    return journal(guild, ran.json["run"])[0]["data"]


def their_tools(guild: Guild, ran: Ran) -> set[str]:
    """The tools that the worker has beside those of the base toolbox."""
    names = {tool["name"] for tool in assembled(guild, ran)["tools"]}
    return {name for name in names if not name.startswith(("memory_", "record_decision"))}


@pytest.mark.req("DO-1")
def test_every_file_is_valid_and_listed(guild: Guild, theirs: Path) -> None:
    listed = {line["name"]: line for line in guild("worker", "ls", "--json").json if line["scope"] == "project"}
    assert set(listed) == {path.stem for path in FILES.joinpath("workers").rglob("*.*")}
    assert all(line["error"] is None and line["status"] == "active" for line in listed.values())
    assert listed["note_keeper"]["locked"]
    ran = guild("check", *listed)
    assert ran.code == 0, ran.err


@pytest.mark.req("DO-4", "DO-13")
def test_sandboxes_alone_give_tools_and_their_rules_hold(guild: Guild, theirs: Path) -> None:
    note = {"sandbox": "notes", "path": "activity.log", "content": "first"}
    answers = [{"call": "sandbox_write_text", "with": note}, {"say": "kept", "expect": "activity.log"}]
    ran = run(guild, "note_keeper", answers=answers)
    assert ran.code == 4, ran.err
    assert their_tools(guild, ran) == {"sandbox_list", "sandbox_read_text", "sandbox_write_text"}
    assert guild("approve", ran.json["asks"][0]["ask"]).code == 0
    assert (theirs / "notes" / "activity.log").read_text() == "first"
    assert "{{ note }}" in assembled(guild, ran)["system_prompt"]
    strict = run(guild, "note_keeper", "--strict", answers=[answers[0], {"say": "no", "expect": "(?i)not permitted"}])
    assert strict.json["output"] == "no"


def test_rules_as_a_list_and_a_prompt_that_is_text(guild: Guild, theirs: Path) -> None:
    read = {"sandbox": "input", "path": "deck.md"}
    answers = [
        {"call": "sandbox_list", "with": {"sandbox": "input"}},
        {"call": "sandbox_read_text", "with": read, "expect": "deck.md\ndeck.pdf"},
        {"call": "sandbox_read_text", "with": {**read, "path": "deck.pdf"}, "expect": "bees"},
        {"say": "a deck", "expect": "permits text only in files ending in .md"},
    ]
    ran = run(guild, "librarian", answers=answers)
    assert ran.json["output"] == "a deck", ran.err
    tools = their_tools(guild, ran)
    assert {"sandbox_list", "sandbox_read_text"} <= tools
    assert "sandbox_write_text" not in tools
    assert "{{ no template }}" in assembled(guild, ran)["system_prompt"]


@pytest.mark.req("DO-2", "DO-5")
def test_a_template_with_parts_and_an_attached_deck(guild: Guild, theirs: Path) -> None:
    ran = run(guild, "deck_reviewer", "--attach", "input/deck.pdf", answers=[{"say": "GO", "expect": "input/deck.pdf"}])
    assert ran.json["output"] == "GO", ran.err
    first = assembled(guild, ran)
    assert first["system_prompt"].count("1. Problem and urgency") == 2
    assert "{{ this is text, not a template }}" in first["system_prompt"]
    assert "nothing else." in first["system_prompt"]
    assert [file["media_type"] for file in first["attachments"]] == ["application/pdf"]
    refused = run(guild, "deck_reviewer", "--attach", "input/deck.md", answers=[{"say": "GO"}])
    assert refused.code == 4
    assert "accepts only .pdf" in refused.err


def test_a_generated_worker_and_one_in_json(guild: Guild, theirs: Path) -> None:
    words = ["--attach", "input/deck.md", "--attach", "input/deck.pdf"]
    ran = run(guild, "summarizer", *words, answers=[{"say": "Bees.", "expect": "A drone for bees"}])
    assert ran.json["output"] == "Bees.", ran.err
    assert their_tools(guild, ran) == set()
    graded = run(guild, "grader", answers=[{"output": {"grade": 9}}, {"output": {"grade": 5}}])
    assert graded.json["output"] == {"grade": 5}, graded.err
    assert run(guild, "grader", "--attach", "input/deck.md", answers=[{"say": "x"}]).code == 4


def test_a_model_of_null_is_the_caller_s(guild: Guild, theirs: Path) -> None:
    ran = guild("run", "deck_reviewer", "go")
    assert ran.code == 2
    assert "model" in ran.err
    ran = run(guild, "deck_reviewer", answers=[{"say": "ok"}])
    assert assembled(guild, ran)["model"].startswith("script:")


# What differs on purpose, as docs/worker-file.md says


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("output_schema_ref: EvaluationResult", "output_schema_ref"),
        ("sandboxes: {input: {path: ./nowhere}}", "does not exist"),
        ("locked: yes", "locked"),
        ("sandbox: {paths: {input: {root: ./input}}}", "Did you mean 'sandboxes'?"),
        ("model: gpt-4", "the provider is missing"),
    ],
)
def test_what_cannot_be_given_is_said_and_not_left_out(guild: Guild, project: Path, text: str, said: str) -> None:
    put_script(project, {"say": "done"})
    (project / "workers").mkdir()
    (project / "workers" / "old.yaml").write_text(f"name: old\ninstructions: Go.\n{text}\n")
    ran = guild("run", "old", "go")
    assert (ran.code in (1, 2), ran.out) == (True, "")
    assert said in ran.err
