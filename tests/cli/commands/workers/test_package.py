"""`guild package`: add, show, check and remove packages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.guild.packages import MAIL, WRITER, write_mail_package, write_package

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild


def test_an_empty_list_prints_how_to_create_a_package(guild: Guild, project: Path) -> None:
    ran = guild("package", "ls")
    assert (ran.code, ran.out) == (0, "")
    assert "guild package new NAME" in ran.err
    assert guild("package", "ls", "--json").json == []
    assert "packages" not in {check["name"] for check in guild("doctor", "--json").json}
    gone = guild("package", "show", "mail")
    assert gone.code == 3


def test_a_package_is_created_shown_and_removed(guild: Guild, project: Path, home: Home) -> None:
    made = guild("package", "new", "hours", "--from", "timekeeper")
    assert (made.code, made.out) == (0, f"{home.packages}/hours\n")
    shown = guild("package", "show", "hours").out
    assert "days_between" in shown
    assert "timekeeping/tools.py" in shown
    assert "You are a timekeeper." in shown
    shown_json = guild("package", "show", "hours", "--json").json
    assert (shown_json["types"], shown_json["export"], shown_json["problems"]) == (
        ["worker", "toolbox"],
        "timekeeping.tools",
        [],
    )
    assert shown_json["rights"]["toolboxes"] == ["hours"]
    assert guild("check", "hours").out == "ok       package hours\n"
    assert guild("package", "new", "hours").code == 1
    removed = guild("package", "rm", "hours", "--json")
    assert removed.json["kept"].startswith(f"{home.packages}/.aside/hours-")


@pytest.mark.req("X-18")
def test_a_package_is_added_only_with_consent_and_not_executed(guild: Guild, project: Path, home: Home) -> None:
    trap = "open('ran', 'w')\nraise SystemExit\n"
    source = write_package(
        home, "x", MAIL, {"post/tools.py": f"{trap}from guildhall import tool\n@tool\ndef weigh(): 'w'"}
    )
    source = source.rename(project / "letters")
    asked = guild("package", "add", "letters")
    assert asked.code == 4
    assert "cannot install mail: you have not confirmed it\nInstall it: guild package add letters --yes\n" in asked.err
    assert "post/tools.py" in asked.out
    assert "weigh" in asked.out
    assert guild("check", "./letters").code == 0
    assert guild("package", "ls", "--json").json == []
    added = guild("package", "add", "letters", "--yes", "--json")
    assert added.json["path"] == f"{home.packages}/mail"
    assert guild("package", "add", "letters", "--yes").code == 1
    assert guild("package", "add", "letters", "--yes", "--force", "--json").json["kept"]
    assert not list(project.rglob("ran"))
    broken = guild("check", "mail", "--json")
    assert (broken.code, broken.json[0]["ok"]) == (1, False)
    assert "packages/mail/post/tools.py:2" in broken.json[0]["errors"][0]["message"]
    (project / "mail.tar.gz").write_text("x")
    assert "Unpack an archive first" in guild("package", "add", "mail.tar.gz").err


def check_errors(guild: Guild, package: str) -> list[str]:
    """Return the errors that `guild check` finds in a package."""
    (report,) = guild("check", package, "--json").json
    return [f"{one.get('where', '')}: {one['message']}" for one in report["errors"]]


def test_all_errors_are_named_with_file_and_field(guild: Guild, project: Path, home: Home, terminal: Any) -> None:
    write_package(home, "writer", WRITER.replace("[tool.guildhall]", '[tool.guildhall]\nactivate = "start:begin"'))
    (home.packages / "writer" / "start.py").write_text("raise RuntimeError\n")
    assert any("writer/start.py:1" in one for one in check_errors(guild, "writer"))
    (home.packages / "writer" / "start.py").write_text("began = 5\n")
    (absent,) = (one for one in check_errors(guild, "writer") if "begin" in one)
    assert "activate: start:begin is not a function: unknown name" in absent
    assert "writer/pyproject.toml" in absent
    (home.packages / "writer" / "start.py").write_text("def begin(context):\n    raise SystemExit\n")
    write_mail_package(home)
    assert guild("check", "writer").out == "ok       package writer\n", "the function is not called"
    write_package(
        home, "odd", '[tool.guildhall]\ntype = "worker"\nposture = 5\ntolls = ["Read"]\nlimits = {max_turn = 3}\n'
    )
    text = "\n".join(check_errors(guild, "odd"))
    for field in ("posture", "tolls", "limits.max_turn"):
        assert f"tool.guildhall.{field}: " in text
    write_package(home, "empty", MAIL.replace('"mail"', '"empty"'), {"post/tools.py": "x = 1\n"})
    (nothing,) = check_errors(guild, "empty")
    assert "empty/pyproject.toml: export: " in nothing
    toolbox = guild("run", "mail", "Go")
    assert (toolbox.code, "is a toolbox, not a worker" in toolbox.err) == (3, True)
    there = (home.packages / "mail").rename(project / "mail")
    asked = terminal("package", "add", "./mail")
    asked.wait_for("[y]es  [n]o:")
    asked.type("maybe\n")
    asked.wait_for("Nothing was installed.")
    assert asked.wait_exit()[0] == 4
    assert guild("package", "add", str(there), "--yes").code == 0
    assert "Use --force" in guild("package", "add", str(there)).err, "before the user is asked"


def test_control_characters_of_a_package_are_escaped(guild: Guild, project: Path, home: Home) -> None:
    odd = WRITER.replace("Writes letters", "Writes \\u001b[31mred")
    write_package(home, "writer", odd.replace("You write letters.", "You \\u001b[2J write."), {"a\x1b[0m.txt": ""})
    for arguments in (("show", "writer"), ("ls",), ("validate",)):
        ran = guild("package", *arguments)
        assert "\x1b" not in ran.out + ran.err
    write_package(home, "bad", '[tool.guildhall]\n"\\u001b[31m" = 5\ntype = "worker"\n')
    assert "\x1b" not in guild("package", "ls").out


def test_a_package_in_use_is_not_removed(guild: Guild, project: Path, home: Home) -> None:
    write_mail_package(home)
    write_package(home, "writer", WRITER + "\n[tool.guildhall.tool_rules.weigh]\napproval_required = true\n")
    (project / "answers.yaml").write_text("workers: {writer: [[{call: weigh, with: {words: 1}}, {say: done}]]}")
    ran = guild("run", "writer", "Go", "--model", "script:answers.yaml", "--output", "json")
    assert ran.code == 4, ran.err
    for name in ("writer", "mail"):
        refused = guild("package", "rm", name)
        assert refused.code == 1
        assert f"the package '{name}': in use by {ran.json['run']}" in refused.err
    assert guild("stop", ran.json["run"]).code == 0
    assert guild("package", "rm", "writer").code == 0


@pytest.mark.req("WKR-1")
def test_workers_of_packages_are_in_the_scope_package(guild: Guild, project: Path, home: Home) -> None:
    write_package(home, "writer", WRITER.replace('["mail"]', "[]"))
    write_package(home, "bad", MAIL.replace('"mail"', '"bad"').replace("export", "exprt"))
    write_package(home, "odd", WRITER.replace("posture", "pasture"))
    listed = {row["name"]: row for row in guild("worker", "ls", "--json").json}
    assert "bad" not in listed, "an invalid toolbox is not an invalid worker"
    assert listed["odd"]["error"]
    assert (listed["writer"]["scope"], listed["writer"]["status"]) == ("package", "active")
    home.workers.mkdir()
    (home.workers / "writer.yaml").write_text("instructions: x\n")
    both = guild("worker", "show", "writer")
    assert both.code == 1
    assert "Use home/writer or package/writer." in both.err
    shown = guild("worker", "show", "package/writer", "--json").json
    assert (shown["scope"], shown["instructions"]) == ("package", "You write letters.")
    assert guild("check", "package/writer").code == 0
    assert guild("worker", "lock", "package/writer").code == 0
    (home.packages / "writer" / "pyproject.toml").write_text(WRITER.replace('["mail"]', "[]") + "\n# changed")
    assert "is locked, but its file was changed" in guild("run", "package/writer", "Go", "--model", "script:x.yaml").err
    assert guild("worker", "unlock", "package/writer").code == 0
    retired = guild("worker", "set", "package/writer", "retired")
    assert "cannot edit the worker 'writer': it is a package" in retired.err
    (project / "elsewhere").mkdir()
    (project / "elsewhere" / "pyproject.toml").write_text(WRITER)
    far = guild("run", "elsewhere/pyproject.toml", "Go")
    assert "guild package add" in far.err
    assert json.loads(guild("worker", "ls", "--json").out)
