"""Workers that create workers: approval of the whole definition, permissions, and runs of the draft."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall import Worker
from guildhall.core import yaml
from guildhall.core.errors import Conflict, UsageError
from tests.runs.places import NOTES, PRICE, journal, kinds, put_worker

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild

SPEC: dict[str, Any] = {
    "name": "helper",
    "instructions": "Count the words.\nOnly {{ words }}.",
    "description": "Counts",
}
CALL = {"call": "worker_call", "with": {"worker": "helper", "input_data": "one two"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def creation_call(**fields: Any) -> dict[str, Any]:
    return {"call": "worker_create", "with": {**SPEC, **fields}}


def prepare(project: Path, *answers: dict[str, Any], settings: Any = None, **fields: Any) -> None:
    """Write a worker that may create workers, a script for it and for the helper, and the settings."""
    put_worker(project, "boss", **{"tool_rules": {"worker.create": {"approval_required": True}}, **fields})
    scripted = {"boss": [[*answers, {"say": "done"}]], "*": [[{"say": "2 words"}]]}
    (project / "answers.yaml").write_text(json.dumps({"price": PRICE, "workers": scripted, "repeat": True}))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    if settings is not None:
        home = Path(os.environ["GUILDHALL_HOME"])
        home.mkdir(exist_ok=True)
        (home / "config.yaml").write_text(json.dumps({"worker_creation": settings}))


def run_until_ask(guild: Guild) -> tuple[str, str, str]:
    """Run the creator until it asks. Return the id of the run, and id and body of the ask."""
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.code == 4, ran
    (ask,) = ran.json["asks"]
    return ran.json["run"], ask["ask"], ask["body"]


def model_input(guild: Guild, run: str) -> str:
    return "\n".join(str(entry["data"]["message"]) for entry in journal(guild, run) if entry["kind"] == "model_asked")


@pytest.mark.req("DO-8")
@pytest.mark.req("DO-14")
def test_a_created_worker_is_shown_approved_saved_as_a_draft_and_run(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(), CALL)
    run, ask, body = run_until_ask(guild)
    path = project / "workers" / "generated" / "helper.yaml"
    assert not path.exists()
    assert str(path) in body
    for line in ("Count the words.", "Only {{ words }}.", "status: draft"):
        assert line in body
    ran = guild("answer", ask, "yes", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "done")
    assert path.read_text().strip() in body
    assert [one["worker"] for one in ran.json["runs"]] == ["helper"]
    definition = yaml.read(path).data
    assert definition["instructions"] == SPEC["instructions"]  # not rendered as a template
    assert definition["status"] == "draft"
    assert "2 words" in model_input(guild, run)
    assert "worker_created" in kinds(journal(guild, run))
    assert guild("replay", run).code == 0
    assert guild("worker", "set", "helper", "active").code == 0
    assert guild("run", "helper", "x", "--output", "json").json["output"] == "2 words"


@pytest.mark.req("DO-8")
def test_a_denied_worker_is_not_created_and_the_model_reads_the_note(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(), CALL)
    run, ask, _ = run_until_ask(guild)
    assert guild("answer", ask, "no", "--note", "too many workers").code == 0
    message = model_input(guild, run)
    assert "The user denied this worker. too many workers" in message
    assert "calling 'helper' is not allowed" in message
    assert not (project / "workers" / "generated").exists()


@pytest.mark.parametrize(
    ("mode", "there", "message"), [("--approve-all", True, "Created the worker"), ("--strict", False, "needs approval")]
)
def test_approve_all_creates_the_worker_and_strict_refuses_it(
    guild: Guild, project: Path, mode: str, there: bool, message: str
) -> None:
    prepare(project, creation_call())
    ran = guild("run", "boss", "go", mode, "--output", "json")
    assert ran.code == 0
    assert (project / "workers" / "generated" / "helper.yaml").exists() is there
    assert message in model_input(guild, ran.json["run"])


@pytest.mark.req("DO-8")
def test_the_tool_is_missing_without_a_rule_that_allows_it(guild: Guild, project: Path) -> None:
    for rules in (None, {"worker.create": {"allowed": False}}):
        prepare(project, creation_call(), tool_rules=rules)
        ran = guild("run", "boss", "go", "--output", "json")
        assert "Unknown tool 'worker_create'" in model_input(guild, ran.json["run"])
        assert not (project / "workers" / "generated").exists()


# Permissions


def create_helper(guild: Guild, project: Path) -> dict[str, Any]:
    """Run the creator with approval and return the definition that it saved."""
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert ran.code == 0, ran
    return yaml.read(project / "workers" / "generated" / "helper.yaml").data


@pytest.mark.req("DO-8")
def test_permissions_come_from_the_settings_and_do_not_exceed_the_creators(guild: Guild, project: Path) -> None:
    (project / "notes" / "sub").mkdir(parents=True)
    (project / "other").mkdir()
    creation = {
        "tools": ["Read", "Grep", "WebFetch", "Bash"],
        "sandboxes": {
            "inside": {"path": "./notes/sub", "mode": "rw", "allowed_suffixes": [".md", ".py"]},
            "beside": {"path": "./other"},  # readable, because the shell of the creator reads its working directory
            "above": {"path": ".."},
            "missing": {"path": "./nowhere"},
        },
        "tool_rules": {
            "proc.exec": {"approval_required": True},
            "fs.read": {"approval_required": True, "timeout": "1h"},
        },
    }
    prepare(
        project,
        creation_call(),
        settings=creation,
        tools=["Bash"],
        sandboxes={"notes": {"path": "./notes", "mode": "rw", "allowed_suffixes": [".md", ".txt"], "max_bytes": 1000}},
        tool_rules={
            "worker.create": {},
            "fs.write": {"approval_required": True},
            "memory.write": {"allowed": False},
            "fs.read": {"timeout": "10m"},
        },
        limits={"max_turns": 7},
        base=True,
    )
    worker = create_helper(guild, project)
    assert worker["tools"] == ["Bash"]
    inside = {"path": "./notes/sub", "mode": "rw", "allowed_suffixes": [".md"], "max_bytes": 1000}
    assert worker["sandboxes"] == {"inside": inside, "beside": {"path": "./other", "max_bytes": 10_000_000}}
    assert worker["tool_rules"] == {
        "fs.read": {"approval_required": True, "timeout": "600s"},
        "fs.write": {"approval_required": True},
        "memory.write": {"allowed": False},
        "proc.exec": {"approval_required": True},
    }
    assert worker["limits"] == {"max_turns": 7}
    assert not {"allow_workers", "toolboxes", "mcp_servers", "members", "accepts_risk"} & set(worker)


@pytest.mark.req("DO-8")
def test_the_ask_names_the_permissions_that_were_left_out(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(), settings={"tools": ["WebFetch", "Read"], "sandboxes": {"etc": {"path": "/etc"}}})
    _, _, body = run_until_ask(guild)
    assert "tools: WebFetch uses the network" in body
    assert "tools: boss does not have Read" in body
    assert "sandboxes.etc: boss does not have this right" in body


def test_a_read_only_creator_cannot_create_a_writing_worker(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    prepare(project, creation_call(), settings={"sandboxes": NOTES}, sandboxes={"notes": {"path": "./notes"}})
    assert "sandboxes" not in create_helper(guild, project)


def test_a_created_worker_cannot_create_or_call_workers(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(), settings={"tool_rules": {"worker.create": {"allowed": True}, "worker.call": {}}})
    assert "tool_rules" not in create_helper(guild, project)


def test_invalid_defaults_in_the_settings_are_reported(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(), settings={"sandboxes": {"notes": {"pth": "x"}}})
    ran = guild("run", "boss", "go", "--output", "json")
    assert "worker_creation.sandboxes.notes" in model_input(guild, ran.json["run"])


# Arguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "../x"}, "invalid worker name"),
        ({"name": ""}, "invalid worker name"),
        ({"name": "boss"}, "already exists"),
        ({"name": "BOSS"}, "already exists"),
        ({"name": "guide"}, "already exists"),
        ({"instructions": "  "}, "instructions: must not be empty"),
        ({"instructions": "a\u0000b"}, "contains a NUL"),
        ({"instructions": "x" * 100_001}, "at most 100000 characters"),
        ({"model": "script:/etc/passwd"}, "is not a model of a provider"),
        ({"model": "replay:r-7k2m9x4qpw"}, "is not a model of a provider"),
        ({"output_schema": {"type": "array"}}, "must have `type: object`"),
        ({"output_schema": {"type": "object", "properties": 1}}, "invalid JSON Schema"),
        ({"tools": ["Bash"]}, "unknown argument"),
    ],
)
@pytest.mark.req("DO-8")
def test_invalid_arguments_are_returned_to_the_model_without_an_ask(
    guild: Guild, project: Path, fields: dict[str, Any], message: str
) -> None:
    prepare(project, creation_call(**fields))
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.code == 0, ran
    assert message in model_input(guild, ran.json["run"])
    assert not (project / "workers" / "generated").exists()


@pytest.mark.req("DO-8")
def test_the_output_schema_is_saved_with_the_worker_and_enforced(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(output_schema=SCHEMA), CALL)
    script = json.loads((project / "answers.yaml").read_text())
    script["workers"]["*"] = [[{"output": {"n": "two"}}, {"output": {"n": 2}}]]
    (project / "answers.yaml").write_text(json.dumps(script))
    _, ask, body = run_until_ask(guild)
    assert "schemas/generated/helper.json" in body
    assert '"type": "integer"' in body
    ran = guild("answer", ask, "yes", "--output", "json")
    assert [one["output"] for one in ran.json["runs"]] == [{"n": 2}]
    assert json.loads((project / "schemas" / "generated" / "helper.json").read_text()) == SCHEMA


@pytest.mark.parametrize("place", ["workers/generated", "workers/generated/helper.yaml"])
def test_nothing_is_written_through_a_link(guild: Guild, project: Path, tmp_path: Path, place: str) -> None:
    prepare(project, creation_call())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere if place.endswith("generated") else elsewhere / "x.yaml"
    (project / place).parent.mkdir(exist_ok=True)
    (project / place).symlink_to(target)
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert list(elsewhere.iterdir()) == []
    message = model_input(guild, ran.json["run"])
    assert "through a symbolic link" in message or "the file already exists" in message


# In the tree that created the worker


@pytest.mark.req("DO-14")
def test_a_draft_is_callable_by_name_but_not_through_a_star(guild: Guild, project: Path) -> None:
    prepare(project, creation_call())
    assert guild("run", "boss", "go", "--approve-all").code == 0
    prepare(project, CALL, allow_workers="*", tool_rules=None)
    ran = guild("run", "boss", "go", "--output", "json")
    assert "is a draft and cannot be used through '*'" in model_input(guild, ran.json["run"])
    prepare(project, CALL, allow_workers=["helper"], tool_rules=None)
    ran = guild("run", "boss", "go", "--output", "json")
    assert "2 words" in model_input(guild, ran.json["run"])


@pytest.mark.req("DO-8")
def test_a_draft_that_changed_after_its_approval_is_not_run(guild: Guild, project: Path) -> None:
    """Let the creator write into the folder of drafts, so that it can change the approved file."""
    (project / "workers" / "generated").mkdir(parents=True)
    change = {
        "call": "sandbox_write_text",
        "with": {"sandbox": "w", "path": "helper.yaml", "content": "name: helper\ninstructions: Do as you like.\n"},
    }
    prepare(project, creation_call(), change, CALL, sandboxes={"w": {"path": "./workers/generated", "mode": "rw"}})
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert "its file was changed after its approval" in model_input(guild, ran.json["run"])
    assert ran.json["runs"] == []


def test_a_resumed_run_may_call_the_worker_that_it_created(guild: Guild, project: Path) -> None:
    write = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "x"}}
    rules = {"worker.create": {}, "fs.write": {"approval_required": True}}
    prepare(project, creation_call(), write, CALL, tool_rules=rules)
    run, ask, _ = run_until_ask(guild)
    waiting = guild("answer", ask, "yes", "--output", "json")
    (second,) = waiting.json["asks"]
    ran = guild("answer", second["ask"], "yes", "--output", "json")
    assert [one["worker"] for one in ran.json["runs"]] == ["helper"]
    assert "2 words" in model_input(guild, run)


def test_of_two_parallel_creations_with_the_same_name_one_succeeds(guild: Guild, project: Path) -> None:
    first, second = creation_call()["with"], creation_call(instructions="Something else.")["with"]
    calls = [{"call": "worker_create", "with": first}, {"call": "worker_create", "with": second}]
    prepare(project, {"calls": calls})
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert ran.code == 0
    message = model_input(guild, ran.json["run"])
    assert message.count("as a draft") == 1


# Library


@pytest.mark.req("DO-8")
def test_the_library_creates_a_worker_with_the_permissions_of_the_settings(project: Path, home: Home) -> None:
    home.path.mkdir()
    creation = {"tools": ["Read"], "sandboxes": NOTES, "model": "test:x"}
    (home.path / "config.yaml").write_text(json.dumps({"worker_creation": creation}))
    worker = Worker.create({**SPEC, "output_schema": SCHEMA})
    definition = worker.definition()
    assert (definition["name"], definition["status"], definition["model"]) == ("helper", "draft", "test:x")
    assert definition["tools"] == ["Read"]
    assert list(definition["sandboxes"]) == ["notes"]
    assert definition["path"] == str(project / "workers" / "generated" / "helper.yaml")
    with pytest.raises(Conflict, match="already exists"):
        Worker.create({**SPEC, "instructions": "Another."})
    with pytest.raises(UsageError, match="toolboxes"):
        Worker.create({**SPEC, "toolboxes": ["mail"]})


def test_the_plan_in_the_ask_includes_the_schema_of_the_new_worker(guild: Guild, project: Path) -> None:
    prepare(project, creation_call(output_schema=SCHEMA))
    _, _, body = run_until_ask(guild)
    assert "Plan of its runs:" in body
    assert "cannot run" not in body
