"""Package validation: valid and invalid metadata, checked without executing the package."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import GuildError, InvalidFile
from guildhall.workers.home_packages import Packages, load_code, package_worker
from guildhall.workers.package import read_package
from tests.guild.packages import LETTERS, MAIL, WRITER, write_mail_package, write_package

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall

FULL = """
[project]
name = "guildhall-clerk"
version = "2.0"

[tool.guildhall]
type = ["worker", "toolbox"]
name = "clerk"
description = "Keeps the books"
posture_file = "words/posture.md"
toolboxes = ["mail"]
tools = ["Read", "WebFetch"]
checkout = "full"
model = "anthropic:claude-sonnet-5-5"
runtime = "claude"
limits = {max_turns = 20, max_budget_usd = 1.5, timeout = "30m"}
activate = "clerk.begin:activate"
export = "clerk.tools:box"

[tool.guildhall.sandboxes.books]
path = "./books"
mode = "rw"

[tool.guildhall.tool_rules."fs.write"]
approval_required = true

[tool.other]
anything = 1
"""
CLERK = {
    "words/posture.md": "You keep the books.",
    "src/clerk/__init__.py": "raise SystemExit('code ran')",
    "src/clerk/begin.py": "raise SystemExit('code ran')",
    "src/clerk/tools.py": "raise SystemExit('code ran')",
}


def find_problem(home: Home, name: str, text: str, **files: str) -> str:
    """Write an invalid package, and return its error."""
    write_package(home, name, text, files)
    (found,) = [one for one in Packages(home).listings() if one.name == name]
    assert found.error is not None, "the package is valid"
    assert f"{name}/pyproject.toml" in found.error
    return found.error


@pytest.mark.req("WKR-1", "WKR-2")
def test_a_package_accepts_all_fields(home: Home) -> None:
    write_package(home, "clerk", FULL, CLERK)
    package = Packages(home).find("clerk")
    worker = package_worker(package)
    assert (package.types, package.version) == (("worker", "toolbox"), "2.0")
    assert (worker.scope, worker.name, worker.description) == ("package", "clerk", "Keeps the books")
    assert worker.instructions == "You keep the books."
    definition = worker.definition
    assert (definition.tools, definition.toolboxes) == (("Read", "WebFetch"), ("mail",))
    assert (definition.checkout, definition.runtime) == ("full", "claude")
    limits = definition.limits
    assert (limits.max_turns, limits.max_budget_usd, limits.timeout) == (20, 1.5, 1800)
    assert definition.sandboxes["books"].mode == "rw"
    assert definition.tool_rules["fs.write"].approval_required
    assert worker.activate == "clerk.begin:activate"
    toolbox, activation = load_code(package)
    assert (toolbox.kind, toolbox.entry, toolbox.is_own) == ("toolbox", "clerk.tools:box", True)
    assert [file.display_path for file in activation.files] == ["clerk/__init__.py", "clerk/begin.py", "clerk/tools.py"]


@pytest.mark.req("WKR-2", "WKR-5")
def test_a_package_needs_few_fields(home: Home) -> None:
    write_package(home, "quill", '[tool.guildhall]\ntype = "worker"\nposture = "You write."\n')
    write_mail_package(home)
    assert [(one.name, one.types) for one in Packages(home).listings()] == [
        ("mail", ("toolbox",)),
        ("quill", ("worker",)),
    ]
    worker = package_worker(Packages(home).find("quill"))
    assert (worker.instructions, worker.activate, worker.definition.checkout) == ("You write.", None, "sparse")
    assert worker.definition.limits.max_turns == 150


WORKER = '[tool.guildhall]\ntype = "worker"\nposture = "x"\n'


@pytest.mark.req("WKR-2")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tool.guildhall: missing table: not a package of Guildhall"),
        ("tool = 5", "tool.guildhall: missing table"),
        ("[tool]\nguildhall = 5", "tool.guildhall: missing table"),
        ('[tool.guildhall]\nposture = "x"', "tool.guildhall.type: this field is required"),
        ('[tool.guildhall]\ntype = "workr"', "tool.guildhall.type: expected 'worker' or 'toolbox'"),
        ("[tool.guildhall]\ntype = []", "tool.guildhall.type: "),
        ('[tool.guildhall]\ntype = ["worker", "worker"]\nposture = "x"', "tool.guildhall.type: duplicate type worker"),
        ('[tool.guildhall]\ntype = ["worker", 5]', "tool.guildhall.type"),
        ('[tool.guildhall]\ntype = "worker"', "tool.guildhall.posture: a worker needs this field"),
        ('[tool.guildhall]\ntype = "worker"\nposture = " "', "tool.guildhall.posture: the posture is empty"),
        (
            '[tool.guildhall]\ntype = "worker"\nposture = "\\u0000"',
            "posture: invalid posture: it contains a NUL",
        ),
        ('[tool.guildhall]\ntype = "worker"\nposture = 5', "tool.guildhall.posture: expected text (got 5)"),
        (
            '[tool.guildhall]\ntype = "worker"\ninstructions = "x"',
            "cannot have `instructions`: use `posture` or `posture_file`",
        ),
        (
            WORKER + 'posture_file = "x.md"',
            "posture_file: cannot be used together with `posture`",
        ),
        (WORKER + 'postur_file = "x.md"', "Did you mean 'posture_file'?"),
        (WORKER + 'export = "x"', "tool.guildhall.export: only a toolbox has this field"),
        (WORKER + 'activate = "begin"', "tool.guildhall.activate: 'begin' does not name a function"),
        (WORKER + 'activate = "begin:go now"', "invalid reference 'begin:go now': write module or module:name"),
        (WORKER + 'activate = "../begin:go"', "tool.guildhall.activate: invalid reference '../begin:go'"),
        (WORKER + 'activate = "os:system"', "os is a module of Python or Guildhall"),
        (WORKER + 'activate = "guildhall.hall:go"', "guildhall is a module of Python or Guildhall"),
        (WORKER + 'activate = "begin:go"', "tool.guildhall.activate: unknown module begin"),
        (WORKER + 'tools = ["Reed"]', "tool.guildhall.tools[0]: unknown built-in tool 'Reed'"),
        (WORKER + 'tools = ["Reed"]', "Did you mean 'Read'?"),
        (WORKER + 'tools = "Read"', "tool.guildhall.tools: expected a list (got 'Read')"),
        (WORKER + 'toolboxes = ["../mail"]', "tool.guildhall.toolboxes[0]: invalid name '../mail'"),
        (WORKER + 'checkout = "sparce"', "Did you mean 'sparse'?"),
        (WORKER + "limits = {max_turns = 0}", "tool.guildhall.limits.max_turns: "),
        (WORKER + "limits = {max_turn = 5}", "Did you mean 'max_turns'?"),
        (WORKER + "limits = {max_budget_usd = nan}", "tool.guildhall.limits.max_budget_usd: "),
        (WORKER + "description = 1979-05-27", "tool.guildhall.description: expected text"),
        (
            WORKER + "tool_rules = {fly = {allowed = false}}",
            "tool.guildhall.tool_rules.fly: unknown capability",
        ),
        (WORKER + 'name = "other"', "tool.guildhall.name: the package name 'other' differs from the folder name"),
        (WORKER + 'name = "a/b"', "tool.guildhall.name: invalid name 'a/b'"),
        ('[project]\nname = "other"\n' + WORKER, "the package name 'other' differs from the folder name"),
        ("[project]\nname = 5\n" + WORKER, "tool.guildhall.name: expected text (got 5)"),
        ('[tool.guildhall]\ntype = "toolbox"', "tool.guildhall.export: a toolbox needs this field"),
        (
            '[tool.guildhall]\ntype = "toolbox"\nexport = "x"\ntools = ["Read"]',
            "tool.guildhall.tools: only a worker has",
        ),
        ('[tool.guildhall]\ntype = "toolbox"\nexport = "tols"', "unknown module tols"),
        ("[tool.guildhall\n", "pyproject.toml:1: not TOML"),
        ("a = 1\na = 2\n", "pyproject.toml:2: not TOML: Cannot overwrite a value"),
        ('a = "\\ud800"', "not TOML"),
        ("a = " + "9" * 5000, "not TOML"),
        ("a = " + "[" * 50_000, "not TOML: nested too deeply"),
        ("a" + ".a" * 50_000 + " = 1", "not TOML: nested too deeply"),
        ("'a'" + " . 'a'" * 20_000 + " = 1", "not TOML: nested too deeply"),
        ("[" + "a." * 50_000 + "a]", "not TOML: nested too deeply"),
        ("a = '" + "x" * 200_000 + "'", "larger than 200,000 characters"),
        ("a = '" + "x" * 1_000_000 + "'", "larger than 1,000,000 bytes"),
    ],
)
def test_an_error_names_file_and_field(home: Home, text: str, message: str) -> None:
    assert message in find_problem(home, "quill", text)


def test_a_package_that_is_not_utf_8_is_invalid(home: Home) -> None:
    folder = write_package(home, "quill", "")
    (folder / "pyproject.toml").write_bytes(b'[tool.guildhall]\ntype = "\xff"')
    with pytest.raises(InvalidFile, match="not UTF-8 text"):
        read_package(folder)
    write_mail_package(home)
    (home.packages / "mail" / "post" / "prices.py").write_bytes(b"x = '\xff'")
    with pytest.raises(GuildError, match=r"the file is not UTF-8 text") as caught:
        Packages(home).find("mail")
    assert str(caught.value.where).endswith("post/prices.py")


def test_links_and_paths_out_of_the_package_are_invalid(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("x = 42")
    text = '[tool.guildhall]\ntype = "worker"\nposture_file = "posture.md"\nactivate = "begin:go"\n'
    folder = write_package(home, "quill", text, {"begin.py": ""})
    (folder / "posture.md").symlink_to(secret)
    assert "tool.guildhall.posture_file: cannot read 'posture.md' (symbolic links" in find_problem(home, "quill", text)
    for away in ("../../secret.md", str(secret), "a/../../x", "nowhere.md", ".", ""):
        assert "tool.guildhall.posture_file: " in find_problem(home, "quill", text.replace("posture.md", away)), away
    (folder / "posture.md").unlink()
    write_package(home, "quill", text, {"posture.md": "x"})
    (folder / "begin.py").unlink()
    (folder / "begin.py").symlink_to(secret)
    with pytest.raises(GuildError, match=r"is a link to .* outside of the project"):
        Packages(home).find("quill")
    (folder / "pyproject.toml").rename(tmp_path / "pyproject.toml")
    (folder / "pyproject.toml").symlink_to(tmp_path / "pyproject.toml")
    with pytest.raises(InvalidFile, match="symbolic links are not allowed in a package"):
        read_package(folder)
    (home.packages / "other").symlink_to(tmp_path)
    with pytest.raises(InvalidFile, match="the package is a symbolic link"):
        Packages(home).find("other")


def test_large_and_irregular_files_are_invalid(home: Home) -> None:
    text = '[tool.guildhall]\ntype = "worker"\nposture_file = "posture.md"\n'
    assert "larger than 1,000,000 bytes" in find_problem(home, "quill", text, **{"posture.md": "x" * 1_000_001})
    assert "longer than 400,000 characters" in find_problem(home, "quill", text, **{"posture.md": "x" * 400_001})
    (home.packages / "quill" / "posture.md").unlink()
    os.mkfifo(home.packages / "quill" / "posture.md")
    assert "is not a regular file" in find_problem(home, "quill", text)
    write_package(home, "mail", MAIL, LETTERS | {"post/large.py": "#" * 2_000_001})
    with pytest.raises(GuildError, match="the file is too large"):
        Packages(home).find("mail")
    write_package(home, "mail", MAIL, {"post/large.py": "", **{f"post/m{number}.py": "" for number in range(501)}})
    with pytest.raises(GuildError, match="more than 500 modules"):
        Packages(home).find("mail")


@pytest.mark.req("WKR-2", "SYS-38")
def test_an_invalid_package_is_reported_and_does_not_block_others(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    guild = guild_hall
    write_package(home, "writer", WRITER.replace('toolboxes = ["mail"]', ""))
    write_package(home, "bad", MAIL.replace('"mail"', '"bad"').replace("export", "exprt"))
    (home.packages / "empty").mkdir()
    (home.packages / "notes.txt").write_text("no package")
    (home.packages / ".aside").mkdir()
    rows = {row["name"]: row for row in guild("package", "ls", "--json").json}
    assert list(rows) == ["bad", "empty", "writer"]
    assert re.search(r"/bad/pyproject\.toml:\d+: tool\.guildhall\.exprt: unknown field", rows["bad"]["error"])
    assert "Did you mean 'export'?" in rows["bad"]["error"]
    assert "pyproject.toml is missing" in rows["empty"]["error"]
    assert (rows["writer"]["error"], rows["writer"]["version"]) == (None, "1.2.0")
    assert [line.split()[1] for line in guild("package", "ls").out.splitlines()] == [
        "type",
        "invalid",
        "invalid",
        "worker",
    ]
    doctor = {check["name"]: check for check in guild("doctor", "--json").json}
    assert doctor["packages"]["detail"] == "1 usable, 2 with errors: bad, empty"
    assert not doctor["packages"]["ok"]
    (project / "answers.yaml").write_text("workers: {writer: [[{say: done}]]}")
    ran = guild("run", "writer", "Go", "--model", "script:answers.yaml")
    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    log = home.log.read_text()
    assert "skipped the package bad: " in log
    assert "tool.guildhall.exprt" in log
    wrong = guild("check")
    assert wrong.code == 1
    assert [line for line in wrong.out.splitlines() if not line.startswith(" ")] == [
        "invalid  package bad",
        "invalid  package empty",
        "ok       package writer",
    ]
