"""Every command and every output on the pages for newcomers is real."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program
from tests.pages import Reader, read_blocks

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
    "make demo": "tests/test_demo.py plays both stories",
    "make test": "runs these tests",
    "source .venv/bin/activate": "selects the environment that `make setup` has made",
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
    """A reader at home, with git set up."""
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.com\n")
    env = {**guild_hall.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    reader = Reader(home, tmp_path, env, skipped=NOT_EXECUTED)
    yield reader
    reader.close()


def test_the_tutorial_is_true(reader: Reader) -> None:
    reader.follow(TUTORIAL)


def test_the_first_look_in_the_readme_is_true(reader: Reader) -> None:
    reader.follow(TUTORIAL, "1. Install")
    reader.follow(TUTORIAL, "2. Your first worker", languages=["yaml"])
    with ScriptedServer(reader.folder / "scripts" / "clerk.yaml") as server:
        reader.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-clerk"}
        reader.follow(README, "A 20-second look")


def test_the_first_steps_in_the_readme_are_true(reader: Reader) -> None:
    reader.follow(README, "Try it from a fresh clone")


def test_the_team_in_the_readme_is_true(reader: Reader, tmp_path: Path) -> None:
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


def test_the_repository_in_the_readme_is_true(reader: Reader) -> None:
    reader.follow(TUTORIAL, "1. Install")
    reader.follow(TUTORIAL, "6. A team", languages=["python"])
    reader.follow(TUTORIAL, "8. A repository", languages=["yaml", "sh"])
    reader.follow(README, "A repository")


def test_every_command_that_is_not_executed_is_on_a_page() -> None:
    lines = [line for page in (README, TUTORIAL) for block in read_blocks(page) for line in block.text.splitlines()]
    commands = {line.partition(" #")[0].rstrip() for line in lines}
    assert NOT_EXECUTED.keys() - commands == set()
