"""Targets: `agent@workflow:tag`, as people write them and as they are shown. `global` and `main` may be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.core.nearest import nearest_or

if TYPE_CHECKING:
    from collections.abc import Iterable

GLOBAL = "global"
MAIN = "main"
_SHOWN = 80


@dataclass(frozen=True, order=True)
class Target:
    """An agent of a workflow, or (without an agent) the workflow itself, under one tag."""

    agent: str | None
    workflow: str = GLOBAL
    tag: str = MAIN

    @property
    def whole(self) -> str:
        """All of it: alice@global:main, @review:main."""
        return f"{self.agent or ''}@{self.workflow}:{self.tag}"

    @property
    def team(self) -> Target:
        """The workflow that it belongs to."""
        return Target(None, self.workflow, self.tag)

    def __str__(self) -> str:
        """As it is shown: without what is understood."""
        if self.tag != MAIN:
            return self.whole
        if self.agent is None:
            return f"@{self.workflow}"
        return self.agent if self.workflow == GLOBAL else f"{self.agent}@{self.workflow}"


def parse(text: str) -> Target:
    """The target that is meant. UsageError says how it is written."""
    agent, at, rest = text.partition("@")
    workflow, colon, tag = rest.partition(":")
    wrong = _problem(text, at, colon)
    for name, what in ((agent, "an agent"), (workflow, "a workflow"), (tag, "a tag")):
        if wrong is None and name and not is_name(name):
            wrong = f"{_cut(name)!r} cannot name {what}"
    if wrong is None and at and not workflow:
        wrong = "there is no workflow after the @"
    if wrong is None and colon and not tag:
        wrong = "there is no tag after the colon"
    if wrong is None and not at and not agent:
        wrong = "it is empty"
    if wrong is not None:
        raise UsageError(f"{_cut(text)!r} is not a target: {wrong}", hint=_meant(text))
    return Target(agent or None, workflow or GLOBAL, tag or MAIN)


def checked(target: Target) -> Target:
    """The target, if names in it can be names at all. For one that was not parsed here."""
    for name in (target.workflow, target.tag, *([] if target.agent is None else [target.agent])):
        if not is_name(name):
            raise UsageError(f"{_cut(name)!r} cannot be part of a target", hint=_meant(""))
    return target


def missing(target: Target, known: Iterable[Target]) -> NotFound:
    """The error for a target that is not there, with the nearest that is."""
    hint = nearest_or(str(target), {str(one) for one in known}, "`guild ls --all` shows what there is.")
    return NotFound(f"there is no {'agent' if target.agent else 'workflow'} {target}", hint=hint)


def check_tag(tag: str) -> str:
    """The tag, if it can be one."""
    if not is_name(tag):
        hint = "Use letters, digits, '_', '-' and '.', a letter or digit first, at most 64."
        raise UsageError(f"{_cut(tag)!r} cannot be a tag", hint=hint)
    return tag


def _problem(text: str, at: str, colon: str) -> str | None:
    if text.count("@") > 1:
        return "there is more than one @"
    if not at and ":" in text:
        return "a tag belongs to a workflow"
    return "there is more than one colon" if colon and text.count(":") > 1 else None


def _meant(text: str) -> str:
    """What was probably meant, or how targets are written."""
    agent, at, rest = text.partition("@")
    workflow, _, tag = rest.partition(":")
    guess = None
    if not at and ":" in text:  # review:pr-123
        guess = f"@{text}"
    elif at and not workflow and agent:  # alice@, alice@:dev
        guess = str(Target(agent, GLOBAL, tag or MAIN))
    elif at and workflow and not tag and rest.endswith(":"):  # @review:
        guess = text[:-1]
    elif any(map(str.isspace, text)):
        guess = "".join(text.split())
    if guess is not None:
        try:
            return f"Did you mean {str(parse(guess))!r}?"
        except UsageError:
            pass
    return "Write agent, agent@workflow, agent@workflow:tag, @workflow or @workflow:tag."


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
