"""The commands about what a hall is made of: workers, members, memory, the documents of a team."""

from __future__ import annotations

from guildhall.cli.command import Command

PARTS = (
    Command("worker ls", "", "the workers that can be run here", example="guild worker ls", module="worker_read"),
    Command(
        "worker show",
        "NAME|FILE",
        "what a worker is, may do and is told",
        example="guild worker show greeter",
        module="worker_read",
    ),
    Command(
        "worker validate",
        "[NAME|FILE ...]",
        "check worker files; all of them when none is named",
        example="guild worker validate workers/greeter.yaml",
        module="worker_read",
    ),
    Command(
        "worker new",
        "NAME [--force]",
        "write the file of a new worker, to be filled in",
        example="guild worker new reviewer",
        module="worker_change",
    ),
    Command(
        "worker lock",
        "NAME",
        "pin a worker to its text of now; nothing overwrites it",
        example="guild worker lock reviewer",
        module="worker_change",
    ),
    Command(
        "worker unlock",
        "NAME",
        "let a locked worker be changed again",
        example="guild worker unlock reviewer",
        module="worker_change",
    ),
    Command(
        "worker promote",
        "NAME",
        "make a draft active, so that others may use it",
        example="guild worker promote reviewer",
        module="worker_change",
    ),
    Command(
        "worker retire",
        "NAME",
        "let a worker take no new work; its record stays",
        example="guild worker retire reviewer",
        module="worker_change",
    ),
    Command(
        "member",
        "ls|show|tools|call|new",
        "the guild members: plug-ins with tools, workers or both",
        example="guild member ls",
    ),
    Command("member ls", "", "the members, and how they stand", example="guild member ls --json"),
    Command(
        "member show",
        "NAME",
        "what a member is, what it runs, where its log is",
        example="guild member show researcher",
    ),
    Command(
        "member tools",
        "NAME",
        "start a member and list its tools",
        example="guild member tools clock",
    ),
    Command(
        "member call",
        "NAME TOOL [JSON]",
        "call one of a member's tools yourself",
        example="""guild member call clock now '{"zone": "UTC"}'""",
    ),
    Command(
        "member new",
        "NAME [--from T]",
        "make a member's folder, to be filled in, or a copy of one that ships",
        example="guild member new analyst --from researcher",
    ),
    Command(
        "memory ls",
        "",
        "list memory entries, newest first",
        example="guild memory ls --worker greeter",
    ),
    Command("memory show", "KEY", "print an entry", example="guild memory show build"),
    Command(
        "memory write",
        "KEY [TEXT|-]",
        "create or replace an entry",
        example='guild memory write build "make, then make test"',
    ),
    Command(
        "memory rm",
        "KEY",
        "remove an entry (`revert` restores it)",
        example="guild memory rm build --scope global",
    ),
    Command(
        "memory blame",
        "KEY",
        "show who changed an entry, when and in which run",
        example="guild memory blame build",
    ),
    Command(
        "memory revert",
        "KEY [--to N]",
        "restore an earlier content of an entry",
        example="guild memory revert build --to 12",
    ),
    Command(
        "doc",
        "ls|read|write|append",
        "the documents of a workflow",
        example="guild doc ls @review",
    ),
    Command("doc ls", "TARGET", "which documents there are", example="guild doc ls @review:pr-123"),
    Command(
        "doc read",
        "TARGET [FILE]",
        "one document, whole",
        example="guild doc read @review findings.md",
    ),
    Command(
        "doc write",
        "TARGET [FILE]",
        "make a document, or replace it",
        example='guild doc write @review goals.md --text "Ship it."',
    ),
    Command(
        "doc append",
        "TARGET [FILE]",
        "add to the end of a document",
        example='guild doc append @review --text "- look at the tests"',
    ),
    Command(
        "proposals",
        "TARGET",
        "what a team has put to the vote, and what came of it",
        example="guild proposals @review",
    ),
)
