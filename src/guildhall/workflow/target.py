"""The arguments by which a command names a workflow: targets, params and files.

A target is `agent@workflow:tag`. `global` and `main` may be left out. Instead of `workflow:tag`, it may have the id of
the workflow's run, which finds a workflow of any project.
Does not look up the instance of a target (`queries.py`) or read a workflow file (`loader.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from guildhall.core import yaml
from guildhall.core.errors import GuildError, NotFound, UsageError
from guildhall.core.ids import RUN, is_id, is_name
from guildhall.core.text_checks import suggest_or

if TYPE_CHECKING:
    from pathlib import Path

GLOBAL = "global"
MAIN = "main"
_MAX_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Target:
    """An agent of a workflow, or (without an agent) the workflow itself, under one tag."""

    agent: str | None
    workflow: str = GLOBAL  # a name, or the id of the workflow's run
    tag: str = MAIN
    project: Path | None = None  # where the names are looked up; None: in all projects

    @property
    def full(self) -> str:
        """Return the target with `global` and `main`: alice@global:main, @review:main."""
        return f"{self.agent or ''}@{self.workflow}:{self.tag}"

    @property
    def workflow_target(self) -> Target:
        """Return the target of the workflow itself."""
        return replace(self, agent=None)

    def __str__(self) -> str:
        """Return the target without `global` and `main`."""
        if self.tag != MAIN:
            return self.full
        if self.agent is None:
            return f"@{self.workflow}"
        return self.agent if self.workflow == GLOBAL else f"{self.agent}@{self.workflow}"


def parse(text: str) -> Target:
    """Return the target that a text names. Raise UsageError if it is not a target."""
    if is_id(text, RUN):
        return Target(None, text)
    agent, at, rest = text.partition("@")
    workflow, colon, tag = rest.partition(":")
    names = {"an agent": agent, "a workflow": workflow, "a tag": tag}
    problems = {
        "more than one @": text.count("@") > 1,
        "a tag requires a workflow": not at and ":" in text,
        "more than one colon": colon and text.count(":") > 1,
        **{f"{_excerpt(name)!r} cannot name {what}": name and not is_name(name) for what, name in names.items()},
        "no workflow after the @": at and not workflow,
        "no tag after the colon": colon and not tag,
        "the id of a run has no tag": colon and is_id(workflow, RUN),
        "empty": not at and not agent,
    }
    if reason := next((problem for problem, applies in problems.items() if applies), None):
        raise UsageError(f"invalid target {_excerpt(text)!r}: {reason}", hint=_target_hint(text))
    return Target(agent or None, workflow or GLOBAL, tag or MAIN)


def check_names(target: Target) -> None:
    """Raise UsageError if a name in a target is invalid. `parse` has checked the targets that it returned."""
    for name in (target.workflow, target.tag, *([] if target.agent is None else [target.agent])):
        if not is_name(name):
            raise UsageError(f"invalid target: {_excerpt(name)!r} is not a valid name", hint=_target_hint(""))
    if target.project is not None and not target.project.is_absolute():
        raise UsageError(f"invalid target: the project {_excerpt(str(target.project))!r} is not an absolute path")


def unknown_target(target: Target, known: Iterable[Target], *, hint: str | None = None) -> NotFound:
    """Return the error for an unknown target. Its hint is the nearest known target, unless `hint` is given."""
    hint = hint or suggest_or(str(target), {str(other) for other in known}, "List the workflows: guild ls --all")
    place = f" in {target.project}" if target.project is not None and not is_id(target.workflow, RUN) else ""
    return NotFound(f"unknown {'agent' if target.agent else 'workflow'} {target}{place}", hint=hint)


def check_tag(tag: str) -> str:
    """Return the tag. Raise UsageError if it is not valid."""
    if not is_name(tag):
        hint = "Use letters, digits, '_', '-' and '.', a letter or digit first, at most 64."
        raise UsageError(f"invalid tag: {_excerpt(tag)!r}", hint=hint)
    return tag


def _target_hint(text: str) -> str:
    """Return a hint with the probable target, or with the syntax of targets."""
    agent, at, rest = text.partition("@")
    workflow, _, tag = rest.partition(":")
    guess = None
    if not at and ":" in text:  # review:pr-123
        guess = f"@{text}"
    elif at and not workflow and agent:  # alice@, alice@:dev
        guess = str(Target(agent, GLOBAL, tag or MAIN))
    elif at and workflow and not tag and rest.endswith(":"):  # @review:
        guess = text[:-1]
    elif is_id(workflow, RUN):  # @r-7k2m9x4qpw:main
        guess = f"{agent}@{workflow}"
    elif any(map(str.isspace, text)):
        guess = "".join(text.split())
    if guess is not None:
        try:
            return f"Did you mean {str(parse(guess))!r}?"
        except UsageError:
            pass
    return "Write agent, agent@workflow, agent@workflow:tag, @workflow or @workflow:tag."


def _excerpt(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


_MAX_VALUE_CHARS = 100_000


def parse_params(pairs: Sequence[str]) -> dict[str, str]:
    """Return the params of a command line (name=value). Raise UsageError for duplicates and invalid values."""
    params: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            message = f"invalid --param {yaml.format_value(pair)}: it has no value or no name"
            raise UsageError(message, hint="Write --param name=value.")
        if name in params:
            raise UsageError(f"duplicate --param {yaml.format_value(name)}", hint="Pass it once.")
        if "\0" in value or len(value) > _MAX_VALUE_CHARS:
            message = f"invalid --param {yaml.format_value(name)}: the value is too long, or not text"
            raise UsageError(message, hint="Pass the name of a file that contains the value.")
        params[name] = value
    return params


WORKFLOW_SUFFIXES = (".yaml", ".yml", ".json")
WORKFLOWS = "workflows"  # a folder of a project
_AGENTS = re.compile(rb"^agents[ \t]*:", re.MULTILINE)


def is_workflow_file(path: Path) -> bool:
    """Return True if a file looks like a workflow file. `load` reports its errors."""
    try:
        if path.suffix not in WORKFLOW_SUFFIXES or not path.is_file():
            return False
        with path.open("rb") as file:
            content = file.read(yaml.MAX_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False
    if path.suffix != ".json" and _AGENTS.search(content) is not None:
        return True
    if b"agents" not in content:
        return False
    try:  # JSON, or YAML that is written like it
        data = cast("object", yaml.read(path).data)
    except GuildError:
        return False
    return isinstance(data, dict) and "agents" in data


def find_workflow_files(folder: Path) -> Iterator[Path]:
    """Yield the workflow files of a project: in its root and in workflows/."""
    for searched in (folder, folder / WORKFLOWS):
        try:
            paths = sorted(searched.iterdir())
        except OSError:
            continue
        yield from (path for path in paths if not path.name.startswith(".") and is_workflow_file(path))
