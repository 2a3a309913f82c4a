"""`guild memory`: list, show, write, remove, log and revert entries from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.places import make_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.cli.places import Terminal
    from tests.conftest import Guild

WORKER = "name: scribe\ninstructions: Remember the given facts.\n"
SCRIPT = """repeat: true
workers:
  scribe:
    - - {call: memory_write, with: {scope: worker, key: fact, content: by a worker}}
      - {say: noted}
"""


@pytest.fixture
def scribe_project(project: Path) -> Path:
    """Return a project with the worker `scribe`, which writes the entry worker/fact in each run."""
    make_project(project, worker=WORKER, script=SCRIPT)
    return project


def test_empty_memory(guild: Guild, project: Path) -> None:
    ran = guild("memory", "ls")
    assert (ran.code, ran.out, ran.err) == (0, "", "No memory entries.\n")
    assert guild("memory", "ls", "--json").json == {"entries": [], "skipped": []}
    missing = guild("memory", "show", "fact", "--json")
    assert missing.code == 3
    assert missing.json["error"]["message"] == "unknown memory entry 'project/fact'"


def test_command_without_verb_lists_the_verbs(guild: Guild) -> None:
    out = guild("memory").out
    for verb in ("ls", "show", "write", "rm", "log", "revert"):
        assert f"  memory {verb} " in out


def test_write_reads_the_argument_or_standard_input(guild: Guild, project: Path) -> None:
    assert guild("memory", "write", "build", "make").out == "Saved project/build\n"
    assert guild("memory", "write", "style", "-", "--scope", "global", input="short\nand plain\n").code == 0
    assert guild("memory", "write", "third", "--scope", "global", "--json", input="from a pipe").json["size"] == 11
    assert guild("memory", "show", "build").out == "make\n"
    assert guild("memory", "show", "style", "--scope", "global", "--json").json["content"] == "short\nand plain\n"


def test_ls_shows_all_scopes_or_the_given_one(guild: Guild, project: Path) -> None:
    guild("memory", "write", "build", "make")
    guild("memory", "write", "style", "short", "--scope", "global")
    guild("memory", "write", "third", "x", "--scope", "global")
    assert [line.split()[:2] for line in guild("memory", "ls").out.splitlines()] == [
        ["scope", "key"],
        ["global", "third"],
        ["global", "style"],
        ["project", "build"],
    ]
    entries = guild("memory", "ls", "--scope", "project", "--json").json["entries"]
    assert [entry["key"] for entry in entries] == ["build"]


def test_rm_prints_the_command_that_restores_the_entry(guild: Guild, scribe_project: Path) -> None:
    guild("memory", "write", "build", "make", "--worker", "scribe")
    removed = guild("memory", "rm", "build", "--worker", "scribe")
    assert removed.out == "Removed worker/build\n"
    assert removed.err == "Undo: guild memory revert build --scope worker --worker scribe\n"
    assert guild("memory", "show", "build", "--worker", "scribe").code == 3
    assert guild("memory", "rm", "build", "--worker", "scribe").code == 3
    undo = removed.err.removeprefix("Undo: guild ").split()
    assert guild(*undo).out == "make\n"
    assert guild("memory", "rm", "build", "--worker", "scribe", "--json").json["content"] == "make"


@pytest.mark.req("X-9")
def test_log_names_the_run_and_revert_restores(guild: Guild, scribe_project: Path, home: Home) -> None:
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    fact = ("fact", "--worker", "scribe")
    assert guild("memory", "log", *fact).out.startswith(f"worker/fact: written by scribe in {run}, 20")
    assert guild("memory", "write", "fact", "by a person", "--worker", "scribe").code == 0
    (file,) = home.path.rglob("fact.md")
    file.write_text("by hand")
    history = guild("memory", "log", *fact, "--json").json
    assert history["by_hand"] is True
    assert [(change["by"], change["run"]) for change in history["records"]] == [("person", None), ("worker", run)]
    assert guild("memory", "revert", *fact).out == "by a person\n"
    first_change = str(history["records"][-1]["id"])
    assert guild("memory", "revert", *fact, "--to", first_change, "--json").json["content"] == "by a worker"
    assert file.read_text() == "by a worker"
    changes = guild("memory", "log", *fact, "--json").json["records"]
    assert [change["action"] for change in changes] == ["revert", "revert", "edit", "write", "write"]
    assert "by hand" in guild("memory", "log", *fact).out, "the edit by hand was logged before the revert"
    unknown = guild("memory", "revert", *fact, "--to", "9999")
    assert unknown.code == 2
    assert "cannot revert worker/fact: change 9999 is unknown" in unknown.err


def test_revert_restores_a_removed_entry(guild: Guild, project: Path) -> None:
    guild("memory", "write", "build", "make")
    guild("memory", "rm", "build")
    assert guild("memory", "log", "build").out.startswith("project/build: removed by you, ")
    assert guild("memory", "revert", "build").out == "make\n"
    assert guild("memory", "log", "never").code == 3


def test_entry_created_by_hand_has_no_changes(guild: Guild, project: Path, home: Home) -> None:
    folder = home.path / "memory" / "global"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text("by hand")
    ran = guild("memory", "log", "mine", "--scope", "global")
    assert ran.out.startswith("global/mine: created by hand, ")
    assert len(ran.out.splitlines()) == 1


def test_ls_names_skipped_files(guild: Guild, project: Path, home: Home) -> None:
    folder = home.path / "memory" / "global"
    folder.mkdir(parents=True)
    (folder / "not an entry.txt").write_text("x")
    (folder / "link.md").symlink_to("/etc/passwd")
    err = guild("memory", "ls").err
    assert "Skipped global/link.md: not a regular file" in err
    assert "Skipped global/not an entry.txt: not a valid entry name" in err
    assert guild("memory", "show", "link", "--scope", "global").code == 2


@pytest.mark.req("WD-29")
@pytest.mark.parametrize("verb", ["show", "write", "rm", "log", "revert"])
@pytest.mark.parametrize(
    "key", ["../up", "/etc/passwd", "a/b", "", ".hidden", "a" * 65, "x.md", "a\nb", "\x1b[2J", "é"]
)
def test_hostile_keys_are_rejected(guild: Guild, project: Path, home: Home, verb: str, key: str) -> None:
    ran = guild("memory", verb, key, *(["x"] if verb == "write" else []))
    assert ran.code == 2
    assert "invalid memory key" in ran.err
    assert "\x1b" not in ran.err
    assert not list(home.path.rglob("*.md"))


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["k", ""], "", "invalid content: empty"),
        (["k", "-"], "  \n", "invalid content: empty"),
        (["k", "-"], "a\0b", "contains a NUL"),
        (["k", "-"], "\udcff\udcfe", "not UTF-8 text"),
        (["k", "-"], "x" * 100_001, "invalid content: 100,001 bytes"),
        (["compacted", "x"], "", "reserved for compaction"),
        (["k", "x", "--scope", "worker"], "", "requires a worker name"),
        (["k", "x", "--scope", "everyone"], "", "invalid choice: 'everyone'"),
        (["k", "x", "--worker", ""], "", "invalid worker name: empty"),
    ],
)
def test_invalid_writes_are_rejected(
    guild: Guild, project: Path, arguments: list[str], stdin: str, message: str
) -> None:
    ran = guild("memory", "write", *arguments, input=stdin)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_unknown_worker_is_not_found(guild: Guild, scribe_project: Path) -> None:
    ran = guild("memory", "ls", "--worker", "scrib")
    assert ran.code == 3
    assert "Did you mean 'scribe'?" in ran.err


def test_write_without_content_does_not_wait_for_the_terminal(project: Path, terminal: Callable[..., Terminal]) -> None:
    person = terminal("memory", "write", "k")
    code, _ = person.wait_exit()
    assert code == 2
    assert "no content given" in person.output


def test_empty_standard_input_is_a_usage_error(guild: Guild, project: Path) -> None:
    ran = guild("memory", "write", "k", "-", "--json", input="")
    assert json.loads(ran.out)["error"]["code"] == "usage"
