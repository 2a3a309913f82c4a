"""Help pages: their content, and that printing them imports nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.cli import command_table
from guildhall.cli.argument_parser import parser_of

if TYPE_CHECKING:
    from tests.conftest import Guild

WITH_FUNCTION = [command for command in command_table.COMMANDS if command.function]
MAX_LINES = 35
MAX_COLUMNS = 110
DEFINED = {"ID", "RUN", "ASK", "COMMISSION", "MEETING", "TARGET", "WORKER"}
GUILD = Path(sys.executable).with_name("guild")
HEAVY = ("pydantic", "pydantic_ai", "sqlalchemy", "ruamel", "httpx2", "starlette", "asyncio", "dataclasses", "argparse")


def placeholders(text: str) -> set[str]:
    """Return the words in capitals, without those of options."""
    return set(re.findall(r"(?<![-\w])[A-Z]{2,}\b", re.sub(r"--[a-z-]+ [A-Z]+", "", text)))


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["--debug", "--help"]])
def test_the_first_page_is_short_and_names_the_demo(guild: Guild, words: list[str]) -> None:
    ran = guild(*words)
    assert ran.code == 0
    assert len(ran.out.splitlines()) <= MAX_LINES
    assert max(map(len, ran.out.splitlines())) <= MAX_COLUMNS
    assert "guild demo" in ran.out
    assert ran.err == ""


def test_a_line_of_the_first_page_has_one_command_with_the_placeholders_of_the_table(guild: Guild) -> None:
    lines = [line[2:28] for line in guild().out.splitlines() if re.match("  [a-z]", line)]
    rows = {row.name: row for row in WITH_FUNCTION}
    assert len(lines) > 15
    for line in lines:
        name, *usage = line.split()
        assert placeholders(" ".join(usage)) <= placeholders(rows[name].usage), line


@pytest.mark.parametrize("row", WITH_FUNCTION, ids=lambda row: row.name)
def test_the_table_and_the_page_of_a_command_have_the_same_placeholders(row: command_table.Row) -> None:
    parser = parser_of(row, getattr(import_module(row.module), row.function))
    names = [str(action.metavar) for action in parser._actions if not action.option_strings]
    assert placeholders(" ".join(names)) & DEFINED == placeholders(row.usage) & DEFINED


def test_the_pages_define_the_placeholders(guild: Guild) -> None:
    for words in ([], ["help", "all"]):
        _, foot = guild(*words).out.split("\nID: ")
        assert set(re.findall(r"\w+", foot.lower())) >= {name.lower() for name in DEFINED - {"ID"}}


def test_help_of_a_command_lists_its_subcommands(guild: Guild) -> None:
    assert "  ls jobs " in guild("ls", "--help").out
    assert guild("ls").code == 0


def test_help_all_shows_every_command(guild: Guild) -> None:
    out = guild("help", "all").out
    for command in WITH_FUNCTION:
        assert f"  {command.name} " in out


@pytest.mark.parametrize("words", [["worker"], ["worker", "--help"], ["help", "worker"]])
def test_a_command_group_lists_its_subcommands(guild: Guild, words: list[str]) -> None:
    ran = guild(*words)
    assert ran.code == 0
    assert [line.split()[1] for line in ran.out.splitlines() if line.startswith("  worker ")] == [
        command.name.split()[1] for command in command_table.family("worker")
    ]


@pytest.mark.parametrize("command", WITH_FUNCTION, ids=lambda command: command.name)
def test_each_command_explains_itself_with_an_example(guild: Guild, command: command_table.Row) -> None:
    for words in (["help", *command.name.split()], [*command.name.split(), "--help"]):
        ran = guild(*words)
        assert ran.code == 0
        assert ran.out.startswith(f"usage: guild {command.name}")
        assert command.example in ran.out
        assert ran.err == ""


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["rnu", "x"], "unknown command 'rnu'", "Did you mean `guild run`?"),
        (["help", "rnu"], "unknown command 'rnu'", "Did you mean `guild run`?"),
        (["worker", "lss"], "unknown command 'worker lss'", "Did you mean `guild worker ls`?"),
        (["xyzzy"], "unknown command 'xyzzy'", "`guild help all`"),
        (["--vresion"], "unknown option '--vresion'", "`guild --help`"),
        (["ls", "--jsno"], "ls: unknown option '--jsno'", "Did you mean '--json'?"),
        (["ls", "--qqqqqqqq"], "ls: unknown option '--qqqqqqqq'", "See guild ls --help."),
        (["ls", "a", "more"], "ls: unexpected argument 'more'", "quotes"),
        (["show"], "show: the following arguments are required: ID", "guild show --help"),
        (["run", "w", "x", "--budget", "-1"], "--budget", "guild run --help"),
        (["run", "w", "x", "--budget", "much"], "'much' is not an amount in dollars", "guild run --help"),
        (["run", "w", "x", "--max-turns", "0"], "'0' is not a whole number from 1 to 999,999,999", "guild run --help"),
        (["run", "w", "x", "--max-turns", "9" * 5000], "is not a whole number from 1", "guild run --help"),
        (["run", "w", "x", "--output", "xml"], "invalid choice: 'xml'", "guild run --help"),
        (["run", "w", "x", "--approve-all", "--strict"], "not allowed with", "guild run --help"),
        (["completion", "tcsh"], "invalid choice: 'tcsh'", "guild completion --help"),
        ([""], "unknown command ''", "guild help all"),
    ],
)
def test_a_wrong_word_is_reported_with_a_suggestion(guild: Guild, words: list[str], message: str, hint: str) -> None:
    ran = guild(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("guild: ")
    assert message in ran.err
    assert hint in ran.err
    assert "Traceback" not in ran.err


def test_a_usage_error_is_json_if_json_is_requested(guild: Guild) -> None:
    ran = guild("ls", "--all", "--json", "a", "more")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "usage"
    assert "more" in ran.json["error"]["message"]
    assert "guild: " in ran.err


@pytest.mark.parametrize("words", [["--output", "stream-json"], ["--output=stream-json"]])
def test_a_run_that_did_not_start_has_a_complete_json_result(guild: Guild, words: list[str]) -> None:
    last = guild("run", "", "x", *words).json
    assert set(last) == {"type", "run", "status", "output", "error", "usage", "cost_usd", "asks"}
    assert (last["type"], last["run"], last["error"]["code"], last["asks"]) == ("result", None, "usage", [])


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_is_printed(guild: Guild, flag: str) -> None:
    ran = guild(flag)
    assert ran.out.startswith("guild 0.")
    assert ran.code == 0


def test_debug_prints_the_traceback(guild: Guild, project: Path) -> None:
    ran = guild("show", "nonsense", "--debug")
    assert ran.code == 3
    assert "Traceback" in ran.err
    assert "unknown id or target 'nonsense'" in ran.err


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from guildhall.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"], capture_output=True, text=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("redirect", [">&-", "> /dev/full", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", ["--help", "help run", "completion fish", "show nonsense --json"])
def test_closed_and_full_streams_break_nothing(guild: Guild, words: str, redirect: str) -> None:
    done = subprocess.run(
        f"{GUILD} {words} {redirect}", shell=True, capture_output=True, text=True, env=guild.environment()
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode in (0, 1, 3)


def test_a_closed_pipe_is_not_an_error(guild: Guild) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {GUILD} completion fish | head -1"],
        capture_output=True,
        text=True,
        env=guild.environment(),
    )
    assert done.stdout == "# guild completion for fish\n"
    assert done.stderr == ""
    assert done.returncode == 0
