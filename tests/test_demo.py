"""`guild demo` to its end: no key, no network, the real commands, and nothing is left."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clis import claude_program
from tests.conftest import CommandResult

if TYPE_CHECKING:
    from tests.conftest import Guild

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def demo_environment(tmp_path: Path) -> dict[str, str]:
    """Return variables that set a private folder for the files of a demo."""
    place = tmp_path / "temporary"
    place.mkdir()
    return {"TMPDIR": str(place)}


@pytest.mark.req("X-10", "X-1", "X-2")
def test_the_team_demo_reviews_a_change(guild: Guild, demo_environment: dict[str, str]) -> None:
    # Settings of the user for other work have no effect on the demo.
    own = {"GUILDHALL_MODEL": "nobody:nothing", "GIT_DIR": "/nowhere", "GIT_CONFIG_COUNT": "x"}
    # The processes of this demo are executed like those of a user. In the other demos they are forked.
    process = guild.start("demo", env={**demo_environment, **own}, installed=True)
    out, err = process.communicate(timeout=200)
    _check_team_demo(CommandResult(process.returncode, out, err), demo_environment)


@pytest.mark.req("X-14", "AW-22")
def test_the_team_demo_runs_with_claude_code(guild: Guild, demo_environment: dict[str, str]) -> None:
    env = {**demo_environment, "GUILDHALL_CLAUDE": str(claude_program())}
    result = guild("demo", "--runtime", "claude", env=env, timeout=200)
    _check_team_demo(result, demo_environment)
    assert "{runtime: claude, system_prompt: prompts/reviewer.md, tools: [Read]}" in result.out


def test_a_demo_with_a_missing_program_is_refused(guild: Guild, demo_environment: dict[str, str]) -> None:
    env = {**demo_environment, "GUILDHALL_CLAUDE": "/nowhere/claude"}
    result = guild("demo", "--runtime", "claude", env=env)
    assert result.code == 1
    assert "GUILDHALL_CLAUDE is /nowhere/claude, which does not exist" in result.err
    assert "pip install 'guildhall[claude]'" in result.err
    assert result.out == ""
    assert guild("demo", "--runtime", "claude", "--office").code == 2


def _check_team_demo(result: CommandResult, demo_environment: dict[str, str]) -> None:
    """Check that the demo of a team succeeded and left nothing."""
    assert result.code == 0, result
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
        assert line in result.out, (line, result.out)
    assert "Needs you" not in result.out.partition("That was it")[2]
    halls = _find_halls(result.out)
    assert len(halls) == 2
    assert not any(_is_alive(pid) for pid in halls)
    assert list(Path(demo_environment["TMPDIR"]).iterdir()) == []


def test_an_interrupted_demo_leaves_nothing(guild: Guild, demo_environment: dict[str, str]) -> None:
    demo = guild.start("demo", env=demo_environment)
    assert demo.stdout
    for line in demo.stdout:
        if "$ guild run" in line:  # the previous command started the hall
            break
    (home,) = Path(demo_environment["TMPDIR"]).glob("*/home")
    hall = int(re.findall(r'"pid": ?(\d+)', (home / "hall.json").read_text())[0])
    assert _is_alive(hall)
    demo.send_signal(signal.SIGTERM)
    demo.wait(20)
    assert demo.returncode == 130
    assert not _is_alive(hall)
    assert list(Path(demo_environment["TMPDIR"]).iterdir()) == []


def test_a_demo_without_git_suggests_another_demo(guild: Guild, demo_environment: dict[str, str]) -> None:
    result = guild("demo", env={**demo_environment, "PATH": demo_environment["TMPDIR"]})
    assert result.code == 1
    assert "cannot run this demo: git is not installed" in result.err
    assert "guild demo --office" in result.err


@pytest.mark.req("X-10")
def test_the_office_demo_delegates_its_work(guild: Guild, demo_environment: dict[str, str]) -> None:
    result = guild("demo", "--office", env=demo_environment, timeout=200)
    assert result.code == 0, result
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
        assert line in result.out, (line, result.out)
    assert not any(_is_alive(pid) for pid in _find_halls(result.out))
    assert list(Path(demo_environment["TMPDIR"]).iterdir()) == []


@pytest.mark.req("WKR-24", "WKR-28", "X-10")
def test_the_guild_demo_works_in_a_repository(guild: Guild, demo_environment: dict[str, str]) -> None:
    own = {"GUILDHALL_MODEL": "nobody:nothing", "GIT_DIR": "/nowhere", "GIT_CONFIG_COUNT": "x"}
    result = guild("demo", "--guild", env={**demo_environment, **own}, timeout=200)
    assert result.code == 0, result
    for line in (
        "Everything is real but the model",
        "is blocked: A discount in the cart (coder).",
        "max_turns: the run has reached its limit of 2 turns",
        "by manager",
        "merged into claude/main: 1 file changed, +",
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
        assert line in result.out, (line, result.out)
    assert not any(_is_alive(pid) for pid in _find_halls(result.out))
    assert list(Path(demo_environment["TMPDIR"]).iterdir()) == []


def test_two_demos_cannot_be_selected(guild: Guild, demo_environment: dict[str, str]) -> None:
    for words in (("--guild", "--office"), ("--guild", "--runtime", "claude")):
        assert guild("demo", *words, env=demo_environment).code == 2


def _find_halls(output: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"kill -9 (\d+)|(?:process|pid) (\d+)", output) for pid in pid if pid}


def _is_alive(pid: int) -> bool:
    """Return True if the process runs. A zombie does not count."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
