"""`guild worker`: list, show, create, lock and retire workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.places import WORKER

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild


WISHFUL = """instructions: x
runtime: claude
members: [ada]
allow_workers: "*"
output_schema_ref: a:B
model: script:none.yaml
tools: [Edit, WebSearch]
toolboxes: [mail]
sandboxes:
  in: {path: ./nowhere}
"""


def test_workers_are_listed_including_invalid_files(guild: Guild, scribe: Path) -> None:
    (scribe / "workers" / "broken.yaml").write_text("name: broken\ntoolz: []\n")
    out = guild("worker", "ls").out
    assert "Writes one line" in out
    assert any("broken" in line and "toolz" in line for line in out.splitlines())
    workers = {line["name"]: line for line in guild("worker", "ls", "--json").json}
    assert workers["scribe"]["error"] is None
    assert workers["broken"]["error"]


def test_an_empty_list_prints_how_to_create_a_worker(guild: Guild, project: Path) -> None:
    ran = guild("worker", "ls")
    assert ran.code == 0
    if not ran.out:
        assert "guild worker new NAME" in ran.err


def test_a_worker_is_shown(guild: Guild, scribe: Path) -> None:
    out = guild("worker", "show", "scribe").out
    for part in ("scribe", "Writes one line", "active", "sandboxes: ", "Write the requested line."):
        assert part in out
    assert guild("plan", "scribe").out in out, "the plan is the same text"
    assert guild("worker", "show", "workers/scribe.yaml", "--json").json["name"] == "scribe"


def test_check_reports_valid_and_invalid_files(guild: Guild, scribe: Path) -> None:
    fine = guild("check")
    assert fine.code == 0
    assert fine.out.startswith("ok       worker scribe  ")
    assert "exfiltration risk: none (no network access)" in fine.out
    (scribe / "workers" / "broken.yaml").write_text("name: broken\ninstructions: x\nsandboxs: {}\n")
    wrong = guild("check")
    assert wrong.code == 2
    assert "broken.yaml:3" in wrong.err
    assert "'sandboxes'" in wrong.err
    rows = wrong.out.splitlines()
    assert {" ".join(row.split()[:3]) for row in rows if not row.startswith(" ")} == {
        "ok worker scribe",
        "invalid worker broken",
    }
    checked = guild("check", "scribe", "workers/broken.yaml", "--json")
    assert checked.code == 2
    assert [line["ok"] for line in checked.json] == [True, False]
    assert guild("check", "nobody").code == 3


def test_all_missing_parts_are_named(guild: Guild, scribe: Path) -> None:
    """`guild check`, `guild doctor` and `guild run` report the same list."""
    (scribe / "workers" / "wish.yaml").write_text(WISHFUL)
    env = {"GUILDHALL_CLAUDE": str(scribe / "claude")}
    checked = guild("check", "wish", "--json", env=env)
    assert checked.code == 1
    messages = [error["message"] for error in checked.json[0]["errors"]]
    expected = [
        f"runtime claude needs Claude Code: GUILDHALL_CLAUDE is {scribe}/claude, which does not exist",
        f"model: script not found: {scribe}/none.yaml",
        "tools: WebSearch has no search engine",
        "toolboxes: unknown toolbox 'mail'",
        "members: unknown member 'ada'",
        f"sandboxes.in.path: the folder {scribe}/nowhere does not exist",
        f"output_schema_ref: unknown module a in {scribe}",
    ]
    assert messages == expected
    assert all("wish.yaml" in error["where"] for error in checked.json[0]["errors"])
    assert checked.json[0]["warnings"] == ["tools: Edit cannot write any file: add a sandbox with `mode: rw`"]
    shown = guild("check", "wish", env=env)
    assert "\n\n" not in shown.err
    row, risk = shown.out.splitlines()
    assert (row.split()[:3], risk.strip().startswith("exfiltration risk:")) == (["invalid", "worker", "wish"], True)
    assert "Edit cannot write any file" in shown.err
    refused = guild("run", "wish", "go", env=env)
    assert refused.code == 1
    assert "7 problems:" in refused.err
    assert all(message in refused.err for message in expected)
    assert "1 with errors: wish" in guild("doctor", env=env).out


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("output_schema_ref: none.json", "output_schema_ref: file not found: "),
        ("output_schema_ref: answers.yaml.json", "answers.yaml.json: invalid JSON"),
        ("model: script:guildhall.yaml", "guildhall.yaml:1: model: unknown field"),
    ],
)
def test_files_that_a_worker_names_are_checked_too(guild: Guild, scribe: Path, field: str, message: str) -> None:
    (scribe / "answers.yaml.json").write_text("{")
    (scribe / "workers" / "scribe.yaml").write_text(f"{WORKER}{field}\n")
    for words in (["check"], ["run", "scribe", "go"]):
        ran = guild(*words)
        assert ran.code == 2
        assert message in ran.err


def test_an_empty_project_has_nothing_to_check(guild: Guild, project: Path) -> None:
    ran = guild("check")
    assert (ran.code, ran.out) == (0, "")
    assert "Nothing to check" in ran.err


@pytest.mark.req("DO-9")
def test_a_worker_goes_from_draft_to_retired(guild: Guild, scribe: Path) -> None:
    made = guild("worker", "new", "helper", "--json").json
    assert made["worker"] == "helper"
    assert guild("check", "helper").code == 0
    again = guild("worker", "new", "helper")
    assert again.code != 0
    assert "--force" in again.err
    assert guild("worker", "new", "helper", "--force").out.strip() == made["path"]
    assert guild("worker", "lock", "scribe").out == "scribe is locked: its file must not change\n"
    assert "active, locked" in guild("worker", "ls").out
    refused = guild("worker", "new", "scribe")
    assert refused.code == 4
    assert "locked" in refused.err
    assert guild("worker", "set", "scribe", "retired").code == 4
    (scribe / "workers" / "scribe.yaml").write_text(WORKER + "# changed\n")
    assert "the file has changed since" in guild("worker", "show", "scribe").out
    assert guild("run", "scribe", "go").code == 4
    assert guild("worker", "unlock", "scribe", "--json").json["locked"] is False
    assert guild("worker", "set", "scribe", "retired").code == 0
    assert guild("run", "scribe", "go").code == 4
    (scribe / "workers" / "draft.yaml").write_text(
        "# mine\n" + WORKER.replace("name: scribe", "name: draft\nstatus: draft")
    )
    assert guild("worker", "set", "draft", "active").out == "draft is active\n"
    assert (scribe / "workers" / "draft.yaml").read_text().startswith("# mine\n")


HOSTILE = ["", " ", "a\nb", "x" * 5000, "../x", "no such worker"]


@pytest.mark.parametrize(
    ("verb", "name"),
    [*(("new", name) for name in HOSTILE), *(("show", name) for name in HOSTILE), ("lock", "nobody"), ("retire", "")],
)
def test_invalid_names_are_rejected(guild: Guild, scribe: Path, verb: str, name: str) -> None:
    ran = guild("worker", verb, name)
    assert ran.code in (2, 3)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert len(ran.err) < 600


@pytest.mark.req("DO-9")
def test_a_new_worker_does_not_break_another_worker(guild: Guild, scribe: Path, home: Home) -> None:
    for path in (scribe / "workers" / "generated" / "counter.yaml", home.workers / "clerk.yaml"):
        path.parent.mkdir(parents=True)
        path.write_text("instructions: x\n")
    (scribe / "workers" / "editor.json").write_text('{"instructions": "x"}')
    assert guild("worker", "lock", "counter").code == 0
    assert guild("package", "new", "writer").code == 0
    for name in ("counter", "clerk", "editor", "writer", "guide", "scribe"):
        ran = guild("worker", "new", name)
        assert (ran.code, f"the worker '{name}' already exists" in ran.err) == (1, True), ran.err
        assert guild("worker", "show", name, "--json").json["name"] == name
    assert guild("worker", "new", "counter", "--force").code == 1
    assert guild("worker", "new", "clerk", "--force").code == 0
    assert guild("worker", "show", "project/clerk", "--json").json["scope"] == "project"
    ran = guild("worker", "new", "wörker")
    assert (ran.code, "a-z, A-Z, 0-9" in ran.err) == (2, True)


def test_hints_do_not_name_workers_and_toolboxes_that_cannot_be_used(guild: Guild, scribe: Path, home: Home) -> None:
    (scribe / "workers" / "clerc.yaml").write_text("instructions: [")
    ran = guild("run", "clerk", "go")
    assert (ran.code, "clerc" not in ran.err) == (3, True), ran.err
    for name in ("mail", "letters"):
        assert guild("package", "new", name, "--type", "toolbox").code == 0
    assert guild("package", "new", "writer").code == 0
    (home.packages / "letters" / "tools.py").unlink()
    (home.packages / "mails").mkdir()
    (home.packages / "mails" / "pyproject.toml").write_text("[tool.guildhall\n")
    (scribe / "workers" / "sender.yaml").write_text("instructions: x\ntoolboxes: [post]\n")
    ran = guild("check", "sender")
    assert (ran.code, "Known: mail." in ran.err) == (1, True), ran.err
