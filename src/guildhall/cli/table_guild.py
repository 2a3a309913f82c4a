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
        module="project",
    ),
    Command(
        "project rm",
        "NAME",
        "take a project out of the register; its branches stay",
        example="guild project rm shop",
        module="project",
    ),
    Command("project ls", "", "the registered projects", example="guild project ls --json", module="project"),
    Command(
        "project check",
        "[NAME ...]",
        "what is wrong with a project; with all, when none is named",
        example="guild project check shop",
        module="project",
    ),
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
