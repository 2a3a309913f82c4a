"""`guild demo` to its end: no key, no network, the real commands, and nothing left behind."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clis import claude_program
from tests.conftest import Ran

if TYPE_CHECKING:
    from tests.conftest import Guild

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def temporary(tmp_path: Path) -> dict[str, str]:
    """A place of its own for what a story makes."""
    place = tmp_path / "temporary"
    place.mkdir()
    return {"TMPDIR": str(place)}


@pytest.mark.req("X-10", "X-1", "X-2")
def test_a_team_reviews_a_change(guild: Guild, temporary: dict[str, str]) -> None:
    # What the person has set for other work has no part in the story.
    own = {"GUILDHALL_MODEL": "nobody:nothing", "GIT_DIR": "/nowhere", "GIT_CONFIG_COUNT": "x"}
    # Every process of this one is executed as a reader would execute it; those of the other stories are forked.
    process = guild.start("demo", env={**temporary, **own}, installed=True)
    out, err = process.communicate(timeout=200)
    _is_told(Ran(process.returncode, out, err), temporary)


@pytest.mark.req("X-14", "AW-22")
def test_the_same_team_is_executed_by_claude_code(guild: Guild, temporary: dict[str, str]) -> None:
    env = {**temporary, "GUILDHALL_CLAUDE": str(claude_program())}
    told = guild("demo", "--runtime", "claude", env=env, timeout=200)
    _is_told(told, temporary)
    assert "{runtime: claude, system_prompt: prompts/reviewer.md, tools: [Read]}" in told.out


def test_a_story_whose_program_is_not_there_says_so(guild: Guild, temporary: dict[str, str]) -> None:
    env = {**temporary, "GUILDHALL_CLAUDE": "/nowhere/claude"}
    told = guild("demo", "--runtime", "claude", env=env)
    assert told.code == 1
    assert "GUILDHALL_CLAUDE names /nowhere/claude, which does not exist" in told.err
    assert "pip install 'guildhall[claude]'" in told.err
    assert told.out == ""
    assert guild("demo", "--runtime", "claude", "--office").code == 2


def _is_told(told: Ran, temporary: dict[str, str]) -> None:
    """The story came to its end as it should, and left nothing behind."""
    assert told.code == 0, told
    for line in (
        "Everything is real but the model",
        "+shop/ @reviewer @coder",
        "- Result: **refuse it** (resolved, 2 of 3 voted)",
        "): coder wants to call Edit",
        "$ kill -9",
        "exited",
        "interrupted",
        "[coder] Run r-",
        "Reviewed, corrected and checked: the change can be merged.",
        "in 10 runs, and one Edit.",
        "+    if (percent < 0 || percent > 100) throw new RangeError",
        "Replay matches the recording",
        "+ You change code: as you like",
        "1 passed, 0 failed",
        "That was it",
    ):
        assert line in told.out, (line, told.out)
    assert "Needs you" not in told.out.partition("That was it")[2]
    halls = _halls(told.out)
    assert len(halls) == 2
    assert not any(_lives(pid) for pid in halls)
    assert list(Path(temporary["TMPDIR"]).iterdir()) == []


def test_a_story_that_is_broken_off_leaves_nothing(guild: Guild, temporary: dict[str, str]) -> None:
    telling = guild.start("demo", env=temporary)
    assert telling.stdout
    for line in telling.stdout:
        if "$ guild run" in line:  # the hall was started by the command before it
            break
    (home,) = Path(temporary["TMPDIR"]).glob("*/home")
    hall = int(re.findall(r'"pid": ?(\d+)', (home / "hall.json").read_text())[0])
    assert _lives(hall)
    telling.send_signal(signal.SIGTERM)
    telling.wait(20)
    assert telling.returncode == 130
    assert not _lives(hall)
    assert list(Path(temporary["TMPDIR"]).iterdir()) == []


def test_without_git_there_is_another_story(guild: Guild, temporary: dict[str, str]) -> None:
    told = guild("demo", env={**temporary, "PATH": temporary["TMPDIR"]})
    assert told.code == 1
    assert "needs git, which is not installed" in told.err
    assert "guild demo --office" in told.err


@pytest.mark.req("X-10")
def test_an_office_shares_its_work(guild: Guild, temporary: dict[str, str]) -> None:
    told = guild("demo", "--office", env=temporary, timeout=200)
    assert told.code == 0, told
    for line in (
        "Everything is real but the model",
        "[reader 3] → sandbox_read_text sandbox=inbox path=grace.txt",
        "): chief wants to call worker_create",
        "$ kill -9",
        "exited",
        "interrupted",
        "Done: 3 invoices, 255.50 in all.",
        "in 5 runs.",
        "worker  late-payers",
        "As I noted last time: Alan Turing pays only after a reminder.",
        "Replay matches the recording",
        "+ You are a quick reader.",
        "2 passed, 0 failed",
        "That was it",
    ):
        assert line in told.out, (line, told.out)
    assert not any(_lives(pid) for pid in _halls(told.out))
    assert list(Path(temporary["TMPDIR"]).iterdir()) == []


@pytest.mark.req("WKR-24", "WKR-28", "X-10")
def test_a_guild_works_in_a_repository(guild: Guild, temporary: dict[str, str]) -> None:
    own = {"GUILDHALL_MODEL": "nobody:nothing", "GIT_DIR": "/nowhere", "GIT_CONFIG_COUNT": "x"}
    told = guild("demo", "--guild", env={**temporary, **own}, timeout=200)
    assert told.code == 0, told
    for line in (
        "Everything is real but the model",
        "is blocked: A discount in the cart (coder).",
        "max_turns: the run has used its 2 turns",
        "by manager",
        "merged into the integration branch",
        "$ git commit -qam 'An empty cart costs nothing'",
        "$ kill -9",
        "exited",
        "Merge conflict",
        "merge conflict with claude/main: src/cart.js",
        "Created the review branch claude/review/",
        "+const DISCOUNT = 10; // percent",
        " export function total(prices = []) {",
        "That was it",
    ):
        assert line in told.out, (line, told.out)
    assert not any(_lives(pid) for pid in _halls(told.out))
    assert list(Path(temporary["TMPDIR"]).iterdir()) == []


def test_there_is_one_story_at_a_time(guild: Guild, temporary: dict[str, str]) -> None:
    for words in (("--guild", "--office"), ("--guild", "--runtime", "claude")):
        assert guild("demo", *words, env=temporary).code == 2


def _halls(told: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"kill -9 (\d+)|(?:process|pid) (\d+)", told) for pid in pid if pid}


def _lives(pid: int) -> bool:
    """Whether it is there and does something: whoever collects the dead may not have come by yet."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
