"""Completion is a contract: what a commission must have given before its result is taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotFulfilled
from guildhall.jobs.contract import MOST, as_text, fitted
from guildhall.projects.commissions import records
from guildhall.projects.commissions.checks import run_checks
from guildhall.projects.commissions.vanished import demand_told
from guildhall.projects.records import note
from guildhall.projects.workplace import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.jobs.model import Contract
    from guildhall.projects.branches import Branches
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission

SUBMITTED = "the result was submitted"
_NAMED = 10


async def keep_work(ground: Ground, commission: Commission) -> Work:
    """Commits all that is in its checkout on its branch."""
    if commission.branch is None:
        return Work()
    message = f"{ground.redact(commission.title)}\n\nWork on {commission.id}, attempt {commission.attempt}.\n"
    return await asyncio.to_thread(ground.workplace(commission).keep, message, commission.draft.artifacts)


async def submit(ground: Ground, id: str, contract: Contract, output: Any) -> str:
    """Takes a result, if all is there that must be, else NotFulfilled; and what the worker should know of it.

    Where that cannot be looked at now, for a reason outside the work, it is looked at in the end.
    """
    commission = ground.get(id)
    known = ""
    try:
        tip, value, known = await _looked_at(ground, commission, contract, output)
    except NotFulfilled:
        raise
    except (GuildError, OSError) as error:
        value, problems = fitted(contract, output, ())
        if problems:
            raise _unfulfilled(problems) from None
        tip = None
        await ground.note(id, f"what was made could not be looked at: {error}")
    ground.redact(as_text(value))  # as the artifact has it, whichever hall writes that
    now = ground.now()

    def write(connection: Connection) -> None:
        records.change(connection, id, now, result=value)
        note(connection, id, SUBMITTED, now, commit=tip)

    await ground.store.write(write)
    return known


async def _looked_at(
    ground: Ground, commission: Commission, contract: Contract, output: Any
) -> tuple[str | None, Any, str]:
    """Where the branch is with all of the work, the result in its form, and what is made and not merged."""
    place = ground.workplace(commission)
    if not place.path.is_dir():
        ground.project(ground.get(commission.id))  # raises where its project's name is another repository's meanwhile
        raise NotFulfilled(
            "the checkout was removed by somebody, with what was made in it since a result was last submitted",
            hint="Nothing more can be done here: end. The commission is to be redispatched.",
        )
    demand_told(ground, commission)
    work = await keep_work(ground, commission)
    value, records_changed = await demand(ground, commission, contract, output, work)
    names = await asyncio.to_thread(place.ignored)
    return work.tip, value, _not_merged(names, records_changed)


def _not_merged(ignored: Sequence[str], records_changed: Sequence[str]) -> str:
    said: list[str] = []
    if ignored:
        hint = "If that is part of the work, change .gitignore or put it elsewhere, and submit again."
        said.append(f"Not merged, because git ignores it: {_some(ignored)}. {hint}")
    if records_changed:
        said.append(f"Not merged, because only the hall writes there: {_some(records_changed)}.")
    return " ".join(said)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


async def demand_still(ground: Ground, commission: Commission, contract: Contract, work: Work) -> None:
    """The same for what was submitted before, where something has been changed since."""
    timeline = ground.timeline(commission.id)
    taken = [moment.data.get("commit") for moment in timeline if moment.reason == SUBMITTED]
    if not taken or taken[-1] != work.tip:
        await demand(ground, commission, contract, commission.result, work)


async def demand(
    ground: Ground, commission: Commission, contract: Contract, output: Any, work: Work
) -> tuple[Any, Sequence[str]]:
    """The result in the form that is demanded, for the work that is committed; and which records of the hall's it has
    changed in vain. NotFulfilled: something is missing, or would be left behind, or a check has failed."""
    project, tip = ground.project(commission), work.tip
    lacks, new, changed = await asyncio.to_thread(_found, ground.branches(project), tip, contract.artifacts)
    value, problems = fitted(contract, output, lacks)
    problems += [f"{path} cannot be committed: {reason}; move it elsewhere" for path, reason in work.left]
    if new:
        problems.append(f"only the hall writes there, it would not be merged: {_some(new)}; move it elsewhere")
    commands = (*project.settings.checks, *commission.draft.checks)
    if not problems and commands and tip is not None:
        problems += await _failures(ground, commission, commands, tip)
    if problems:
        raise _unfulfilled(problems)
    return value, changed


def _unfulfilled(problems: Sequence[str]) -> NotFulfilled:
    return NotFulfilled(
        f"the commission has not given what it had to: {'; '.join(problems[:MOST])}",
        hint="Put it right in the files, correct the result, and submit it again.",
    )


async def _failures(ground: Ground, commission: Commission, commands: Sequence[str], tip: str) -> list[str]:
    """Which commands fail on what is committed. What they leave behind is nobody's work."""
    project = ground.project(commission)
    env = ground.frame_at(project.path).plain()
    place = await asyncio.to_thread(ground.worktrees.glance, project, commission.place, tip)
    try:
        done = await run_checks(commands, place, env)
    finally:
        await asyncio.to_thread(ground.worktrees.end_glance, place)
    failed = [check for check in done if not check.passed]
    passed = f"{len(done)} checks passed" if len(done) > 1 else "the check passed"
    told = f"the check `{failed[0].command}` failed" if failed else passed
    await ground.note(commission.id, told, checks=[check.as_dict() for check in done])
    return [f"the check `{check.command}` failed:\n{check.output}" for check in failed]


def _found(branches: Branches, tip: str | None, artifacts: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """The artifacts that are not committed as files (what a link leads to is somewhere else); what is new, and what
    else is changed, where only the hall writes."""
    if tip is None:
        return list(artifacts), [], []
    lacks = [path for path in artifacts if not branches.has(path, at=tip)]
    return lacks, *branches.in_place_of_records(tip)
