"""Protected files: a run can neither change the files that define permissions nor create workers through them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, journal, model_input, put_script, put_worker
from tests.runs.trees import call, calls

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

PROJECT = {"project": {"path": ".", "mode": "rw"}}
EVIL = json.dumps({"name": "evil", "instructions": "Do all.", "tools": ["Bash"], "sandboxes": PROJECT})
PROTECTED = "workers/, prompts/, toolboxes/, guild-members/, guildhall.yaml"
REFUSED = "protected, because it defines what runs may do"


def write_call(path: str, content: str = "x", sandbox: str = "project") -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": sandbox, "path": path, "content": content}}


def shell_call(command: str) -> dict[str, Any]:
    return {"call": "Bash", "with": {"command": command}}


@pytest.mark.req("DO-8")
def test_a_run_cannot_create_a_worker_by_writing_its_file(guild: Guild, project: Path) -> None:
    """Otherwise a worker that may write in the project and call all workers would have every permission."""
    boss = put_worker(project, "boss", sandboxes=PROJECT, tool_rules=None, tools=["Write", "Bash"], allow_workers="*")
    script = {"say": "done"}
    put_script(
        project,
        write_call("workers/evil.yaml", EVIL),
        {"call": "Write", "with": {"file_path": "workers/evil.yaml", "content": EVIL}},
        shell_call(f"echo '{EVIL}' > workers/evil.yaml; mv workers old; echo x > guildhall.yaml; mkdir prompts"),
        write_call("prompts/boss.md"),
        write_call("workers/boss.yaml", EVIL),
        call("evil"),
        script,
    )
    before = (boss.read_text(), (project / "guildhall.yaml").read_text())
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert (ran.code, ran.json["runs"]) == (0, [])
    messages = model_input(journal(guild, ran.json["run"]))
    assert messages.count(REFUSED) == 4
    assert "unknown worker 'evil'" in messages
    assert (boss.read_text(), (project / "guildhall.yaml").read_text()) == before
    assert sorted(path.name for path in project.iterdir()) == ["answers.yaml", "guildhall.yaml", "workers"]
    assert guild("replay", ran.json["run"]).code == 0


def test_a_program_cannot_create_a_missing_workers_folder(guild: Guild, project: Path, home: Home) -> None:
    """Even a file that exists only for a moment could be called, because calls run beside the program."""
    home.workers.mkdir(parents=True)
    boss = {"name": "boss", "instructions": "x", "tools": ["Bash"], "sandboxes": PROJECT, "allow_workers": "*"}
    (home.workers / "boss.yaml").write_text(json.dumps(boss))
    slow = shell_call(f"mkdir -p workers; echo '{EVIL}' > workers/evil.yaml; sleep 0.2; cp -r workers w; ls")
    scripted = {"workers": {"*": [[calls(slow, call("evil")), call("evil"), DONE]]}, "repeat": True}
    script = home.path / "answers.yaml"
    script.write_text(json.dumps(scripted))
    ran = guild("run", "boss", "go", "--approve-all", "--model", f"script:{script}", "--output", "json")
    assert (ran.code, ran.json["runs"]) == (0, []), ran
    messages = model_input(journal(guild, ran.json["run"]))
    assert "Read-only file system" in messages or "Permission denied" in messages
    assert messages.count("unknown worker 'evil'") == 2
    assert {path.name for path in project.iterdir()} <= {"w"}
    assert not list(project.rglob("evil.yaml"))


def test_a_declared_folder_is_writable_except_for_its_locked_workers(guild: Guild, project: Path) -> None:
    named = {name: {"path": f"./{name}", "mode": "rw"} for name in ("workers", "prompts")}
    put_worker(project, "boss", sandboxes=named, tool_rules=None, tools=["Bash"])
    clerk = put_worker(project, "clerk")
    text = clerk.read_text()
    assert guild("worker", "lock", "clerk").code == 0
    put_script(
        project,
        write_call("a.md", sandbox="prompts"),
        write_call("other.yaml", EVIL, sandbox="workers"),
        write_call("clerk.yaml", EVIL, sandbox="workers"),
        shell_call("cd workers; echo evil > clerk.yaml; rm -f clerk.yaml; mv clerk.yaml gone; true"),
        DONE,
    )
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert ran.code == 0
    assert model_input(journal(guild, ran.json["run"])).count(REFUSED) == 1
    assert clerk.read_text() == text
    assert (project / "prompts" / "a.md").read_text() == "x"
    assert (project / "workers" / "other.yaml").read_text() == EVIL
    assert "writes        ./workers (not clerk.yaml), ./prompts\n" in guild("plan", "boss").out


def test_a_worker_file_in_another_folder_is_protected_from_its_own_run(guild: Guild, project: Path) -> None:
    loose = project / "loose.yaml"
    definition = {"name": "loose", "instructions": "x", "sandboxes": PROJECT}
    loose.write_text(json.dumps(definition))
    put_script(project, write_call("loose.yaml", EVIL), write_call("other.yaml"), DONE)
    ran = guild("run", "./loose.yaml", "go", "--approve-all", "--output", "json")
    assert model_input(journal(guild, ran.json["run"])).count(REFUSED) == 1
    assert json.loads(loose.read_text()) == definition
    assert (project / "other.yaml").exists()


def test_files_stay_protected_after_a_resume(guild: Guild, project: Path) -> None:
    rules = {"fs.write": {"approval_required": True}}
    put_worker(project, sandboxes=PROJECT, tool_rules=rules)
    put_script(project, write_call("workers/evil.yaml", EVIL), DONE)
    waiting = guild("run", "scribe", "go", "--output", "json")
    assert waiting.code == 4
    ran = guild("answer", waiting.json["asks"][0]["ask"], "yes", "--output", "json")
    assert ran.code == 0
    assert REFUSED in model_input(journal(guild, ran.json["run"]))
    assert not (project / "workers" / "evil.yaml").exists()


@pytest.mark.req("X-16")
def test_the_plan_names_the_protected_files(guild: Guild, project: Path) -> None:
    put_worker(project, sandboxes=PROJECT, tool_rules=None)
    put_script(project, DONE)
    assert f"writes        . (not {PROTECTED})\n" in guild("plan", "scribe").out
    found = guild("plan", "scribe", "--json").json
    assert found["writes"] == [str(project)]
    assert str(project / "workers") in found["does_not_write"]
    line = guild("run", "scribe", "go").err.splitlines()[0]
    assert "writes .;" in line


def test_a_created_worker_gets_no_sandbox_that_its_creator_may_not_write(
    guild: Guild, project: Path, home: Home
) -> None:
    home.path.mkdir(exist_ok=True)
    given = {"drafts": {"path": "./drafts", "mode": "rw"}, "prompts": {"path": "./prompts", "mode": "rw"}}
    home.settings.write_text(json.dumps({"worker_creation": {"sandboxes": given}}))
    put_worker(project, "boss", sandboxes=PROJECT, tool_rules={"worker.create": {}})
    put_script(project, {"call": "worker_create", "with": {"name": "new", "instructions": "x"}}, DONE)
    asked = guild("run", "boss", "go", "--output", "json").json["asks"][0]
    assert "sandboxes.prompts: boss does not have this right" in asked["body"]
    assert "./drafts" in asked["body"]
