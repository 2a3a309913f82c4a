"""The commands of the guild: what it works for, what it is made of."""

from __future__ import annotations

from guildhall.cli.command import Command

GUILD = (
    Command(
        "project",
        "add|rm|ls|check",
        "the repositories that the guild works for",
        example="guild project ls",
    ),
    Command(
        "project add",
        "[PATH] [--name N] [--branch B]",
        "register a git repository; nothing in it changes",
        example="guild project add ~/src/shop --branch main",
    ),
    Command(
        "project rm",
        "NAME",
        "take a project out of the register; its branches stay",
        example="guild project rm shop",
    ),
    Command("project ls", "", "the registered projects", example="guild project ls --json"),
    Command(
        "project check",
        "[NAME ...]",
        "what is wrong with a project; with all, when none is named",
        example="guild project check shop",
    ),
    Command(
        "meet",
        "WORKER|MEETING [WORDS]",
        "talk with a worker in a project; leave, and come back days later",
        example='guild meet architect "How should we store exports?"',
    ),
    Command("meeting", "ls|show|accept|...", "the meetings: list, look, accept, close", example="guild meeting ls"),
    Command("meeting ls", "[--all]", "the meetings, newest first", example="guild meeting ls --all"),
    Command(
        "meeting show",
        "MEETING",
        "how a meeting stands: what was said, decided, proposed",
        example="guild meeting show t-7k2m9x4qpw",
    ),
    Command(
        "meeting accept",
        "MEETING",
        "open a meeting that was asked for",
        example="guild meeting accept t-7k2m9x4qpw",
    ),
    Command(
        "meeting decline",
        "MEETING [--reason TEXT]",
        "say no to a meeting that was asked for",
        example='guild meeting decline t-7k2m9x4qpw --reason "not now"',
    ),
    Command(
        "meeting defer",
        "MEETING DATE",
        "be asked again then",
        example="guild meeting defer t-7k2m9x4qpw 2027-01-31",
    ),
    Command(
        "meeting close",
        "MEETING [--no-summary]",
        "end a meeting, with notes and one commit on claude/main",
        example="guild meeting close t-7k2m9x4qpw",
    ),
    Command(
        "meeting rm",
        "MEETING",
        "take a meeting that is over off the record; its notes stay",
        example="guild meeting rm t-7k2m9x4qpw",
    ),
    Command(
        "package",
        "ls|show|validate|new|add|rm",
        "the packages: workers and toolboxes as folders of their own",
        example="guild package ls",
    ),
    Command("package ls", "", "the packages, the wrong ones too", example="guild package ls --json"),
    Command(
        "package show",
        "NAME",
        "what a package brings: posture, tools, rights, files",
        example="guild package show writer",
    ),
    Command(
        "package validate",
        "[NAME|DIR ...]",
        "check packages; all of them when none is named",
        example="guild package validate ./mail",
    ),
    Command(
        "package new",
        "NAME [--type T | --from P]",
        "make a package that works as it is, to be filled in",
        example="guild package new mail --type toolbox",
    ),
    Command(
        "package add",
        "DIR [--yes] [--force]",
        "show what a folder would bring, and copy it into the home",
        example="guild package add ./mail",
    ),
    Command(
        "package rm",
        "NAME",
        "take a package out of use; its files are kept aside",
        example="guild package rm mail",
    ),
)
