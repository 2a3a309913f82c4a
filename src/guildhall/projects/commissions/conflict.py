"""What cannot be merged: the branch stays, and a person is asked what is to become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.projects.model import INTEGRATION
from guildhall.runs.model import Ask, Question
from guildhall.runs.records import add_ask, change_ask, list_asks, withdraw_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.projects.commissions.model import Commission

KIND = "conflict"
KEY = "merge"


def ask_about(connection: Connection, commission: Commission, run: str, files: Sequence[str], now: str) -> None:
    """Puts it into the inbox, in the transaction in which the commission has failed by it."""
    body = (
        f"{commission.branch} and {INTEGRATION} have both changed:\n"
        + "\n".join(f"- {path}" for path in files)
        + f"\n\nredispatch: it is done anew on what {INTEGRATION} has now.  abandon: nobody does it.  keep: it stays"
        " as it is, and so do its branch and its checkout; you merge it yourself."
    )
    ask = Ask(
        id=new_id(ASK),
        run=run,
        root=run,
        kind=KIND,
        key=KEY,
        subject=fingerprint([commission.id, commission.attempt, list(files)]),
        question=Question(
            title=f"The work of {commission.worker} in {commission.id} ({commission.title}) cannot be merged",
            body=body,
            choices=("redispatch", "abandon", "keep"),
        ),
        created_at=now,
    )
    add_ask(connection, ask)


def no_more(connection: Connection, commission: Commission, now: str) -> None:
    """It is tried anew, or given up: nobody needs to say anything about it, nor to answer what it has asked."""
    if commission.run is not None:
        withdraw_kind(connection, commission.run, KIND, now)
        withdraw_kind(connection, commission.run, "question", now)


def applied(connection: Connection, ask: str) -> None:
    change_ask(connection, ask, "answered", status="applied")


def still_open(connection: Connection, ask: str) -> None:
    """What was said could not be done: it can be said again, or something else."""
    change_ask(connection, ask, "answered", status="open", answer=None, closed_at=None)


def said_so_far(connection: Connection) -> list[Ask]:
    """What was answered and has come to nothing yet."""
    return [ask for ask in list_asks(connection, status="answered") if ask.kind == KIND]
