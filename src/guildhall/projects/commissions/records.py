"""The SQL of commissions. A transition is one transaction: the row and its line, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from guildhall.core.errors import NotFound
from guildhall.core.nearest import did_you_mean
from guildhall.projects.commissions.model import UNDER_WAY, Commission, Draft
from guildhall.projects.model import Moment
from guildhall.projects.records import add_moment, forget, note
from guildhall.store.guild_tables import commissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guildhall.projects.commissions.model import Status

_LISTS = ("dependencies", "artifacts", "linked", "checks")


def add(connection: Connection, commission: Commission, reason: str) -> None:
    """A new one, with the first line of its timeline."""
    own = {name: value for name, value in vars(commission).items() if name != "draft"}
    connection.execute(insert(commissions).values(**own, **_columns(commission.draft)))
    moment = Moment(at=commission.created_at, reason=reason, after=commission.status)
    add_moment(connection, commission.id, moment)


def move(
    connection: Connection,
    id: str,
    status: Status,
    reason: str,
    now: str,
    *,
    data: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Commission:
    """A transition, if it is one; else Conflict, and nothing is changed."""
    before = get(connection, id)
    before.may_become(status)
    values = {**columns, "status": status, "reason": reason, "changed_at": now}
    connection.execute(update(commissions).where(commissions.c.id == id).values(**values))
    moment = Moment(at=now, reason=reason, before=before.status, after=status, data=data or {})
    add_moment(connection, id, moment)
    return get(connection, id)


def change(connection: Connection, id: str, now: str, **columns: Any) -> None:
    """What is no transition: how far it is, what was submitted."""
    connection.execute(update(commissions).where(commissions.c.id == id).values(**columns, changed_at=now))


def redraft(connection: Connection, id: str, draft: Draft, now: str, reason: str) -> None:
    """Something else is asked for from now on."""
    change(connection, id, now, **_columns(draft))
    note(connection, id, reason, now)


def remove(connection: Connection, id: str, now: str) -> None:
    """One is gone from the record; its runs stay there, and one line that says so."""
    connection.execute(delete(commissions).where(commissions.c.id == id))
    forget(connection, id, now)


def find(connection: Connection, id: str) -> Commission | None:
    row = connection.execute(select(commissions).where(commissions.c.id == id)).mappings().first()
    return _commission(row) if row else None


def get(connection: Connection, id: str) -> Commission:
    if (found := find(connection, id)) is not None:
        return found
    known = connection.execute(select(commissions.c.id)).scalars().all()
    hint = did_you_mean(id[:40], known) or "`guild commission ls` lists them."
    raise NotFound(f"there is no commission {id[:100]!r}", hint=hint)


def listed(
    connection: Connection, *, project: str | None = None, status: Iterable[Status] | None = None
) -> list[Commission]:
    """In the order of their creation."""
    query = select(commissions).order_by(commissions.c.created_at, commissions.c.id)
    if project is not None:
        query = query.where(commissions.c.project == project)
    if status is not None:
        query = query.where(commissions.c.status.in_(list(status)))
    return [_commission(row) for row in connection.execute(query).mappings()]


def under_way(connection: Connection) -> list[Commission]:
    return listed(connection, status=UNDER_WAY)


def with_blocked(connection: Connection) -> list[str]:
    """The projects of which something is blocked."""
    query = select(commissions.c.project).where(commissions.c.status == "blocked").distinct()
    return list(connection.execute(query.order_by(commissions.c.project)).scalars())


def _columns(draft: Draft) -> dict[str, Any]:
    given = {"title": draft.title, "worker": draft.worker, "prompt": draft.prompt, "reviewer": draft.reviewer}
    return {**given, "limits": draft.limits, **{name: list(getattr(draft, name)) for name in _LISTS}}


def _commission(row: RowMapping) -> Commission:
    given: dict[str, Any] = {name: row[name] for name in ("title", "worker", "prompt", "reviewer")}
    given |= {name: tuple(row[name]) for name in _LISTS}
    own = ("id", "project", "status", "reason", "by", "made_by", "attempt", "run", "branch", "summary", "result")
    draft = Draft(**given, **row["limits"])
    return Commission(draft=draft, **{name: row[name] for name in (*own, "created_at", "changed_at")})
