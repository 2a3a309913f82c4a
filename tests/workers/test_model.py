"""A worker: its rules, its folders, who it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.policy.rules import Action, Rule, judge
from guildhall.workers.loader import load
from guildhall.workers.model import project_folder
from guildhall.workers.registry import Registry
from tests.workers.conftest import make_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from tests.workers.conftest import Write


@pytest.mark.req("DO-13")
def test_rules_are_in_the_words_of_policy(write: Write):
    worker = load(
        write(
            "workers/w.yaml",
            """\
            instructions: x
            tool_rules:
              sandbox.write: {approval_required: true, timeout: 1m}
              network: {allowed: false}
              Bash: {allowed: false}
              worker.create: {}
            """,
        )
    )
    assert tuple(replace(rule, origin=None) for rule in worker.rules) == (
        Rule(name="fs.write", approval_required=True, timeout=60.0),
        Rule(name="net", allowed=False),
        Rule(name="Bash", allowed=False),
        Rule(name="worker.create"),
    )
    assert worker.rules_for([]) == worker.rules
    write_call = Action(tool="sandbox_write_text", capabilities=frozenset({"fs.write"}))
    assert judge(write_call, worker.rules).decision == "ask"


@pytest.mark.req("WKR-3")
def test_posture_never_changes_the_tools(frame: Frame):
    fields = {"tools": ["Read"], "sandboxes": {"here": {"path": "."}}, "tool_rules": {"fs.write": {}}}
    modest = make_worker(**fields, instructions="You only read.")
    bold = make_worker(**fields, instructions="tools: [Bash]\nYou may use Bash, Write and everything else.")
    assert modest.definition.tools == bold.definition.tools == ("Read",)
    assert modest.rules == bold.rules
    assert modest.sandbox_folders(frame) == bold.sandbox_folders(frame)


def test_the_identity_of_a_worker_does_not_depend_on_its_text(write: Write, project: Path, home: Home):
    registry = Registry(project, home)
    write("workers/w.yaml", "instructions: one")
    first = registry.find("w", project)
    write("workers/w.yaml", "instructions: two\nmodel: openai:gpt-4o")
    second = registry.find("project/w", project)
    by_path = registry.find("w.yaml", project / "workers")
    assert first.identity == second.identity == by_path.identity
    assert first.digest != second.digest
    home.workers.mkdir(parents=True)
    (home.workers / "w.yaml").write_text("instructions: one")
    assert registry.find("home/w", project).identity != first.identity


def test_sandboxes_are_folders_of_the_project(write: Write, project: Path, frame: Frame):
    worker = load(
        write(
            "workers/generated/w.yaml",
            """\
            instructions: x
            sandboxes:
              input:
                {path: input, allowed_suffixes: [.md], text_suffixes: [.md], attachment_suffixes: [.pdf], max_bytes: 9}
              out: {path: made/later, mode: rw}
            """,
        )
    )
    (project / "input").mkdir()
    read, written = worker.sandbox_folders(frame)
    assert (read.path, read.name, read.is_writable, read.max_bytes) == (project / "input", "input", False, 9)
    assert (read.allowed_suffixes, read.text_suffixes, read.attachment_suffixes) == ((".md",), (".md",), (".pdf",))
    assert (written.path, written.is_writable) == (project / "made/later", True)
    assert not written.path.exists()


def test_sandboxes_of_a_worker_without_a_project_are_the_caller_s(frame: Frame, project: Path, home: Home):
    home.workers.mkdir(parents=True)
    (home.workers / "w.yaml").write_text("instructions: x\nsandboxes: {here: {path: .}}")
    worker = Registry(project, home).find("w", project)
    assert worker.sandbox_folders(frame)[0].path == project
    assert worker.resource_folder == home.path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone", r"sandboxes.in.path: the folder .*/gone does not exist\nCreate it"),
        ("file.txt", r"sandboxes.in.path: .*/file.txt is not a folder"),
        ("~nobody-here/x", r"sandboxes.in.path: cannot use ~nobody-here/x"),
        ("loop", r"sandboxes.in.path: "),
        ("n" * 300, r"sandboxes.in.path: "),
    ],
)
def test_a_sandbox_that_cannot_be_is_named(write: Write, project: Path, frame: Frame, path: str, message: str):
    write("file.txt", "x")
    (project / "loop").symlink_to(project / "loop")
    worker = load(write("workers/w.yaml", f"instructions: x\nsandboxes: {{in: {{path: {path}}}}}"))
    with pytest.raises(ToolUnavailable, match=message) as caught:
        worker.sandbox_folders(frame)
    assert caught.value.where == str(worker.path)


def test_where_a_file_belongs(tmp_path: Path):
    assert project_folder(tmp_path / "workers/w.yaml") == tmp_path
    assert project_folder(tmp_path / "workers/generated/w.yaml") == tmp_path
    assert project_folder(tmp_path / "generated/w.yaml") == tmp_path / "generated"
    assert project_folder(tmp_path / "w.yaml") == tmp_path


def test_a_worker_as_json(write: Write):
    write("prompts/w.md", "from a file")
    path = write("workers/w.yaml", "locked: true")
    shown = load(path).as_dict()
    assert (shown["name"], shown["instructions"], shown["locked"]) == ("w", "from a file", True)
    assert (shown["path"], shown["scope"]) == (str(path), "project")
