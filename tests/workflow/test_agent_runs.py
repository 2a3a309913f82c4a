"""Runs of agents: their writable files, their prompt and tools, and the checks before the workflow starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild
    from tests.workflow.conftest import Write


def write_script(write: Write, *calls: dict[str, Any], **first: Any) -> None:
    answers = [{"calls": list(calls), **first}] if calls else []
    write("answers.yaml", json.dumps({"workers": {"a": [[*answers, {"say": "done", **({} if calls else first)}]]}}))


def write_call(path: str) -> dict[str, Any]:
    return {"call": "Write", "with": {"file_path": path, "content": "x"}}


def test_an_agent_writes_in_its_folder_but_not_files_that_define_permissions(write: Write, guild: Guild, project: Path):
    kept = ["review.yaml", ".workflow/x.md", "workers/x.yaml", "prompts/a.md", "guildhall.yaml"]
    outside = ["../outside.txt"]
    write_script(write, *(write_call(path) for path in ("new.txt", *kept, *outside)))
    write("prompts/a.md", "Write.")
    file = write(
        "review.yaml",
        'agents: {a: {system_prompt: prompts/a.md, model: "script:answers.yaml", tools: [Write]}}\nkickoff: "@a go"\n',
    )
    before = file.read_text()
    ran = guild("run", "review.yaml", "--output", "stream-json")
    assert ran.code == 0, ran.err
    events = [json.loads(line) for line in ran.out.splitlines()]
    results = [event["is_error"] for event in events if event["type"] == "tool_result"]
    assert sorted(results) == [False, *(True for _ in (*kept, *outside))]  # the calls are executed in parallel
    assert (project / "new.txt").read_text() == "x"
    assert file.read_text() == before
    assert not (project.parent / "outside.txt").exists()
    assert not (project / "guildhall.yaml").exists()


def test_an_agent_with_a_workdir_writes_only_there(write: Write, guild: Guild, project: Path):
    (project / "src").mkdir()
    write_script(write, write_call("here.txt"), write_call("../there.txt"))
    write(
        "review.yaml",
        'agents: {a: {system_prompt: x, model: "script:answers.yaml", tools: [Write], workdir: src}}\nkickoff: "@a"\n',
    )
    assert guild("run", "review.yaml").code == 0
    assert (project / "src/here.txt").exists()
    assert not (project / "there.txt").exists()


@pytest.mark.req("AW-1")
def test_an_agent_may_reduce_the_tools_and_extend_the_prompt_of_its_worker(write: Write, guild: Guild, project: Path):
    write("workers/chief.yaml", "{instructions: Lead., model: 'openai:gpt-5', tools: [Read, Write], base: false}")
    write_script(write, expect="go")
    write(
        "review.yaml",
        """\
agents:
  a: {worker: chief, model: "script:answers.yaml", tools: [Read], prompt: {append: "In ${{ workflow.tag }}."}}
kickoff: "@a go"
""",
    )
    ran = guild("run", "review.yaml", "--tag", "t1", "--output", "stream-json")
    assert ran.code == 0, ran.err
    started = [event for event in map(json.loads, ran.out.splitlines()) if event["type"] == "run_started"]
    assert started[0]["plan"] == (f"agents a; models script:{project}/answers.yaml; reads files; no budget")
    journal = [json.loads(line) for line in guild("log", started[-1]["run"], "--json").out.splitlines()]
    assembled = journal[0]["data"]
    assert assembled["system_prompt"] == "Lead.\n\nIn t1."
    names = [tool["name"] for tool in assembled["tools"]]
    assert "Read" in names
    assert "Write" not in names
    assert "channel_send" in names


UNUSABLE_AGENTS = [
    ("{system_prompt: x}", 2, "no model set for worker"),
    ("{worker: old}", 4, "is retired"),
    ("{worker: boxed}", 4, "mail is untrusted code"),
    ("{worker: sandy}", 1, "does not exist"),
    ('{system_prompt: x, model: "script:nowhere.yaml"}', 2, "script not found"),
    ('{system_prompt: x, model: "script:answers.yaml", runtime: codex}', 1, "not installed"),
    ('{system_prompt: x, model: "anthropic:claude-sonnet-4-5"}', 2, "agent b: anthropic:claude-sonnet-4-5 needs"),
]


@pytest.mark.req("X-18")
@pytest.mark.parametrize(("agent", "code", "message"), UNUSABLE_AGENTS)
def test_an_unusable_agent_is_reported_before_the_workflow_starts(
    write: Write, guild: Guild, project: Path, agent: str, code: int, message: str
):
    write_script(write)
    model = "model: 'script:answers.yaml'"
    write("workers/old.yaml", f"{{instructions: x, {model}, status: retired}}")
    write("workers/boxed.yaml", f"{{instructions: x, {model}, toolboxes: [mail]}}")
    write("workers/sandy.yaml", f"{{instructions: x, {model}, sandboxes: {{in: {{path: ./nowhere}}}}}}")
    write("toolboxes/mail.py", "")
    fine = "{system_prompt: x, model: 'script:answers.yaml'}"
    setup = "" if "boxed" in agent else "setup: [{shell: touch it-ran}]"
    write("review.yaml", f"agents: {{a: {fine}, b: {agent}}}\nkickoff: '@a'\n{setup}\n")
    if setup:
        guild("trust", "review.yaml", "--yes")
    ran = guild("run", "review.yaml")
    assert (ran.code, message in ran.err) == (code, True), ran.err
    assert not (project / "it-ran").exists()
    assert guild("ls", "--all", "--json").json["done"] == []
