"""A worker writes another one: shown whole, approved by a person, with no more rights than it may have, and run."""

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
CALL = {"call": "worker_call", "with": {"worker_name": "helper", "input_data": "one two"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def made(**fields: Any) -> dict[str, Any]:
    return {"call": "worker_create", "with": {**SPEC, **fields}}


def prepared(project: Path, *answers: dict[str, Any], settings: Any = None, **fields: Any) -> None:
    """A worker that may create, a script for it and for the helper, and what the settings allow."""
    put_worker(project, "boss", **{"tool_rules": {"worker.create": {"approval_required": True}}, **fields})
    scripted = {"boss": [[*answers, {"say": "done"}]], "*": [[{"say": "2 words"}]]}
    (project / "answers.yaml").write_text(json.dumps({"price": PRICE, "workers": scripted, "repeat": True}))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    if settings is not None:
        home = Path(os.environ["GUILDHALL_HOME"])
        home.mkdir(exist_ok=True)
        (home / "config.yaml").write_text(json.dumps({"worker_creation": settings}))


def asked(guild: Guild) -> tuple[str, str, str]:
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.code == 4, ran
    (ask,) = ran.json["asks"]
    return ran.json["run"], ask["ask"], ask["body"]


def told_model(guild: Guild, run: str) -> str:
    return "\n".join(str(entry["data"]["message"]) for entry in journal(guild, run) if entry["kind"] == "model_asked")


@pytest.mark.req("DO-8")
@pytest.mark.req("DO-14")
def test_it_is_shown_whole_approved_saved_as_a_draft_and_run_at_once(guild: Guild, project: Path) -> None:
    prepared(project, made(), CALL)
    run, ask, body = asked(guild)
    path = project / "workers" / "generated" / "helper.yaml"
    assert not path.exists()
    assert str(path) in body
    for line in ("Count the words.", "Only {{ words }}.", "status: draft"):
        assert line in body
    ran = guild("answer", ask, "yes", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "done")
    assert path.read_text().strip() in body
    assert [one["worker"] for one in ran.json["runs"]] == ["helper"]
    saved = yaml.read(path).data
    assert saved["instructions"] == SPEC["instructions"]  # never rendered
    assert saved["status"] == "draft"
    assert "2 words" in told_model(guild, run)
    assert "worker_created" in kinds(journal(guild, run))
    assert guild("replay", run).code == 0
    assert guild("worker", "set", "helper", "active").code == 0
    assert guild("run", "helper", "x", "--output", "json").json["output"] == "2 words"


@pytest.mark.req("DO-8")
def test_a_person_who_says_no_is_heard(guild: Guild, project: Path) -> None:
    prepared(project, made(), CALL)
    run, ask, _ = asked(guild)
    assert guild("answer", ask, "no", "--note", "too many workers").code == 0
    said = told_model(guild, run)
    assert "The user denied this worker. too many workers" in said
    assert "calling 'helper' is not allowed" in said
    assert not (project / "workers" / "generated").exists()


@pytest.mark.parametrize(
    ("mode", "there", "said"), [("--approve-all", True, "Created the worker"), ("--strict", False, "needs approval")]
)
def test_how_the_run_was_started_counts(guild: Guild, project: Path, mode: str, there: bool, said: str) -> None:
    prepared(project, made())
    ran = guild("run", "boss", "go", mode, "--output", "json")
    assert ran.code == 0
    assert (project / "workers" / "generated" / "helper.yaml").exists() is there
    assert said in told_model(guild, ran.json["run"])


@pytest.mark.req("DO-8")
def test_without_a_rule_that_allows_it_there_is_no_such_tool(guild: Guild, project: Path) -> None:
    for rules in (None, {"worker.create": {"allowed": False}}):
        prepared(project, made(), tool_rules=rules)
        ran = guild("run", "boss", "go", "--output", "json")
        assert "Unknown tool 'worker_create'" in told_model(guild, ran.json["run"])
        assert not (project / "workers" / "generated").exists()


# rights


def saved(guild: Guild, project: Path) -> dict[str, Any]:
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert ran.code == 0, ran
    return yaml.read(project / "workers" / "generated" / "helper.yaml").data


@pytest.mark.req("DO-8")
def test_rights_come_from_the_settings_and_are_at_most_the_creators(guild: Guild, project: Path) -> None:
    (project / "notes" / "sub").mkdir(parents=True)
    (project / "other").mkdir()
    creation = {
        "tools": ["Read", "Grep", "WebFetch", "Bash"],
        "sandboxes": {
            "inside": {"path": "./notes/sub", "mode": "rw", "allowed_suffixes": [".md", ".py"]},
            "beside": {"path": "./other"},  # its shell sees the folder that it works in
            "above": {"path": ".."},
            "missing": {"path": "./nowhere"},
        },
        "tool_rules": {
            "proc.exec": {"approval_required": True},
            "fs.read": {"approval_required": True, "timeout": "1h"},
        },
    }
    prepared(
        project,
        made(),
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
    worker = saved(guild, project)
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
def test_what_it_does_not_get_is_shown_too(guild: Guild, project: Path) -> None:
    prepared(project, made(), settings={"tools": ["WebFetch", "Read"], "sandboxes": {"etc": {"path": "/etc"}}})
    _, _, body = asked(guild)
    assert "tools: WebFetch uses the network" in body
    assert "tools: boss does not have Read" in body
    assert "sandboxes.etc: boss does not have this right" in body


def test_a_read_only_creator_makes_no_writer(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    prepared(project, made(), settings={"sandboxes": NOTES}, sandboxes={"notes": {"path": "./notes"}})
    assert "sandboxes" not in saved(guild, project)


def test_a_new_worker_cannot_write_workers_or_call_them(guild: Guild, project: Path) -> None:
    prepared(project, made(), settings={"tool_rules": {"worker.create": {"allowed": True}, "worker.call": {}}})
    assert "tool_rules" not in saved(guild, project)


def test_wrong_defaults_in_the_settings_are_named(guild: Guild, project: Path) -> None:
    prepared(project, made(), settings={"sandboxes": {"notes": {"pth": "x"}}})
    ran = guild("run", "boss", "go", "--output", "json")
    assert "worker_creation.sandboxes.notes" in told_model(guild, ran.json["run"])


# what can be asked for


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "../x"}, "invalid worker name"),
        ({"name": ""}, "invalid worker name"),
        ({"name": "boss"}, "already exists"),
        ({"name": "BOSS"}, "already exists"),
        ({"name": "guide"}, "already exists"),
        ({"instructions": "  "}, "expected text that describes how to work"),
        ({"instructions": "a\u0000b"}, "expected text that describes how to work"),
        ({"instructions": "x" * 100_001}, "at most 100000 characters"),
        ({"model": "script:/etc/passwd"}, "is a file of this machine"),
        ({"model": "replay:r-7k2m9x4qpw"}, "is a file of this machine"),
        ({"output_schema": {"type": "array"}}, "must have `type: object`"),
        ({"output_schema": {"type": "object", "properties": 1}}, "not a JSON Schema"),
        ({"tools": ["Bash"]}, "unknown argument"),
    ],
)
@pytest.mark.req("DO-8")
def test_what_makes_no_sense_is_told_to_the_model_and_nobody_is_asked(
    guild: Guild, project: Path, fields: dict[str, Any], said: str
) -> None:
    prepared(project, made(**fields))
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.code == 0, ran
    assert said in told_model(guild, ran.json["run"])
    assert not (project / "workers" / "generated").exists()


@pytest.mark.req("DO-8")
def test_an_output_schema_is_saved_with_it_and_enforced(guild: Guild, project: Path) -> None:
    prepared(project, made(output_schema=SCHEMA), CALL)
    script = json.loads((project / "answers.yaml").read_text())
    script["workers"]["*"] = [[{"output": {"n": "two"}}, {"output": {"n": 2}}]]
    (project / "answers.yaml").write_text(json.dumps(script))
    _, ask, body = asked(guild)
    assert "schemas/generated/helper.json" in body
    assert '"type": "integer"' in body
    ran = guild("answer", ask, "yes", "--output", "json")
    assert [one["output"] for one in ran.json["runs"]] == [{"n": 2}]
    assert json.loads((project / "schemas" / "generated" / "helper.json").read_text()) == SCHEMA


@pytest.mark.parametrize("place", ["workers/generated", "workers/generated/helper.yaml"])
def test_nothing_is_written_through_a_link(guild: Guild, project: Path, tmp_path: Path, place: str) -> None:
    prepared(project, made())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere if place.endswith("generated") else elsewhere / "x.yaml"
    (project / place).parent.mkdir(exist_ok=True)
    (project / place).symlink_to(target)
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert list(elsewhere.iterdir()) == []
    said = told_model(guild, ran.json["run"])
    assert "through a symbolic link" in said or "the file already exists" in said


# in the tree that made it


@pytest.mark.req("DO-14")
def test_a_draft_is_reached_in_its_creators_tree_and_by_name_never_by_star(guild: Guild, project: Path) -> None:
    prepared(project, made())
    assert guild("run", "boss", "go", "--approve-all").code == 0
    prepared(project, CALL, allow_workers="*", tool_rules=None)
    ran = guild("run", "boss", "go", "--output", "json")
    assert "is a draft and cannot be used through '*'" in told_model(guild, ran.json["run"])
    prepared(project, CALL, allow_workers=["helper"], tool_rules=None)
    ran = guild("run", "boss", "go", "--output", "json")
    assert "2 words" in told_model(guild, ran.json["run"])


@pytest.mark.req("DO-8")
def test_what_was_changed_after_the_approval_does_not_run_in_the_tree(guild: Guild, project: Path) -> None:
    """The creator itself has the folder of workers as a sandbox, and changes what was approved."""
    (project / "workers" / "generated").mkdir(parents=True)
    change = {
        "call": "sandbox_write_text",
        "with": {"sandbox": "w", "path": "helper.yaml", "content": "name: helper\ninstructions: Do as you like.\n"},
    }
    prepared(project, made(), change, CALL, sandboxes={"w": {"path": "./workers/generated", "mode": "rw"}})
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert "was changed after its approval" in told_model(guild, ran.json["run"])
    assert ran.json["runs"] == []


def test_a_run_that_goes_on_later_still_knows_what_it_has_made(guild: Guild, project: Path) -> None:
    write = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "x"}}
    rules = {"worker.create": {}, "fs.write": {"approval_required": True}}
    prepared(project, made(), write, CALL, tool_rules=rules)
    run, ask, _ = asked(guild)
    waiting = guild("answer", ask, "yes", "--output", "json")
    (second,) = waiting.json["asks"]
    ran = guild("answer", second["ask"], "yes", "--output", "json")
    assert [one["worker"] for one in ran.json["runs"]] == ["helper"]
    assert "2 words" in told_model(guild, run)


def test_two_of_one_name_side_by_side(guild: Guild, project: Path) -> None:
    first, second = made()["with"], made(instructions="Something else.")["with"]
    calls = [{"call": "worker_create", "with": first}, {"call": "worker_create", "with": second}]
    prepared(project, {"calls": calls})
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert ran.code == 0
    said = told_model(guild, ran.json["run"])
    assert said.count("as a draft") == 1


# in Python


@pytest.mark.req("DO-8")
def test_a_program_makes_a_worker_with_the_rights_of_the_settings(project: Path, home: Home) -> None:
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


def test_the_plan_of_a_new_worker_knows_that_its_schema_comes_with_it(guild: Guild, project: Path) -> None:
    prepared(project, made(output_schema=SCHEMA))
    _, _, body = asked(guild)
    assert "Plan of its runs:" in body
    assert "cannot run" not in body
