"""`guild check`: all errors of workers, workflows, scripts, packages and projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

WORKFLOW = "agents:\n  a: {system_prompt: Work.}\nkickoff: '@a begin'\n"


def test_workers_workflows_and_scripts_of_the_project_are_checked(guild: Guild, scribe: Path) -> None:
    (scribe / "review.yaml").write_text(WORKFLOW)
    (scribe / "scripts").mkdir()
    (scribe / "scripts" / "model.yaml").write_text("workers: {scribe: [[{say: done}]]}\n")
    reports = guild("check", "--json").json
    assert {(one["kind"], one["name"], one["ok"]) for one in reports} == {
        ("worker", "scribe", True),
        ("workflow", "review", True),
        ("script", "model", True),
    }


def test_all_errors_of_a_file_are_reported(guild: Guild, scribe: Path) -> None:
    (scribe / "review.yaml").write_text("agents:\n  a: {system_promt: Work.}\nkickof: x\n")
    (scribe / "model.yaml").write_text("workers: {scribe: [[{say: done}]]}\nprise: 1\nrepeet: true\n")
    for file, fields in (("review.yaml", ("system_promt", "kickof")), ("model.yaml", ("prise", "repeet"))):
        ran = guild("check", file)
        assert ran.code == 2
        assert [field for field in fields if field not in ran.err] == []
        assert ran.out.startswith("invalid  ")
        (report,) = guild("check", file, "--json").json
        assert (report["ok"], len(report["errors"])) == (False, 2)


def test_a_folder_is_checked_with_its_files(guild: Guild, scribe: Path) -> None:
    (scribe / "review.yaml").write_text(WORKFLOW.replace("system_prompt", "sytem_prompt"))
    ran = guild("check", ".", "--json")
    assert (ran.code, {one["name"]: one["ok"] for one in ran.json}) == (2, {"scribe": True, "review": False})


def test_hostile_names_are_errors(guild: Guild, scribe: Path) -> None:
    for name in ("x" * 5000, "../..", "no/such.yaml", "\x1b[31m", ""):
        ran = guild("check", name)
        assert (ran.code in (0, 2, 3), "Traceback" not in ran.err, "\x1b" not in ran.err) == (True, True, True), name
