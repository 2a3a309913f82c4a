"""Command table: reads the commands of `guild` from `commands.tsv` and prints the pages of help.

Shell completion and the documentation use the table too. Does not parse arguments (see `cli.argument_parser`).

Invariant: the module imports nothing, so that `guild --help` takes no longer than Python itself.
"""

from __future__ import annotations

_PACKAGE = "guildhall.cli.commands"


class Row:
    """A command. Not a dataclass, because the import of `dataclasses` takes as long as the whole page of help."""

    __slots__ = ("example", "function", "group", "module", "name", "summary", "usage")

    def __init__(self, name: str, usage: str, summary: str, example: str, function: str, group: str) -> None:
        self.name = name
        self.usage = usage
        self.summary = summary
        self.example = example
        self.group = group
        # The function is empty for `help` and for commands that only have subcommands.
        module, _, self.function = function.partition(":")
        self.module = f"{_PACKAGE}.{module}"


def _load() -> tuple[Row, ...]:
    path = f"{__file__.removesuffix('command_table.py')}commands.tsv"
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer than the whole page of help
        rows = file.read().splitlines()
    return tuple(Row(*row.split("\t")) for row in rows[1:])


COMMANDS = _load()

_HEAD = """Run AI agents defined in files, with permissions, budgets, approvals and a durable log.
Usage: guild COMMAND [ARGUMENTS] [OPTIONS]
"""
_FIRST_PAGE = """
Get started
  demo                      Run a guided demo (no API key, no network)
  init [DIR]                Create a project folder with an example worker
  doctor                    Check API keys, confinement, git and agent programs (Claude Code, Codex, ...)
Work
  run WORKER|FILE [INPUT]   Run a worker (one agent) to completion, or a workflow (a team) until all are idle
  start WORKER|FILE         Start a worker or workflow that waits for messages (guild send) until guild stop
  send TARGET MESSAGE       Send a message to an agent, or to a workflow: to each @name in it, or to all
  dispatch WORKER TASK      Start a background job; with --project, a commission on a git repository
  meet WORKER               Talk with a worker about this folder's registered project; continue: guild meet ID
Watch and decide
  ls                        List open asks, active work and recent results
  show ID|TARGET            Show a run, job, commission, meeting, ask, workflow or agent in full
  log ID|TARGET [-f]        Print every step; -f also prints new steps until the run ends or waits for you
  wait ID|TARGET            Wait for the result and print it (exit code 4: an answer is needed)
  answer [ASK] [ANSWER]     Approve a call, answer a question, raise a limit (omit ASK if only one is open)
  resume ID|TARGET          Continue a run that was paused or interrupted, or failed, for example at a limit
  stop ID|TARGET            Cancel a run, job or workflow permanently: it cannot be resumed
  cost [ID|TARGET]          Show tokens and cost of all runs, or of one run, job or workflow
Verify
  plan WORKER|FILE          Show what a worker or workflow could do and spend, without running it
  test                      Run the tests in tests/; `guild test add RUN` creates one from a run
  replay ID|TARGET          Repeat a run offline: recorded responses and tool results, current worker files
"""
_FOOT = """
ID: r- run, a- ask (a request that waits for your answer), j- job, c- commission (job on a git repository),
    t- meeting (conversation with a worker). A unique prefix is enough; `last` is the newest run.
WORKER: a name (guild worker ls) or a worker file. FILE: a workflow file. TARGET: AGENT@WORKFLOW:TAG,
    @WORKFLOW:TAG (the whole team), or AGENT (started alone). WORKFLOW is the file name without .yaml. TAG
    names an instance (guild start FILE --tag TAG; default: main). In other projects: AGENT@r-..., @r-...
Ctrl-C in run, resume and answer pauses the run (continue: guild resume). In log -f and wait it does not.
Options: --help, --version, --json (most commands), --debug. --json and --debug may also stand before COMMAND.
All commands: guild help all   One command: guild help COMMAND   New here: guild demo
"""


def find(words: list[str]) -> tuple[Row | None, int]:
    """Return the command that the words begin with, and the number of words in its name."""
    for length in (2, 1):
        name = " ".join(words[:length])
        for row in COMMANDS:
            if row.name == name and len(words) >= length:
                return row, length
    return None, 0


def family(name: str) -> list[Row]:
    """Return the subcommands of a command, such as `worker ls` and `worker show`."""
    return [row for row in COMMANDS if row.name.startswith(f"{name} ")]


def first_page() -> str:
    """Return the page that `guild --help` prints."""
    return _HEAD + _FIRST_PAGE + _FOOT


def full_page() -> str:
    """Return the page that `guild help all` prints, in the groups of the table."""
    rows = [row for row in COMMANDS if row.function or row.name == "help"]
    width = max(len(f"{row.name} {row.usage}") for row in rows)
    groups = dict.fromkeys(row.group for row in rows)
    parts = [f"\n{group}\n{_lines([row for row in rows if row.group == group], width)}" for group in groups]
    return _HEAD + "".join(parts) + _FOOT


def family_page(name: str) -> str:
    """Return the page of a command with subcommands, such as `guild worker`."""
    return f"usage: guild {name} VERB [...]\n\n{family_lines(name)}\nOne verb: guild help {name} VERB\n"


def family_lines(name: str) -> str:
    """Return one line for each subcommand, or nothing if the command has none."""
    rows = family(name)
    return _lines(rows) if rows else ""


def _lines(rows: list[Row], width: int = 0) -> str:
    heads = [f"{row.name} {row.usage}".rstrip() for row in rows]
    width = width or max(map(len, heads))
    return "".join(f"  {head:<{width}}  {row.summary}\n" for head, row in zip(heads, rows, strict=True))
