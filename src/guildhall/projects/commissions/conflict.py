"""Merge conflicts: ask the user about a conflict, and carry out the answer: redispatch, abandon or keep.

The branch and the checkout stay until the user decides. Also writes late answers to a worker's questions into the
artifact.
Does not detect conflicts (`git/integration.py`) and does not request the meeting about a conflict (`completion.py`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.activities.questions import answer_text
from guildhall.core.errors import GuildError
from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.projects.commissions import records
from guildhall.projects.commissions.artifact import write_artifact
from guildhall.projects.commissions.states import ENDED
from guildhall.projects.model import INTEGRATION
from guildhall.runs.model import Answer, Ask, Question
from guildhall.runs.purpose import CommissionPurpose
from guildhall.runs.record.records import add_ask, change_ask, list_asks, withdraw_kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.commissions.model import Commission

KIND = "conflict"
_KEY = "merge"
_log = logging.getLogger("guildhall.commissions")


def ask_user(connection: Connection, commission: Commission, now: str) -> None:
    """Add an ask about a conflict to the inbox, in the transaction that fails the commission."""
    run = str(commission.run)
    files = "\n".join(f"- {path}" for path in commission.conflict)
    body = (
        f"Changed on both {commission.branch} and {INTEGRATION}:\n{files}\n\n"
        f"redispatch: start over from the current {INTEGRATION}.  abandon: drop it.  keep: leave the branch and the "
        "checkout as they are; you merge them yourself."
    )
    title = f"Merge conflict: the work of {commission.worker} in {commission.id} ({commission.title})"
    ask = Ask(
        id=new_id(ASK),
        run=run,
        root=run,
        kind=KIND,
        key=_KEY,
        subject=fingerprint([commission.id, commission.attempt, list(commission.conflict)]),
        question=Question(title=title, body=body, choices=("redispatch", "abandon", "keep")),
        created_at=now,
    )
    add_ask(connection, ask)


def withdraw_asks(connection: Connection, commission: Commission, now: str) -> None:
    """Withdraw the open asks of an attempt that is tried again or abandoned: conflicts and questions."""
    if commission.run is not None:
        withdraw_kind(connection, commission.run, KIND, now)
        withdraw_kind(connection, commission.run, "question", now)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Acts on what users answer about commissions that have ended. An answer that cannot be carried out is reopened."""

    context: CommissionContext
    redispatch: Callable[[str, Frame], Awaitable[Commission]]
    abandon: Callable[[str, str], Awaitable[Commission]]

    async def receive(self, ask: Ask) -> None:
        """Carry out the answer to a conflict, or write a late answer to a question into the artifact."""
        purpose = self.context.history.get(ask.run).purpose_as(CommissionPurpose)
        if purpose is None or ask.answer is None:
            return
        if ask.kind == "question":
            self.context.redact(answer_text(ask))
            found = self.context.store.read(lambda connection: records.find(connection, purpose.id))
            if found is not None and found.status in ENDED:
                await write_artifact(self.context, found.id)
        elif ask.kind == KIND:
            try:
                await self._carry_out(ask, ask.answer, self.context.commission_of(ask.run))
            except GuildError:
                await self._change(ask.id, status="open", answer=None, closed_at=None)
                raise
            await self._change(ask.id, status="applied")

    async def catch_up(self) -> None:
        """Carry out the answers that a killed hall had recorded and not acted on."""
        answered = self.context.store.read(lambda connection: list_asks(connection, status="answered"))
        for ask in answered:
            if ask.kind == KIND:
                try:
                    await self.receive(ask)
                except GuildError as error:
                    _log.warning("%s is open again: %s", ask.id, error)

    async def _carry_out(self, ask: Ask, answer: Answer, commission: Commission) -> None:
        if commission.run != ask.run or commission.status != "failed":
            return
        if answer.choice == "redispatch":
            folder = self.context.project(commission).path
            await self.redispatch(commission.id, self.context.frame_at(folder))
        elif answer.choice == "abandon":
            await self.abandon(commission.id, answer.note or "merge conflict")

    async def _change(self, ask: str, **columns: object) -> None:
        await self.context.store.write(lambda connection: change_ask(connection, ask, "answered", **columns))
