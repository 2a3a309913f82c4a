"""The commands of the guild: what it works for, what it is made of."""

from __future__ import annotations

from guildhall.cli.command import Command

GUILD = (
    Command(
        "package",
        "ls|show|validate|new|add|rm",
        "the packages: workers and toolboxes as folders of their own",
        example="guild package ls",
    ),
    Command("package ls", "", "the packages, the wrong ones too", example="guild package ls --json", module="package"),
    Command(
        "package show",
        "NAME",
        "what a package brings: posture, tools, rights, files",
        example="guild package show writer",
        module="package",
    ),
    Command(
        "package validate",
        "[NAME|DIR ...]",
        "check packages; all of them when none is named",
        example="guild package validate ./mail",
        module="package",
    ),
    Command(
        "package new",
        "NAME [--type T | --from P]",
        "make a package that works as it is, to be filled in",
        example="guild package new mail --type toolbox",
        module="package",
    ),
    Command(
        "package add",
        "DIR [--yes] [--force]",
        "show what a folder would bring, and copy it into the home",
        example="guild package add ./mail",
        module="package",
    ),
    Command(
        "package rm",
        "NAME",
        "take a package out of use; its files are kept aside",
        example="guild package rm mail",
        module="package",
    ),
)
