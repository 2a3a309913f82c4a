"""Blocked and pending: a commission waits for what it depends on, and is ready by itself once all of it is there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError
from guildhall.projects.commissions import graph, records
from guildhall.projects.model import INTEGRATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission


_log = logging.getLogger("guildhall.commissions")


def lacks(ground: Ground, commission: Commission) -> list[str]:
    """The paths that it depends on and that are not there."""
    if not commission.draft.dependencies:
        return []
    branches = ground.git(commission)
    others = {one.id for one in ground.all() if one.status == "completed"}
    return graph.missing(commission, branches.has, lambda id: id in others)


def unlinked(ground: Ground, commission: Commission) -> list[str]:
    """What is said of the files that its worker is to be told of and that are not there: nobody waits for them."""
    branches = ground.git(commission)
    absent = [path for path in commission.draft.linked if not branches.has(path)]
    return [f"linked: {path} is not on {INTEGRATION}; nothing waits for it" for path in absent]


def in_words(paths: Sequence[str]) -> str:
    return f"waits for {', '.join(paths)}" if paths else "all that it depends on is there"


def follow(ground: Ground, project: str) -> None:
    """The integration branch takes in what the user has done, which may be what is waited for; if it can be."""
    try:
        ground.branches(ground.projects().get(project)).follow()
    except GuildError as error:  # told to whoever begins something there
        _log.info("%s: %s", project, error)


async def settle(ground: Ground, project: str | None = None) -> None:
    """Moves what can begin now from blocked to pending, and back what can no more."""
    waiting = [one for one in ground.all(project) if one.status in ("pending", "blocked")]
    needing = [one for one in waiting if one.draft.dependencies or one.status == "blocked"]
    for name in dict.fromkeys(one.project for one in needing):
        await asyncio.to_thread(follow, ground, name)
    for one in needing:
        await _settle(ground, one)


async def _settle(ground: Ground, commission: Commission) -> None:
    try:
        missing = await asyncio.to_thread(lacks, ground, commission)
    except GuildError as error:  # its project is registered no more, or its repository is gone: it stays as it is
        _log.info("%s: %s", commission.id, error)
        return
    wanted = "blocked" if missing else "pending"
    if commission.status == wanted:
        return

    def write(connection: Connection) -> None:
        now = records.find(connection, commission.id)
        if now is not None and now.status == commission.status:
            records.move(connection, now.id, wanted, in_words(missing), ground.now(), data={"missing": missing})

    await ground.store.write(write)


def demand_ready(ground: Ground, commission: Commission) -> None:
    """Raises where it cannot begin, and names what it waits for."""
    if commission.status == "blocked":
        missing = lacks(ground, commission)
        raise Conflict(
            f"the commission {commission.id} is blocked: it {in_words(missing)}",
            hint="It becomes pending by itself once all of it is on claude/main, or on your branch.",
        )
