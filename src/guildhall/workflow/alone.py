"""Agents that share nothing (`context: false`): each is told all that the kickoff says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.room import shared_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.room.model import Mail


def alone_message(connection: Connection, room: str, batch: Sequence[Mail], *, before: str = "") -> str:
    """What an agent is told that has no room to look something up in: all of it."""
    texts = [_whole(connection, room, mail) for mail in batch]
    return "\n\n".join([*texts, before] if before else texts)


def _whole(connection: Connection, room: str, mail: Mail) -> str:
    kept = mail.message.resource
    found = shared_records.resource(connection, room, kept) if kept else None
    return found[0] if found else mail.message.content
