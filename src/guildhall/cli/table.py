"""Every command by name: the pages of help, the completion and the documentation are made from this table.

It imports nothing but its rows, so that `guild --help` costs no more than Python itself.
"""

from __future__ import annotations

from guildhall.cli.command import Command
from guildhall.cli.table_guild import GUILD
from guildhall.cli.table_parts import PARTS

FIRST_PAGE = 14  # commands at most

COMMANDS = (
    Command(
        "demo",
        "[--guild | --office | --runtime NAME]",
        "see the whole machinery work, without a key or a network",
        example="guild demo",
        first=True,
    ),
    Command(
        "init",
        "[DIR] [--example review|guild|office]",
        "make a starter folder with a worker that runs at once",
        example="guild init my-guild",
        first=True,
    ),
    Command(
        "run",
        "WORKER|FILE [INPUT|-]",
        "give a worker something to do, or run a workflow until it is quiet",
        example='guild run greeter "Say hello to Ada"',
        first=True,
    ),
    Command(
        "start",
        "FILE|WORKER [--background]",
        "start a workflow, or a worker that stands alone, until it is stopped",
        example="guild start review.yaml --tag pr-123 --background",
    ),
    Command(
        "send",
        "TARGET MESSAGE|-",
        "say something to an agent or a workflow",
        example='guild send coder@review:pr-123 "fix the bug"',
    ),
    Command(
        "ls",
        "[TARGET] [--all]",
        "what needs you, what is working, what is done",
        example="guild ls --all",
        first=True,
    ),
    Command(
        "show",
        "ID|TARGET",
        "all about one run, job, ask, workflow or agent",
        example="guild show r-7k2m9x4qpw",
        first=True,
    ),
    Command(
        "log",
        "ID|TARGET [-f]",
        "what happened in a run or a workflow, line by line",
        example="guild log r-7k2m9x4qpw -f",
        first=True,
    ),
    Command(
        "wait",
        "ID|TARGET",
        "until a run or a workflow is done, or needs you",
        example="guild wait @review:pr-123 --timeout 10m",
    ),
    Command(
        "answer",
        "ASK [yes|no|session|TEXT]",
        "answer what a run waits for, and let it go on",
        example='guild answer a-3h8n5w2kcd no --note "not that file"',
        first=True,
    ),
    Command(
        "resume",
        "ID",
        "go on with a run that was parked, lost or stopped by a limit",
        example="guild resume r-7k2m9x4qpw --max-turns 300",
        first=True,
    ),
    Command(
        "stop",
        "TARGET|RUN|--all",
        "end a run, a workflow or one agent of it for good",
        example="guild stop @review:pr-123",
    ),
    Command(
        "dispatch",
        "WORKER TASK|- [--wait]",
        "hand a task over and get the id of the job",
        example='guild dispatch researcher "Compare the two licences" --description licences',
    ),
    Command("job", "ls|show|result|...", "the jobs: list, look, result, cancel", example="guild job ls"),
    Command("job ls", "", "the jobs, newest first", example="guild job ls --filter '*report*'"),
    Command(
        "job show",
        "JOB",
        "how a job stands: summary, questions, decisions",
        example="guild job show j-7k2m9x4qpw",
    ),
    Command("job result", "JOB", "what came out of a job", example="guild job result j-7k2m9x4qpw"),
    Command("job cancel", "JOB", "end a job for good", example="guild job cancel j-7k2m9x4qpw"),
    Command(
        "job rm",
        "JOB [--force]",
        "delete a job with all that it held",
        example="guild job rm j-7k2m9x4qpw",
    ),
    Command(
        "rm",
        "JOB [--force]",
        "short for `guild job rm JOB`",
        example="guild rm j-7k2m9x4qpw",
        module="job",
    ),
    Command(
        "commission",
        "new|ls|show|dispatch|...",
        "work on a project: commission, watch, cancel, try anew",
        example="guild commission ls",
    ),
    Command(
        "commission new",
        "--worker NAME PROMPT|- [--dispatch]",
        "commission a piece of work on a project",
        example='guild commission new --worker writer "Write the changelog" --artifact CHANGELOG.md --dispatch',
    ),
    Command(
        "commission edit",
        "COMMISSION [--prompt P] [...]",
        "ask for something else; one under way begins anew",
        example='guild commission edit c-7k2m9x4qpw --prompt "In German, please"',
    ),
    Command(
        "commission ls",
        "[--project NAME] [--status S]",
        "the commissions, in the order of their creation",
        example="guild commission ls --status blocked",
    ),
    Command(
        "commission show",
        "COMMISSION",
        "how one stands: timeline, questions, decisions, what it waits for",
        example="guild commission show c-7k2m9x4qpw",
    ),
    Command(
        "commission dispatch",
        "COMMISSION [--wait]",
        "let one begin, as soon as its turn comes",
        example="guild commission dispatch c-7k2m9x4qpw --wait",
    ),
    Command(
        "commission cancel",
        "COMMISSION [--reason WHY]",
        "end one; what it did stays on its branch",
        example="guild commission cancel c-7k2m9x4qpw --reason 'not now'",
    ),
    Command(
        "commission redispatch",
        "COMMISSION [--wait]",
        "try one anew that has failed or was cancelled, on a new branch",
        example="guild commission redispatch c-7k2m9x4qpw",
    ),
    Command(
        "commission abandon",
        "COMMISSION [--reason WHY]",
        "give one up for good",
        example="guild commission abandon c-7k2m9x4qpw",
    ),
    Command(
        "commission rm",
        "COMMISSION",
        "take one that is over off the record; its artifact and its work stay",
        example="guild commission rm c-7k2m9x4qpw",
    ),
    Command(
        "schedule",
        "TARGET set WHEN | show | clear",
        "when an agent wakes by itself",
        example='guild schedule reviewer@review set 5m --prompt "anything new?"',
    ),
    Command(
        "replay",
        "RUN",
        "do a run again on its recorded answers, and show the first difference",
        example="guild replay r-7k2m9x4qpw",
        first=True,
    ),
    Command(
        "serve",
        "WORKER [--port N]",
        "offer a worker at a port, as a guild member is",
        example="guild serve reviewer --port 7500",
    ),
    Command(
        "mcp", "", "the hall as tools of Claude Code, Cursor and others", example="claude mcp add guild -- guild mcp"
    ),
    Command("cost", "[TARGET]", "what the runs used, by worker and model", example="guild cost", first=True),
    Command("worker", "ls|show|new|...", "the workers: list, make, check, lock", example="guild worker ls", first=True),
    Command(
        "memory",
        "ls|show|write|...",
        "read and change what workers remember",
        example="guild memory ls",
        first=True,
    ),
    Command("doctor", "", "check whether everything is there that is needed", example="guild doctor", first=True),
    Command("help", "[all|COMMAND]", "this page, every command, or one of them", example="guild help all", first=True),
    Command(
        "approve",
        "ASK",
        "short for `guild answer ASK yes`",
        example="guild approve a-3h8n5w2kcd",
        module="answer",
    ),
    Command(
        "deny",
        "ASK [--note N]",
        "short for `guild answer ASK no`",
        example='guild deny a-3h8n5w2kcd --note "not that file"',
        module="answer",
    ),
    Command(
        "fork",
        "RUN --at N [--model M]",
        "go on differently from a recorded point, as a new run",
        example="guild fork r-7k2m9x4qpw --at 12 --model openai:gpt-6.1-terra",
    ),
    Command(
        "script",
        "RUN [--out FILE]",
        "write a recorded run as a script, with a test that compares",
        example="guild script r-7k2m9x4qpw --out tests/greeting.yaml",
    ),
    Command(
        "test",
        "[FILE|DIR ...]",
        "run the recorded tests of this project: no key, no network",
        example="guild test tests/greeting.yaml",
    ),
    Command(
        "plan",
        "WORKER|FILE",
        "what could happen if a worker ran, before anything does",
        example="guild plan greeter",
    ),
    Command(
        "trust",
        "[DIR|FILE]",
        "show what of a folder would be executed, and trust it as it is",
        example="guild trust",
    ),
    *PARTS,
    Command(
        "hall",
        "status|stop",
        "the process that owns what is on record: how it stands, end it",
        example="guild hall status",
    ),
    Command(
        "hall status",
        "",
        "whether the hall's process is running, and where",
        example="guild hall status --json",
    ),
    Command(
        "hall stop",
        "",
        "end the hall's process; its runs go on when the next one starts",
        example="guild hall stop",
    ),
    Command(
        "completion",
        "bash|zsh|fish",
        "the script that lets your shell complete commands",
        example="guild completion bash >> ~/.bashrc",
    ),
    *GUILD,
)

_HEAD = """guild runs AI workers that are files. Every model call and every tool call passes a door, on record.

usage: guild COMMAND [...]
"""
_FOOT = """
options:
  -h, --help     help for guild or for a command
  --version      the version
  --debug        show the traceback when something breaks

Every command: guild help all    One command: guild help COMMAND    New here: guild demo
"""


def find(words: list[str]) -> tuple[Command | None, int]:
    """The command that the words begin with, and how many words its name has."""
    for length in (2, 1):
        name = " ".join(words[:length])
        for command in COMMANDS:
            if command.name == name and len(words) >= length:
                return command, length
    return None, 0


def family(name: str) -> list[Command]:
    """The commands whose name begins with this word: `worker ls`, `worker show` and so on."""
    return [command for command in COMMANDS if command.name.startswith(f"{name} ")]


def first_page() -> str:
    """What `guild` alone prints."""
    return _HEAD + "\n" + _lines([command for command in COMMANDS if command.first]) + _FOOT


def all_pages() -> str:
    """What `guild help all` prints."""
    return _HEAD + "\n" + _lines([c for c in COMMANDS if not family(c.name)]) + _FOOT


def family_page(name: str) -> str:
    """What `guild worker` prints."""
    return f"usage: guild {name} VERB [...]\n\n" + _lines(family(name)) + f"\nOne verb: guild help {name} VERB\n"


def _lines(commands: list[Command]) -> str:
    heads = [f"{command.name} {command.syntax}".rstrip() for command in commands]
    width = max(map(len, heads))
    return "".join(f"  {head:<{width}}  {command.help}\n" for head, command in zip(heads, commands, strict=True))
