"""Promises of a worker file, tested through the real command and its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, WRITE, journal, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild


def read_assembly(guild: Guild, run: str) -> dict[str, Any]:
    """Return the first journal entry of a run."""
    return journal(guild, run)[0]["data"]


def run_worker(guild: Guild, *words: str) -> str:
    ran = guild("run", *words, "--output", "json")
    assert ran.code == 0, ran
    return ran.json["run"]


@pytest.mark.req("DO-2")
@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("scribe.md", "Do {{ 1 + 1 }} things.", "Do {{ 1 + 1 }} things."),
        ("scribe.txt", "Plain {% if %} text.", "Plain {% if %} text."),
        ("scribe.j2", "Do {{ 1 + 1 }} things. {% include 'tone.md' %}", "Do 2 things. Be kind."),
    ],
)
def test_instructions_are_plain_text_or_a_template(
    guild: Guild, project: Path, name: str, text: str, shown: str
) -> None:
    (project / "prompts").mkdir()
    (project / "prompts" / name).write_text(text)
    (project / "prompts" / "tone.md").write_text("Be kind.")
    put_worker(project, instructions=None)
    put_script(project, DONE)
    assert read_assembly(guild, run_worker(guild, "scribe", "go"))["system_prompt"].strip() == shown


@pytest.mark.req("DO-2")
@pytest.mark.parametrize("include", ["../outside.md", "/etc/hostname", "link.md"])
def test_a_template_includes_nothing_from_elsewhere(guild: Guild, project: Path, include: str) -> None:
    (project / "outside.md").write_text("secret")
    (project / "prompts").mkdir()
    (project / "prompts" / "link.md").symlink_to(project / "outside.md")
    (project / "prompts" / "scribe.j2").write_text(f"{{% include '{include}' %}}")
    put_worker(project, instructions=None)
    put_script(project, DONE)
    ran = guild("run", "scribe", "go")
    assert ran.code == 2, ran
    assert "secret" not in ran.out + ran.err


@pytest.mark.req("DO-4")
def test_no_path_leads_out_of_a_sandbox(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "secret.md").write_text("the canary")
    (project / "notes" / "link.md").symlink_to(project / "secret.md")
    ways = ["../secret.md", str(project / "secret.md"), "link.md", "x/../../secret.md", "a\0b", "NOTES/../secret.md"]
    reads = [{"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": way}} for way in ways]
    writes = [{"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": way, "content": "x"}} for way in ways]
    put_worker(project, tool_rules=None)
    put_script(project, {"calls": reads}, {"calls": writes}, DONE)
    results = [
        e["data"]["result"] for e in journal(guild, run_worker(guild, "scribe", "go")) if e["kind"] == "tool_ended"
    ]
    assert len(results) == 2 * len(ways)
    assert all("canary" not in str(result) for result in results)
    assert all(result["is_error"] for result in results[: len(ways)])
    assert (project / "secret.md").read_text() == "the canary"
    assert {path.name for path in project.iterdir()} == {
        "answers.yaml",
        "guildhall.yaml",
        "notes",
        "secret.md",
        "workers",
    }


@pytest.mark.req("DO-13")
@pytest.mark.parametrize("name", ["fs.write", "sandbox.write", "sandbox_write_text"])
def test_a_rule_names_a_capability_or_a_tool(guild: Guild, project: Path, name: str) -> None:
    put_worker(project, tool_rules={name: {"allowed": False}})
    put_script(project, WRITE, DONE)
    entries = journal(guild, run_worker(guild, "scribe", "go"))
    assert [e["data"]["tool"] for e in entries if e["kind"] == "tool_refused"] == ["sandbox_write_text"]
    assert not (project / "notes" / "a.md").exists()


@pytest.mark.req("DO-13")
def test_a_rule_with_an_unknown_name_is_an_error(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules={"fs.wirte": {"allowed": False}})
    put_script(project, DONE)
    ran = guild("run", "scribe", "go")
    assert ran.code == 2
    assert "fs.wirte" in ran.err
    assert "'fs.write'" in ran.err


@pytest.mark.req("DO-14", "DO-9")
def test_a_worker_goes_from_draft_to_retired(guild: Guild, project: Path) -> None:
    file = put_worker(project, status="draft", tool_rules=None)
    put_script(project, DONE)
    assert guild("run", "scribe", "go").code == 0  # a draft can be run by its name
    assert guild("worker", "set", "scribe", "active").code == 0
    assert guild("worker", "lock", "scribe").code == 0
    assert guild("run", "scribe", "go").code == 0  # a locked worker runs
    assert guild("worker", "set", "scribe", "retired").code == 4  # but cannot be changed
    text = file.read_text()
    file.write_text(text.replace("Write the", "Do the"))
    changed = guild("run", "scribe", "go")
    assert (changed.code, "locked" in changed.err) == (4, True)
    file.write_text(text)
    assert guild("worker", "unlock", "scribe").code == 0
    assert guild("worker", "set", "scribe", "retired").code == 0
    retired = guild("run", "scribe", "go")
    assert (retired.code, "retired" in retired.err) == (4, True)


@pytest.mark.req("WKR-4")
def test_the_identity_of_a_worker_is_stable_and_its_memory_accumulates(guild: Guild, project: Path) -> None:
    put_worker(project)
    note = {"scope": "worker", "key": "door", "content": "The key is under the mat."}
    put_script(project, {"call": "memory_write", "with": note}, DONE)
    first = read_assembly(guild, run_worker(guild, "scribe", "go"))
    put_script(project, DONE)
    second = read_assembly(guild, run_worker(guild, "scribe", "go"))
    assert first["worker"] == second["worker"]
    assert "under the mat" not in first["system_prompt"]
    assert "The key is under the mat." in second["system_prompt"]
    put_worker(project, instructions="Write other lines.")
    third = read_assembly(guild, run_worker(guild, "scribe", "go"))
    assert "The key is under the mat." in third["system_prompt"]
    put_worker(project, "other")
    other = read_assembly(guild, run_worker(guild, "other", "go"))
    assert "under the mat" not in other["system_prompt"]


@pytest.mark.req("DO-3")
def test_the_model_is_that_of_the_worker_then_the_caller_then_the_command_then_the_settings(
    guild: Guild, project: Path
) -> None:
    for name in ("worker", "command", "variable", "settings", "override"):
        (project / f"{name}.yaml").write_text(f'repeat: true\nworkers: {{"*": [[{{say: {name}}}]]}}\n')
    (project / "guildhall.yaml").write_text("model: script:settings.yaml\n")
    put_worker(project, "bare")
    put_worker(project, "named", model="script:worker.yaml")
    variable = {"GUILDHALL_MODEL": "script:variable.yaml"}
    option, override = ("--model", "script:command.yaml"), ("--override-model", "script:override.yaml")
    assert guild("run", "bare", "go").out == "settings\n"
    assert guild("run", "bare", "go", env=variable).out == "variable\n"
    assert guild("run", "bare", "go", *option, env=variable).out == "command\n"
    assert guild("run", "named", "go", *option, env=variable).out == "worker\n"
    assert guild("run", "named", "go", *option, *override, env=variable).out == "override\n"
    call = '{call: worker_call, with: {worker: bare}}, {expect: "caller", say: done}'
    (project / "boss.yaml").write_text(f"workers: {{boss: [[{call}]], bare: [[{{say: caller}}]]}}\n")
    put_worker(project, "boss", model="script:boss.yaml", allow_workers=["bare"])
    assert guild("run", "boss", "go", *option, env=variable).out == "done\n"


@pytest.mark.req("WKR-17")
def test_declared_tools_need_no_approval(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, DONE)
    run_worker(guild, "scribe", "go")
    assert guild("ls", "--json").json["needs_you"] == {"asks": [], "runs": []}
    assert (project / "notes" / "a.md").read_text() == "one"
