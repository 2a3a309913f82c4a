"""The artifact of a commission: renders, writes and parses `.lore/commissions/ID.md` on the ref of the records.

Does not decide when the artifact is outdated (`projects/workspace.py`).

Invariant: an edit of an artifact does not change its row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import AskedQuestion, Decision, output_text
from guildhall.activities.questions import answer_text
from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import COMMISSION, is_id
from guildhall.projects import activity_records
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import FOLDER, Commission, Draft
from guildhall.projects.commissions.states import ACTIVE, parse_status
from guildhall.projects.model import Artifact, Project, TimelineEntry

if TYPE_CHECKING:
    from guildhall.projects.commissions.context import CommissionContext

AUTHOR = "Guildhall"
_LISTS = ("dependencies", "artifacts", "linked")
# The fields of a draft that are rebuilt from an artifact. Checks are left out, because a worker may have written them.
_FIELDS = ("worker", "prompt", *_LISTS, "max_turns", "max_budget_usd", "model", "reviewer")
_MAX_RESULT_CHARS = 20_000
_MAX_LINE_CHARS = 2_000
_log = logging.getLogger("guildhall.commissions")


# rendering


def list_decisions(context: CommissionContext, timeline: Sequence[TimelineEntry]) -> list[Decision]:
    """Return the decisions of the worker in all attempts, without duplicates."""
    runs = context.runs_of_attempts(timeline)
    attempts = [activity_records.list_decisions(context.history.entries(run.id)) for run in runs]
    return list(dict.fromkeys(decision for decisions in attempts for decision in decisions))


def list_questions(context: CommissionContext, timeline: Sequence[TimelineEntry]) -> list[AskedQuestion]:
    """Return the questions that the worker has asked in all attempts, with the answers."""
    return [
        AskedQuestion(
            ask=ask.id, at=ask.created_at, question=ask.question.body, answer=answer_text(ask) if ask.answer else None
        )
        for run in context.runs_of_attempts(timeline)
        for ask in context.asks.list_of_run(run.id)
        if ask.kind == "question" and ask.status != "withdrawn"
    ]


def current_artifact(context: CommissionContext, commission: Commission) -> bytes:
    """Return the content of the artifact for the current row."""
    return _render_all(context, commission, context.timeline(commission.id))


def completed_artifact(context: CommissionContext, commission: Commission, reason: str) -> bytes:
    """Return the content of the artifact after `complete`. The merge commit, which comes before, contains it."""
    end = TimelineEntry(kind="complete", at=context.now(), reason=reason, before=commission.status, after="completed")
    timeline = [*context.timeline(commission.id), end]
    return _render_all(context, replace(commission, status="completed"), timeline)


def _render_all(context: CommissionContext, commission: Commission, timeline: Sequence[TimelineEntry]) -> bytes:
    decisions, asked = list_decisions(context, timeline), list_questions(context, timeline)
    return render(commission, timeline, redact=context.redact, decisions=decisions, asked=asked)


def render(
    commission: Commission,
    timeline: Sequence[TimelineEntry],
    *,
    redact: Callable[[str], str],
    decisions: Sequence[Decision] = (),
    asked: Sequence[AskedQuestion] = (),
) -> bytes:
    """Return the content of an artifact. Texts are redacted before they are cut."""

    def line(text: str) -> str:
        return " ".join(redact(text).split())[:_MAX_LINE_CHARS]

    def transition(entry: TimelineEntry) -> str:
        return f"- {entry.at} {f'**{entry.after}**: ' if entry.after else ''}{line(entry.reason)}"

    draft = commission.draft.as_dict()
    extra: dict[str, Any] = {
        "commission": commission.id,
        "project": commission.project,
        **{name: draft[name] for name in (*_FIELDS, "checks") if draft.get(name)},
        "by": commission.by,
        "attempt": commission.attempt,
        **({"branch": commission.branch} if commission.branch else {}),
        "created_at": commission.created_at,
        "revision": sum(1 for entry in timeline if entry.after is not None),
    }
    sections: list[str] = []
    if commission.result is not None:
        text = redact(output_text(commission.result))
        omitted = len(text) - _MAX_RESULT_CHARS
        note = f"\n[... {omitted:,} characters omitted]" if omitted > 0 else ""
        sections.append(f"## Result\n\n{text[:_MAX_RESULT_CHARS]}{note}")
    if decisions:
        lines = [
            f"- {line(made.question)}\n  - decided: {line(made.decision)}\n  - because: {line(made.reasoning)}"
            for made in decisions
        ]
        sections.append("## Decisions\n\n" + "\n".join(lines))
    if asked:
        lines = [f"- {line(ask.question)}\n  - {line(ask.answer) if ask.answer else 'not answered'}" for ask in asked]
        sections.append("## Questions\n\n" + "\n".join(lines))
    sections.append("## Timeline\n\n" + "\n".join(map(transition, timeline)))
    artifact = Artifact(
        title=commission.title,
        date=commission.created_at[:10],
        status=commission.status,
        tags=("commission",),
        extra=extra,
        body="\n" + "\n\n".join(sections) + "\n",
    )
    return artifact.redact(redact).render().encode()


# writing


async def write_artifact(context: CommissionContext, id: str) -> None:
    """Write the artifact of a commission. An error is logged, and the next start of a hall repeats the write."""

    def write() -> None:
        commission = context.get(id)
        message = f"Commission {id}: {commission.status}\n\n{context.redact(commission.title)}\n"
        files = {commission.path: current_artifact(context, commission)}
        context.branches_of(commission).write_records(files, message, AUTHOR)

    try:
        await asyncio.to_thread(write)
    except (GuildError, OSError) as error:
        _log.warning("%s: the artifact could not be written: %s", id, error)


# rebuilding


def rebuild_rows(context: CommissionContext, project: Project) -> None:
    """Add the missing rows of the artifacts of a project, for example after the database was lost."""
    context.rebuild_rows(project, FOLDER, lambda id, data: parse(id, project.name, data, context.now()), records.add)


def parse(id: str, project: str, data: bytes, now: str) -> Commission:
    """Return the commission of an artifact. Raise InvalidFile if the artifact is invalid.

    A worker may have written the file, so checks are dropped and only the user may dispatch the commission.
    """
    where = f"{project}: {id}"
    try:
        artifact = Artifact.parse(data.decode(), where)
        extra = artifact.extra
        if not is_id(id, COMMISSION) or extra.get("commission") != id:
            raise InvalidFile("its path and its id do not match", where=where)
        fields: dict[str, Any] = {name: extra[name] for name in _FIELDS if extra.get(name) is not None}
        fields |= {name: tuple(fields[name]) for name in _LISTS if name in fields}
        draft = Draft(title=str(artifact.title), **fields)
        draft.check()
        status = parse_status(str(artifact.status))
        attempt = extra.get("attempt")
        return Commission(
            id=id,
            project=project,
            draft=draft,
            status="failed" if status in ACTIVE else status,
            by="artifact",
            attempt=attempt if isinstance(attempt, int) and 0 <= attempt < 10_000 else 0,
            branch=str(extra["branch"]) if extra.get("branch") else None,
            created_at=str(extra.get("created_at") or now),
            changed_at=now,
        )
    except (GuildError, TypeError, ValueError) as error:
        raise InvalidFile(f"invalid artifact of a commission: {error}", where=where) from None
