"""Every command and every output in the README and the tutorial is real."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program
from tests.pages import LANGUAGES, Reader, read_blocks, reader_environment

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.conftest import GuildWithHall

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
# Commands that the tests do not execute, with the reason.
NOT_EXECUTED = {
    "git clone REPOSITORY guildhall && cd guildhall": "needs the network",
    "make setup": "needs the network",
    "make demo": "tests/test_demo.py runs both demos",
    "make test": "runs these tests",
    "source .venv/bin/activate": "activates the environment of `make setup`",
}
REVIEW = """
workers:
  reviewer:
    - - {call: Read, with: {file_path: shop.py}}
      - call: channel_send
        with: {message: "@coder average() divides by zero for an empty list. Return 0 instead."}
      - {say: Reported.}
  coder:
    - - call: Edit
        with: {file_path: shop.py, old_string: "len(prices)", new_string: "len(prices) if prices else 0"}
      - {call: channel_send, with: {message: "Fixed: average() returns 0 for an empty list."}}
      - {say: Fixed.}
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def reader(guild_hall: GuildWithHall, tmp_path: Path) -> Generator[Reader]:
    """Return a reader in a home directory with a git identity."""
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.com\n")
    reader = Reader(home, tmp_path, reader_environment(guild_hall), skipped=NOT_EXECUTED)
    yield reader
    reader.close()


def test_the_tutorial_works(reader: Reader) -> None:
    reader.follow(TUTORIAL)


def test_the_first_example_of_the_readme_works(reader: Reader) -> None:
    reader.follow(TUTORIAL, "1. Install")
    reader.follow(TUTORIAL, "2. Your first worker", languages=["yaml"])
    with ScriptedServer(reader.folder / "scripts" / "clerk.yaml") as server:
        reader.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-clerk"}
        reader.follow(README, "An example")


def test_the_first_steps_of_the_readme_work(reader: Reader) -> None:
    reader.follow(README, "Try it from a fresh clone")


def test_the_team_of_the_readme_works(reader: Reader, tmp_path: Path) -> None:
    reader.follow(TUTORIAL, "1. Install")
    reader.follow(TUTORIAL, "6. A team", languages=["python"])
    (tmp_path / "review.yaml").write_text(REVIEW)
    with ScriptedServer(tmp_path / "review.yaml") as server:
        reader.env |= {
            "GUILDHALL_CODEX": str(codex_program()),
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_KEY": "script-reviewer",
            "GUILDHALL_CLAUDE": str(claude_program()),
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "ANTHROPIC_API_KEY": "script-coder",
        }
        reader.follow(README, "A team")


def test_the_repository_of_the_readme_works(reader: Reader) -> None:
    reader.follow(TUTORIAL, "1. Install")
    reader.follow(TUTORIAL, "6. A team", languages=["python"])
    reader.follow(TUTORIAL, "8. A repository", languages=["yaml", "sh"])
    reader.follow(README, "A repository")


def test_every_example_of_the_readme_is_in_a_section_that_is_tested() -> None:
    headings = {block.heading for block in read_blocks(README) if block.language in LANGUAGES}
    assert headings == {"An example", "Try it from a fresh clone", "A team", "A repository"}


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.name)
def test_every_block_is_executed_or_a_picture(page: Path) -> None:
    for block in read_blocks(page):
        if block.language in ("yaml", "python"):
            assert block.text.startswith("# "), f"line {block.line} does not name its file"
        elif block.language not in LANGUAGES:
            assert "guild " not in block.text.replace("guild (CLI)", ""), f"line {block.line} is not executed"


def test_every_command_that_is_not_executed_is_on_a_page() -> None:
    lines = [line for page in (README, TUTORIAL) for block in read_blocks(page) for line in block.text.splitlines()]
    commands = {line.partition(" #")[0].rstrip() for line in lines}
    assert NOT_EXECUTED.keys() - commands == set()


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("console\n$ guild --version\nguild 9.9.9", "guild 9.9.9"),
        ("console\n$ guild --version", "printed:\nguild "),
        ("console\n$ guild rename-me\n...\nRenamed.", "unknown command 'rename-me'"),
        ("console\n$ guild show r-7k2m9x4qpw\n...", "no earlier output has r-7k2m9x4qpw"),
        ("console\n$ echo r-aaaaaaaaaa r-bbbbbbbbbb\nr-7k2m9x4qpw r-7k2m9x4qpw", "no earlier output"),
        ("console\n$ printf 'r-%010d ' 1 2\nr-7k2m9x4qpw r-7k2m9x4qpw", "r-0000000002"),
        ("console\n$ false", "exit code 1"),
        ("sh\nguild rename-me", "guild rename-me ended with 2"),
        ("console\n$ read -p 'Sure? (y): ' a; echo $a\nSure? (y): y\nn", "printed:\nSure? (y): y\ny"),
        ("console\n$ cat    # terminal 1", "terminal 1 is left running"),
    ],
)
def test_a_wrong_example_fails(reader: Reader, tmp_path: Path, block: str, error: str) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n```{block}\n```\n")
    with pytest.raises(AssertionError) as found:
        reader.follow(tmp_path / "page.md")
    assert error in str(found.value)


def test_ids_and_amounts_of_a_page_match_those_of_the_program(reader: Reader, tmp_path: Path) -> None:
    page = """
```yaml
# notes/a.txt
one
```

```yaml
# notes/a.txt (add)
two
```

```sh
mkdir -p b && cd b
```

```console
$ printf 'r-%010d took 1.5 s, $0.1234\\n' 1; (exit 4)
r-7k2m9x4qpw took 0.3 s, $0.0001
$ echo $?
4
$ echo r-7k2m9x4qpw | sed 's/^r-0*1$/it is the same/'
it is the same
$ cat ../notes/a.txt
...
two
$ pwd
.../b
```
"""
    (tmp_path / "page.md").write_text(page)
    reader.follow(tmp_path / "page.md")
