"""Short ids: a unique prefix of an id stands for the id, and `last` for the newest run.

`Context.connect` expands the short ids among the arguments of a command. Does not expand the ids of members' jobs.

Invariant: an ambiguous prefix is an error, never a choice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id

if TYPE_CHECKING:
    import argparse

    from guildhall.hall.client.interface import HallClient

LAST = "last"
_PREFIX = re.compile(rf"[{ASK}{COMMISSION}{JOB}{MEETING}{RUN}]-[0-9a-z]{{1,9}}")
_MAX_CANDIDATES = 10


class ShortId(str):
    """A prefix of an id, or `last`."""

    __slots__ = ()


def read_id(text: str) -> str:
    """Return a ShortId for a short id, and every other text unchanged. The type of an argument."""
    return ShortId(text) if text == LAST or _PREFIX.fullmatch(text) else text


def is_kind(text: str, *kinds: str) -> bool:
    """Return True if the text is an id or a short id of one of these kinds."""
    return any(is_id(text, kind) or (isinstance(text, ShortId) and text.startswith(f"{kind}-")) for kind in kinds)


async def expand_arguments(args: argparse.Namespace, client: HallClient) -> None:
    """Replace the short ids among the arguments by the ids that they stand for."""
    for name, value in vars(args).items():
        if isinstance(value, ShortId):
            setattr(args, name, await expand(value, client))


async def expand(short: ShortId, client: HallClient) -> str:
    """Return the id that a short id stands for, or the text itself if no id begins with it."""
    if short == LAST:
        if runs := await client.runs.list():
            return runs[0].id
        raise NotFound("no runs yet", hint='Start one: guild run WORKER "..."')
    matches = [id for id in await _list_ids(short[0], client) if id.startswith(short)]
    if len(matches) > 1:
        more = "" if len(matches) <= _MAX_CANDIDATES else f" and {len(matches) - _MAX_CANDIDATES} more"
        candidates = f"{', '.join(matches[:_MAX_CANDIDATES])}{more}"
        raise UsageError(f"ambiguous id {short!s}: {candidates}", hint="Add characters until one id is left.")
    return matches[0] if matches else str(short)


async def _list_ids(kind: str, client: HallClient) -> list[str]:
    """Return all ids of a kind, for asks only the ids of open asks."""
    if kind == RUN:
        return [run.id for run in await client.runs.list(everything=True, called=True)]
    if kind == JOB:
        return [job.id for job in (await client.jobs.list()).jobs]
    listings = {ASK: client.asks.list, COMMISSION: client.commissions.list, MEETING: client.meetings.list}
    return [one.id for one in await listings[kind]()]
