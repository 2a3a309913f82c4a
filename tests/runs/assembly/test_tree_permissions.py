"""Permissions in a tree of runs: a worker gains no rights, files, approvals or budget through other workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall import Worker
from guildhall.core.ids import digest
from tests.runs.places import journal, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

DONE = {"say": "done"}
HELPER: dict[str, Any] = {"call": "worker_create", "with": {"name": "helper", "instructions": "Help."}}


def put_answers(project: Path, price: Any = None, **workers: list[dict[str, Any]]) -> None:
    script: dict[str, Any] = {"workers": {name: [answers] for name, answers in workers.items()}, "repeat": True}
    if price:
        script["price"] = price
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")


def call(worker: str, **more: Any) -> dict[str, Any]:
    return {"call": "worker_call", "with": {"worker": worker, "input_data": "go", **more}}


def write(content: str = "x", path: str = "a.md") -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "out", "path": path, "content": content}}


def model_input(guild: Guild, run: str) -> str:
    return "\n".join(str(e["data"]["message"]) for e in journal(guild, run) if e["kind"] == "model_asked")


def configure(home: Home, **settings: Any) -> None:
    home.path.mkdir(exist_ok=True)
    (home.path / "config.yaml").write_text(json.dumps(settings))


def test_always_applies_to_the_sandboxes_of_one_worker(guild: Guild, project: Path) -> None:
    """Identical calls of two workers write to different folders: approving one does not approve the other."""
    rules = {"fs.write": {"approval_required": True}}
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["one", "two"])
    put_worker(project, "one", sandboxes={"out": {"path": "./out", "mode": "rw"}}, tool_rules=rules)
    put_worker(project, "two", sandboxes={"out": {"path": "./precious", "mode": "rw"}}, tool_rules=rules)
    put_answers(project, boss=[call("one"), call("two"), DONE], one=[write(), DONE], two=[write(), DONE])
    first = guild("run", "boss", "go", "--output", "json").json["asks"][0]["ask"]
    again = guild("answer", first, "always", "--output", "json")
    assert [ask["title"] for ask in again.json["asks"]] == ["two wants to call sandbox_write_text"]
    assert not (project / "precious" / "a.md").exists()


@pytest.mark.req("DO-5", "DO-6")
@pytest.mark.parametrize("rule", [{"approval_required": True}, {"allowed": False}])
def test_attaching_a_file_to_a_call_needs_permission_to_read_it(
    guild: Guild, project: Path, rule: dict[str, bool]
) -> None:
    (project / "secret").mkdir()
    (project / "secret" / "s.txt").write_text("private")
    put_worker(
        project,
        "boss",
        sandboxes={"secret": {"path": "./secret"}},
        tool_rules={"fs.read": rule},
        allow_workers=["hand"],
    )
    put_worker(project, "hand", sandboxes=None, tool_rules=None)
    put_answers(project, boss=[call("hand", attachments=["secret/s.txt"]), DONE], hand=[DONE])
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.json["runs"] == []
    if rule.get("approval_required"):
        assert [ask["title"] for ask in ran.json["asks"]] == ["boss wants to call worker_call"]
    else:
        assert "Not permitted" in model_input(guild, ran.json["run"])


@pytest.mark.req("DO-7", "DO-5")
def test_sandbox_files_are_attached_as_they_are_now_and_input_files_as_they_were(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "notes" / "plan.md").write_text("old plan")
    (project / "brief.md").write_text("the brief")
    put_worker(project, "boss", tool_rules=None, allow_workers=["hand"])
    put_worker(project, "hand", sandboxes=None, tool_rules=None)
    change = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "plan.md", "content": "new plan"}}
    files = ["notes/plan.md", "brief.md"]
    put_answers(project, boss=[change, call("hand", attachments=files), DONE], hand=[DONE])
    ran = guild("run", "boss", "go", "--attach", "notes/plan.md", "--attach", "brief.md", "--output", "json")
    got = guild("show", ran.json["runs"][0]["run"], "--json").json["attachments"]
    assert {file["name"]: file["digest"] for file in got} == {
        "notes/plan.md": digest(b"new plan"),
        "brief.md": digest(b"the brief"),
    }


def test_a_waiting_child_run_is_stopped_by_a_changed_allow_list(guild: Guild, project: Path) -> None:
    rules = {"fs.write": {"approval_required": True}}
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["hand", "other"])
    put_worker(project, "hand", sandboxes={"out": {"path": "./out", "mode": "rw"}}, tool_rules=rules)
    put_answers(project, boss=[call("hand"), DONE], hand=[write(), DONE])
    ask = guild("run", "boss", "go", "--output", "json").json["asks"][0]
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["other"])
    ran = guild("answer", ask["ask"], "yes", "--output", "json")
    assert "calling 'hand' is not allowed" in model_input(guild, ask["root"])
    assert ran.json["status"] == "completed"
    assert not (project / "out" / "a.md").exists()


@pytest.mark.req("X-18")
def test_untrusted_code_of_a_called_worker_stops_the_tree_until_it_is_trusted(guild: Guild, project: Path) -> None:
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "mail.py").write_text(
        'from guildhall import tool\n\n@tool\ndef post() -> str:\n    """Post it."""\n    return "posted"\n'
    )
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers="*")
    put_worker(project, "hand", sandboxes=None, tool_rules=None, toolboxes=["mail"])
    put_answers(project, boss=[call("hand"), DONE], hand=[{"call": "post"}, {"expect": "posted", "say": "done"}])
    ran = guild("run", "boss", "go", "--output", "json")
    assert (ran.code, ran.json["error"]["code"]) == (4, "not_trusted"), ran
    assert guild("trust", "--yes").code == 0
    assert guild("resume", ran.json["run"], "--output", "json").json["output"] == "done"


# Created workers


@pytest.mark.req("DO-8")
def test_an_approval_covers_only_the_shown_definition(guild: Guild, project: Path, home: Home) -> None:
    put_worker(project, "boss", tool_rules={"worker.create": {}}, tools=["Bash"])
    put_answers(project, boss=[HELPER, DONE])
    ask = guild("run", "boss", "go", "--output", "json").json["asks"][0]
    assert "Bash" not in ask["body"]
    configure(home, worker_creation={"tools": ["Bash"]})
    again = guild("answer", ask["ask"], "yes", "--output", "json")
    assert not (project / "workers" / "generated").exists()
    (second,) = again.json["asks"]
    assert "tools: [Bash]" in second["body"]


@pytest.mark.req("X-3", "DO-8")
def test_the_budget_applies_to_created_workers(guild: Guild, project: Path, home: Home) -> None:
    """Only the model of the created worker has a price."""
    configure(home, budget=0.01, worker_creation={"model": f"script:{project}/dear.yaml"})
    dear = {"price": {"input": 1e6, "output": 1e6}, "workers": {"helper": [[DONE]]}}
    (project / "dear.yaml").write_text(json.dumps(dear))
    put_worker(project, "boss", sandboxes=None, tool_rules={"worker.create": {}})
    put_answers(project, boss=[HELPER, call("helper"), DONE])
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert (ran.code, [ask["kind"] for ask in ran.json["asks"]]) == (4, ["limit"]), ran
    assert not ran.json["cost_usd"]


@pytest.mark.parametrize("model", ["script//etc/passwd", "replay/r-7k2m9x4qpw", "script:x.yaml"])
def test_local_files_are_rejected_as_models_in_every_spelling(guild: Guild, project: Path, model: str) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules={"worker.create": {}})
    put_answers(project, boss=[{"call": "worker_create", "with": {**HELPER["with"], "model": model}}, DONE])
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert "is not a model of a provider" in model_input(guild, ran.json["run"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "helper.yaml"}, "invalid worker name"),
        ({"output_schema": {"type": "object", "$ref": "https://example.com/x.json"}}, "unresolvable reference"),
    ],
)
def test_a_worker_that_could_never_run_is_not_created(guild: Guild, project: Path, fields: Any, message: str) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules={"worker.create": {}})
    put_answers(project, boss=[{"call": "worker_create", "with": {**HELPER["with"], **fields}}, DONE])
    ran = guild("run", "boss", "go", "--approve-all", "--output", "json")
    assert message in model_input(guild, ran.json["run"])


@pytest.mark.req("DO-14")
def test_a_promoted_draft_is_still_approved(guild: Guild, project: Path) -> None:
    rules = {"worker.create": {}, "fs.write": {"approval_required": True}}
    put_worker(project, "boss", sandboxes={"out": {"path": "./out", "mode": "rw"}}, tool_rules=rules)
    put_answers(project, boss=[HELPER, write(), call("helper"), DONE], helper=[{"say": "helped"}])
    first = guild("run", "boss", "go", "--output", "json").json["asks"][0]["ask"]
    second = guild("answer", first, "yes", "--output", "json").json["asks"][0]["ask"]
    assert guild("worker", "set", "helper", "active").code == 0
    ran = guild("answer", second, "yes", "--output", "json")
    assert [one["output"] for one in ran.json["runs"]] == ["helped"]


# Library


@pytest.mark.req("DO-12")
def test_a_worker_that_only_delegates_needs_no_model(project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["hand"])
    put_answers(project, hand=[{"say": "done by hand"}])
    (project / "guildhall.yaml").unlink()
    put_worker(project, "hand", sandboxes=None, tool_rules=None, model="script:answers.yaml")
    assert Worker.load("boss").delegate_to("hand", "go").output == "done by hand"
