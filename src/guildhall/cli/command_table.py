"""Command table: reads the commands of `guild` from `commands.tsv` and prints the pages of help.

Shell completion and the documentation use the table too. Does not parse arguments (see `cli.arguments`).

Invariant: it imports nothing, so that `guild --help` takes no longer than Python itself.
"""

from __future__ import annotations

_PACKAGE = "guildhall.cli.commands"


class Row:
    """One command. Not a dataclass: the import of `dataclasses` takes as long as the whole page of help."""

    __slots__ = ("example", "function", "group", "module", "name", "summary", "usage")

    def __init__(self, name: str, usage: str, summary: str, example: str, function: str, group: str) -> None:
        self.name = name
        self.usage = usage
        self.summary = summary
        self.example = example
        self.group = group
        # No function: the command only has subcommands, or is `help`.
        module, _, self.function = function.partition(":")
        self.module = f"{_PACKAGE}.{module}"


def _load() -> tuple[Row, ...]:
    path = f"{__file__.removesuffix('command_table.py')}commands.tsv"
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer than the whole page of help
        rows = file.read().splitlines()
    return tuple(Row(*row.split("\t")) for row in rows[1:])


COMMANDS = _load()

_HEAD = """Run AI agents defined in files, with permissions, budgets, approvals and a durable log.
Usage: guild COMMAND [OPTIONS]
"""
_FIRST_PAGE = """
Get started
  demo                      Play a guided demo (no API key, no network)
  init [DIR]                Create a project folder with an example worker
  doctor                    Check keys, sandbox, git and installed runtimes
Work
  run WORKER|FILE [INPUT]   Run a worker, or a workflow (a team of agents) until it is idle
  start WORKER|FILE         Start a workflow or a worker and keep it alive
  send TARGET MESSAGE       Send a message to an agent or a workflow
  dispatch WORKER TASK      Start a background job; with --project, on a git repository
  meet WORKER               Talk with a worker; leave and continue later
Watch and decide
  ls                        List what needs you, what is running and recent results
  show ID|TARGET            Show a run, a job, an ask or a workflow in full
  log ID|TARGET [-f]        Print every recorded step
  wait ID|TARGET            Wait for the result and print it
  answer [ASK] [ANSWER]     Answer an approval (yes, no, always) or a question
  resume ID|TARGET          Continue a paused, interrupted, failed or limited run
  stop ID|TARGET            Cancel a run, a job, a workflow or an agent
  cost                      Show tokens and cost
Verify
  plan WORKER|FILE          Show what it could do and spend, without running it
  test                      Run recorded tests; `test add ID` records one
  replay ID|TARGET          Repeat a run offline and show the first difference
"""
_FOOT = """
An ID begins with r- (RUN), a- (ASK), j- (job), c- (COMMISSION) or t- (MEETING). TARGET: agent@workflow:tag
Options: --help, --version, --json (most commands; also before the command), --debug (show tracebacks)
More: guild help all   One command: guild help COMMAND   New here: guild demo
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
    """Return the page that `guild` prints."""
    return _HEAD + _FIRST_PAGE + _FOOT


def all_pages() -> str:
    """Return the page that `guild help all` prints, grouped like the table."""
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
