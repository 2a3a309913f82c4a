"""Completion is a contract: what a commission must have given before its result is taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFulfilled
from guildhall.jobs.contract import MOST, as_text, fitted
from guildhall.projects.commissions import records
from guildhall.projects.commissions.checks import run_checks
from guildhall.projects.records import note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.jobs.model import Contract
    from guildhall.projects.branches import Branches
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission

SUBMITTED = "the result was submitted"


async def keep_work(ground: Ground, commission: Commission) -> str | None:
    """Commits all that is in its checkout on its branch; where the branch is then. None: it has none yet."""
    if commission.branch is None:
        return None
    message = f"{ground.redact(commission.title)}\n\nWork on {commission.id}, attempt {commission.attempt}.\n"
    return await asyncio.to_thread(ground.workplace(commission).commit, message, commission.draft.artifacts)


async def submit(ground: Ground, id: str, contract: Contract, output: Any) -> None:
    """Takes a result, if all is there that must be. NotFulfilled says what is missing."""
    commission = ground.get(id)
    if not ground.workplace(commission).path.is_dir():
        raise NotFulfilled(
            "the checkout was removed by somebody, with what was made in it since a result was last submitted",
            hint="Nothing more can be done here: end. The commission is to be redispatched.",
        )
    tip = await keep_work(ground, commission)
    value = await demand(ground, commission, contract, output, tip)
    ground.redact(as_text(value))  # as the artifact has it, whichever hall writes that
    now = ground.now()

    def write(connection: Connection) -> None:
        records.change(connection, id, now, result=value)
        note(connection, id, SUBMITTED, now, commit=tip)

    await ground.store.write(write)


async def demand_still(ground: Ground, commission: Commission, contract: Contract, tip: str | None) -> None:
    """The same for what was submitted before, where something has been changed since."""
    timeline = ground.timeline(commission.id)
    taken = [moment.data.get("commit") for moment in timeline if moment.reason == SUBMITTED]
    if not taken or taken[-1] != tip:
        await demand(ground, commission, contract, commission.result, tip)


async def demand(ground: Ground, commission: Commission, contract: Contract, output: Any, tip: str | None) -> Any:
    """The result in the form that is demanded, for the work that is committed. NotFulfilled: something is missing, or
    a check has failed."""
    project = ground.project(commission)
    lacks = await asyncio.to_thread(_lacks, ground.branches(project), tip, contract.artifacts)
    value, problems = fitted(contract, output, lacks)
    commands = (*project.settings.checks, *commission.draft.checks)
    if not problems and commands and tip is not None:
        problems += await _failures(ground, commission, commands, tip)
    if problems:
        raise NotFulfilled(
            f"the commission has not given what it had to: {'; '.join(problems[:MOST])}",
            hint="Put it right in the files, correct the result, and submit it again.",
        )
    return value


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


def _lacks(branches: Branches, tip: str | None, artifacts: Sequence[str]) -> list[str]:
    """Those that are not committed as files; what a link leads to is somewhere else."""
    return [path for path in artifacts if tip is None or not branches.has(path, at=tip)]
