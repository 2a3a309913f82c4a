"""`guild memory`: what workers remember, for the person: look, write, take back, and see who it was."""

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

WORKER = "name: scribe\ninstructions: Remember what you are told.\n"
SCRIPT = """repeat: true
workers:
  scribe:
    - - {call: memory_write, with: {scope: worker, key: fact, content: by a worker}}
      - {say: noted}
"""


@pytest.fixture
def remembering(project: Path) -> Path:
    """A project with a worker that remembers one thing in each run."""
    make_project(project, worker=WORKER, script=SCRIPT)
    return project


def test_nothing_is_remembered_yet(guild: Guild, project: Path) -> None:
    ran = guild("memory", "ls")
    assert (ran.code, ran.out, ran.err) == (0, "", "Nothing is remembered here.\n")
    assert guild("memory", "ls", "--json").json == {"entries": [], "skipped": []}
    missing = guild("memory", "show", "fact", "--json")
    assert missing.code == 3
    assert missing.json["error"]["message"] == "there is no entry 'fact' in the project memory"


def test_the_family_shows_its_verbs(guild: Guild) -> None:
    out = guild("memory").out
    for verb in ("ls", "show", "write", "rm", "blame", "revert"):
        assert f"  memory {verb} " in out


def test_written_listed_shown_and_removed(guild: Guild, project: Path) -> None:
    assert guild("memory", "write", "build", "make").out == "project/build is written\n"
    assert guild("memory", "write", "style", "-", "--scope", "global", input="short\nand plain\n").code == 0
    assert guild("memory", "write", "third", "--scope", "global", "--json", input="from a pipe").json["size"] == 11
    assert guild("memory", "show", "build").out == "make\n"
    assert guild("memory", "show", "style", "--scope", "global", "--json").json["content"] == "short\nand plain\n"
    listed = guild("memory", "ls").out.splitlines()
    assert [line.split()[:2] for line in listed] == [
        ["scope", "key"],
        ["global", "third"],
        ["global", "style"],
        ["project", "build"],
    ]
    assert [e["key"] for e in guild("memory", "ls", "--scope", "project", "--json").json["entries"]] == ["build"]
    removed = guild("memory", "rm", "build")
    assert removed.out == "project/build is removed\n"
    assert "guild memory revert build" in removed.err
    assert guild("memory", "show", "build").code == 3
    assert guild("memory", "rm", "build").code == 3
    assert guild("memory", "rm", "style", "--scope", "global", "--json").json["content"] == "short\nand plain\n"


@pytest.mark.req("X-9")
def test_blame_names_the_run_and_revert_brings_back(guild: Guild, remembering: Path, home: Home) -> None:
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    mine = ("--worker", "scribe")
    blame = guild("memory", "blame", "fact", *mine)
    assert blame.out.startswith(f"worker/fact: written by scribe in {run}, 20")
    assert guild("memory", "write", "fact", "by a person", *mine).code == 0
    (file,) = home.path.rglob("fact.md")
    file.write_text("by hand")
    told = guild("memory", "blame", "fact", *mine, "--json").json
    assert told["by_hand"] is True
    assert [(record["by"], record["run"]) for record in told["records"]] == [("person", None), ("worker", run)]
    assert guild("memory", "revert", "fact", *mine).out == "by a person\n"
    number = told["records"][-1]["id"]
    back = guild("memory", "revert", "fact", *mine, "--to", str(number), "--json")
    assert back.json["content"] == "by a worker"
    assert file.read_text() == "by a worker"
    records = guild("memory", "blame", "fact", *mine, "--json").json["records"]
    assert [record["action"] for record in records] == ["revert", "revert", "edit", "write", "write"]
    assert "by hand" in guild("memory", "blame", "fact", *mine).out, "what the hand wrote is not lost"
    wrong = guild("memory", "revert", "fact", *mine, "--to", "9999")
    assert wrong.code == 2
    assert "there is no content number 9999" in wrong.err


def test_what_was_removed_comes_back(guild: Guild, project: Path) -> None:
    guild("memory", "write", "build", "make")
    guild("memory", "rm", "build")
    assert guild("memory", "blame", "build").out.startswith("project/build: removed by you, ")
    assert guild("memory", "revert", "build").out == "make\n"
    assert guild("memory", "blame", "never").code == 3


def test_an_entry_made_by_hand_has_no_record(guild: Guild, project: Path, home: Home) -> None:
    folder = home.path / "memory" / "global"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text("by hand")
    (folder / "not an entry.txt").write_text("x")
    (folder / "link.md").symlink_to("/etc/passwd")
    ran = guild("memory", "blame", "mine", "--scope", "global")
    assert ran.out.startswith("global/mine: made by hand, ")
    assert len(ran.out.splitlines()) == 1
    listed = guild("memory", "ls")
    assert "no entry: global/link.md: it is not a regular file" in listed.err
    assert "no entry: global/not an entry.txt: its name is not that of an entry" in listed.err
    assert guild("memory", "show", "link", "--scope", "global").code == 2


@pytest.mark.req("WD-29")
@pytest.mark.parametrize("verb", ["show", "write", "rm", "blame", "revert"])
@pytest.mark.parametrize(
    "key", ["../up", "/etc/passwd", "a/b", "", ".hidden", "a" * 65, "x.md", "a\nb", "\x1b[2J", "é"]
)
def test_hostile_keys_are_refused(guild: Guild, project: Path, home: Home, verb: str, key: str) -> None:
    ran = guild("memory", verb, key, *(["x"] if verb == "write" else []))
    assert ran.code == 2
    assert "cannot be the key of a memory entry" in ran.err
    assert "\x1b" not in ran.err
    assert not list(home.path.rglob("*.md"))


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["k", ""], "", "the content is empty"),
        (["k", "-"], "  \n", "the content is empty"),
        (["k", "-"], "a\0b", "NUL"),
        (["k", "-"], "\udcff\udcfe", "half characters"),
        (["k", "-"], "x" * 100_001, "the content has 100,001 bytes"),
        (["compacted", "x"], "", "is kept for compaction"),
        (["k", "x", "--scope", "worker"], "", "whose memory is meant?"),
        (["k", "x", "--scope", "everyone"], "", "invalid choice: 'everyone'"),
        (["k", "x", "--worker", ""], "", "the worker's name is empty"),
    ],
)
def test_what_cannot_be_kept_is_refused(guild: Guild, project: Path, words: list[str], text: str, said: str) -> None:
    ran = guild("memory", "write", *words, input=text)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_worker_that_does_not_exist_has_no_memory(guild: Guild, remembering: Path) -> None:
    ran = guild("memory", "ls", "--worker", "scrib")
    assert ran.code == 3
    assert "Did you mean 'scribe'?" in ran.err


def test_at_a_terminal_nothing_is_read_that_was_not_asked_for(project: Path, terminal: Callable[..., Terminal]) -> None:
    person = terminal("memory", "write", "k")
    code, _ = person.ends()
    assert code == 2
    assert "there is nothing to remember" in person.seen


def test_standard_input_that_cannot_be_read(guild: Guild, project: Path) -> None:
    ran = guild("memory", "write", "k", "-", "--json", input="")
    assert json.loads(ran.out)["error"]["code"] == "usage"
