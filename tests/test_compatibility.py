"""Worker files of the system of seed 003 load and run unchanged.

tests/compatibility is a project of that system: tools from sandboxes alone, its names of rules, prompts beside the
workers, models chosen by the caller, a generated worker. Only the model is scripted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import journal, put_script

if TYPE_CHECKING:
    from tests.conftest import CommandResult, Guild

FILES = Path(__file__).parent / "compatibility"
PDF = b"%PDF-1.7\n<< /Type /Page >>\n"


@pytest.fixture
def seed_project(project: Path) -> Path:
    """Copy the project to a writable folder."""
    shutil.copytree(FILES, project, dirs_exist_ok=True)
    (project / "input" / "deck.pdf").write_bytes(PDF)
    return project


def run(guild: Guild, worker: str, *words: str, answers: list[dict[str, Any]]) -> CommandResult:
    """Run a worker with the model of the command line, as users of that system do."""
    Path("answers.yaml").write_text(json.dumps({"workers": {worker: [answers]}}))
    return guild("run", worker, "go", "--model", "script:answers.yaml", "--output", "json", *words)


def read_assembly(guild: Guild, ran: CommandResult) -> dict[str, Any]:
    return journal(guild, ran.json["run"])[0]["data"]


def extra_tools(guild: Guild, ran: CommandResult) -> set[str]:
    """Return the tools of a worker without the base toolbox."""
    names = {tool["name"] for tool in read_assembly(guild, ran)["tools"]}
    return {name for name in names if not name.startswith(("memory_", "record_decision"))}


@pytest.mark.req("DO-1")
def test_every_file_is_valid_and_listed(guild: Guild, seed_project: Path) -> None:
    listed = {line["name"]: line for line in guild("worker", "ls", "--json").json if line["scope"] == "project"}
    assert set(listed) == {path.stem for path in FILES.joinpath("workers").rglob("*.*")}
    assert all(line["error"] is None and line["status"] == "active" for line in listed.values())
    assert listed["note_keeper"]["locked"]
    ran = guild("check", *listed)
    assert ran.code == 0, ran.err


@pytest.mark.req("DO-4", "DO-13")
def test_sandboxes_provide_tools_and_rules_apply_to_them(guild: Guild, seed_project: Path) -> None:
    note = {"sandbox": "notes", "path": "activity.log", "content": "first"}
    answers = [{"call": "sandbox_write_text", "with": note}, {"say": "kept", "expect": "activity.log"}]
    ran = run(guild, "note_keeper", answers=answers)
    assert ran.code == 4, ran.err
    assert extra_tools(guild, ran) == {"sandbox_list", "sandbox_read_text", "sandbox_write_text"}
    assert guild("approve", ran.json["asks"][0]["ask"]).code == 0
    assert (seed_project / "notes" / "activity.log").read_text() == "first"
    assert "{{ note }}" in read_assembly(guild, ran)["system_prompt"]
    strict = run(guild, "note_keeper", "--strict", answers=[answers[0], {"say": "no", "expect": "(?i)not permitted"}])
    assert strict.json["output"] == "no"


def test_rules_can_be_a_list_and_a_prompt_can_be_text(guild: Guild, seed_project: Path) -> None:
    read = {"sandbox": "input", "path": "deck.md"}
    answers = [
        {"call": "sandbox_list", "with": {"sandbox": "input"}},
        {"call": "sandbox_read_text", "with": read, "expect": "deck.md\ndeck.pdf"},
        {"call": "sandbox_read_text", "with": {**read, "path": "deck.pdf"}, "expect": "bees"},
        {"say": "a deck", "expect": "permits text only in files ending in .md"},
    ]
    ran = run(guild, "librarian", answers=answers)
    assert ran.json["output"] == "a deck", ran.err
    tools = extra_tools(guild, ran)
    assert {"sandbox_list", "sandbox_read_text"} <= tools
    assert "sandbox_write_text" not in tools
    assert "{{ no template }}" in read_assembly(guild, ran)["system_prompt"]


@pytest.mark.req("DO-2", "DO-5")
def test_a_template_includes_parts_and_accepts_an_attachment(guild: Guild, seed_project: Path) -> None:
    ran = run(guild, "deck_reviewer", "--attach", "input/deck.pdf", answers=[{"say": "GO", "expect": "input/deck.pdf"}])
    assert ran.json["output"] == "GO", ran.err
    first = read_assembly(guild, ran)
    assert first["system_prompt"].count("1. Problem and urgency") == 2
    assert "{{ this is text, not a template }}" in first["system_prompt"]
    assert "nothing else." in first["system_prompt"]
    assert [file["media_type"] for file in first["attachments"]] == ["application/pdf"]
    refused = run(guild, "deck_reviewer", "--attach", "input/deck.md", answers=[{"say": "GO"}])
    assert refused.code == 4
    assert "accepts only .pdf" in refused.err


def test_generated_workers_and_json_workers_run(guild: Guild, seed_project: Path) -> None:
    words = ["--attach", "input/deck.md", "--attach", "input/deck.pdf"]
    ran = run(guild, "summarizer", *words, answers=[{"say": "Bees.", "expect": "A drone for bees"}])
    assert ran.json["output"] == "Bees.", ran.err
    assert extra_tools(guild, ran) == set()
    graded = run(guild, "grader", answers=[{"output": {"grade": 9}}, {"output": {"grade": 5}}])
    assert graded.json["output"] == {"grade": 5}, graded.err
    assert run(guild, "grader", "--attach", "input/deck.md", answers=[{"say": "x"}]).code == 4


def test_a_null_model_is_chosen_by_the_caller(guild: Guild, seed_project: Path) -> None:
    ran = guild("run", "deck_reviewer", "go")
    assert ran.code == 2
    assert "model" in ran.err
    ran = run(guild, "deck_reviewer", answers=[{"say": "ok"}])
    assert read_assembly(guild, ran)["model"].startswith("script:")


# Intended differences (docs/worker-file.md)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("output_schema_ref: EvaluationResult", "output_schema_ref"),
        ("sandboxes: {input: {path: ./nowhere}}", "does not exist"),
        ("locked: yes", "locked"),
        ("sandbox: {paths: {input: {root: ./input}}}", "Did you mean 'sandboxes'?"),
        ("model: gpt-4", "the provider is missing"),
    ],
)
def test_unsupported_fields_are_errors(guild: Guild, project: Path, text: str, message: str) -> None:
    put_script(project, {"say": "done"})
    (project / "workers").mkdir()
    (project / "workers" / "old.yaml").write_text(f"name: old\ninstructions: Go.\n{text}\n")
    ran = guild("run", "old", "go")
    assert (ran.code in (1, 2), ran.out) == (True, "")
    assert message in ran.err
