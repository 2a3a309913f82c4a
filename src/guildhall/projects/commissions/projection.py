"""The artifact of a commission on the integration branch: written after its row, and held against it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.projects.artifact import Artifact
from guildhall.projects.commissions import records
from guildhall.projects.commissions.account import asked_in, decided_in
from guildhall.projects.commissions.model import FOLDER, artifact_of, commission_in
from guildhall.projects.commissions.paper import rebuilt, written
from guildhall.projects.model import INTEGRATION, Moment
from guildhall.projects.records import known, transitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission, Status
    from guildhall.projects.model import Project

AUTHOR = "Guildhall"
_log = logging.getLogger("guildhall.commissions")


def text_of(ground: Ground, commission: Commission) -> bytes:
    """Its artifact as it should be."""
    return _written(ground, commission, ground.timeline(commission.id))


def text_when(ground: Ground, commission: Commission, status: Status, reason: str) -> bytes:
    """Its artifact as it will be once it has come to a status: for the commit that the row follows."""
    timeline = ground.timeline(commission.id)
    end = Moment(at=ground.now(), reason=reason, before=commission.status, after=status)
    return _written(ground, replace(commission, status=status), [*timeline, end])


def _written(ground: Ground, commission: Commission, timeline: Sequence[Moment]) -> bytes:
    decisions, asked = decided_in(ground, timeline), asked_in(ground, timeline)
    return written(commission, timeline, redact=ground.redact, decisions=decisions, asked=asked)


async def project_row(ground: Ground, id: str) -> None:
    """Writes what the row says into the artifact. What goes wrong is made good at the next start."""

    def write() -> None:
        commission = ground.get(id)
        message = f"Commission {id}: {commission.status}\n\n{ground.redact(commission.title)}\n"
        ground.git(commission).write({commission.path: text_of(ground, commission)}, message, AUTHOR)

    try:
        await asyncio.to_thread(write)
    except (GuildError, OSError) as error:
        _log.warning("%s: its artifact could not be written: %s", id, error)


def doubts(ground: Ground, commission: Commission) -> list[str]:
    """What an artifact says that the row does not: somebody has written it by hand."""
    try:
        data = ground.git(commission).read(commission.path)
        if data is None:
            return [f"{commission.path} is not on the integration branch"]
        said = Artifact.of(data, commission.path)
    except GuildError as error:
        return [f"{commission.path}: {error.message}"]
    if said.status == commission.status or is_older(ground, commission, said):
        return []
    by_hand = f"{commission.path} says {said.status!r}, written by hand"
    return [f"{by_hand}: the commission is {commission.status} all the same"]


def is_older(ground: Ground, commission: Commission, artifact: Artifact) -> bool:
    return artifact.revision < ground.store.read(lambda connection: transitions(connection, commission.id))


def rebuild(ground: Ground, project: Project) -> list[str]:
    """Rows that are missing, made again from the artifacts; the ids."""
    branches = ground.branches(project)
    if not branches.exists(INTEGRATION):
        return []
    ids = [id for path in branches.list(FOLDER) if (id := commission_in(path)) is not None]
    on_record = ground.store.read(known)
    found: list[str] = []
    for id in ids:
        if id in on_record:
            continue
        try:
            commission = rebuilt(id, project.name, branches.read(artifact_of(id)) or b"", ground.now())
        except GuildError as error:
            _log.warning("%s", error)
            continue

        def write(connection: Connection, commission: Commission = commission) -> None:
            records.add(connection, commission, "made again from its artifact: its row was gone")

        ground.store.submit(write).result()
        found.append(id)
    return found
