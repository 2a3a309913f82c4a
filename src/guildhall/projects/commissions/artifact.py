"""The artifact of a commission: renders, writes and parses `.lore/commissions/ID.md` on the integration branch.

An artifact with fewer transitions than the row is outdated and is written again. Another difference is an edit by
hand, which `guild show` reports.
Does not apply edits of an artifact to the row.

Invariant: the row is the truth. The artifact is a copy for people and workers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import AskedQuestion, Decision, output_text
from guildhall.activities.questions import answer_text
from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import COMMISSION, is_id
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import FOLDER, Commission, Draft
from guildhall.projects.commissions.states import ACTIVE, parse_status
from guildhall.projects.model import INTEGRATION, Artifact, Project, TimelineEntry
from guildhall.projects.shared_records import list_decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.projects.commissions.context import CommissionContext

AUTHOR = "Guildhall"
TAG = "commission"
_LISTS = ("dependencies", "artifacts", "linked")
# The fields of a draft that are rebuilt from an artifact. Checks are not: artifacts must not decide what is executed.
_FIELDS = ("worker", "prompt", *_LISTS, "max_turns", "max_budget_usd", "model", "reviewer")
_MAX_RESULT = 20_000  # characters
_MAX_LINE = 2_000
_REBUILT = "rebuilt from its artifact: the row was missing"
_log = logging.getLogger("guildhall.commissions")


# rendering


def decisions(context: CommissionContext, timeline: Sequence[TimelineEntry]) -> list[Decision]:
    """Return the decisions that the worker has recorded in all attempts, without repetitions."""
    runs = context.runs_of_attempts(timeline)
    return list(dict.fromkeys(one for run in runs for one in list_decisions(context.history.entries(run.id))))


def questions(context: CommissionContext, timeline: Sequence[TimelineEntry]) -> list[AskedQuestion]:
    """Return the questions that the worker has asked in all attempts, with the answers."""
    return [
        AskedQuestion(
            ask=ask.id, at=ask.created_at, question=ask.question.body, answer=answer_text(ask) if ask.answer else None
        )
        for run in context.runs_of_attempts(timeline)
        for ask in context.asks.of_run(run.id)
        if ask.kind == "question" and ask.status != "withdrawn"
    ]


def current_artifact(context: CommissionContext, commission: Commission) -> bytes:
    """Return the text of the artifact as the row is now."""
    return _render_all(context, commission, context.timeline(commission.id))


def completed_artifact(context: CommissionContext, commission: Commission, reason: str) -> bytes:
    """Return the text of the artifact as it will be after `complete`, for the merge commit that comes before."""
    end = TimelineEntry(kind="complete", at=context.now(), reason=reason, before=commission.status, after="completed")
    timeline = [*context.timeline(commission.id), end]
    return _render_all(context, replace(commission, status="completed"), timeline)


def _render_all(context: CommissionContext, commission: Commission, timeline: Sequence[TimelineEntry]) -> bytes:
    made, asked = decisions(context, timeline), questions(context, timeline)
    return render(commission, timeline, redact=context.redact, decisions=made, asked=asked)


def render(
    commission: Commission,
    timeline: Sequence[TimelineEntry],
    *,
    redact: Callable[[str], str],
    decisions: Sequence[Decision] = (),
    asked: Sequence[AskedQuestion] = (),
) -> bytes:
    """Return the text of an artifact. Secrets are removed before texts are cut."""

    def line(text: str) -> str:
        return " ".join(redact(text).split())[:_MAX_LINE]

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
        cut = f"\n[... {len(text) - _MAX_RESULT:,} characters omitted]" if len(text) > _MAX_RESULT else ""
        sections.append(f"## Result\n\n{text[:_MAX_RESULT]}{cut}")
    if decisions:
        lines = [
            f"- {line(one.question)}\n  - decided: {line(one.decision)}\n  - because: {line(one.reasoning)}"
            for one in decisions
        ]
        sections.append("## Decisions\n\n" + "\n".join(lines))
    if asked:
        lines = [f"- {line(one.question)}\n  - {line(one.answer) if one.answer else 'not answered'}" for one in asked]
        sections.append("## Questions\n\n" + "\n".join(lines))
    sections.append("## Timeline\n\n" + "\n".join(map(transition, timeline)))
    artifact = Artifact(
        title=commission.title,
        date=commission.created_at[:10],
        status=commission.status,
        tags=(TAG,),
        extra=extra,
        body="\n" + "\n\n".join(sections) + "\n",
    )
    return artifact.redact(redact).render().encode()


# writing


async def write_artifact(context: CommissionContext, id: str) -> None:
    """Write the artifact of a commission to the integration branch. The next start repeats a failed write."""

    def write() -> None:
        commission = context.get(id)
        message = f"Commission {id}: {commission.status}\n\n{context.redact(commission.title)}\n"
        context.branches_of(commission).write({commission.path: current_artifact(context, commission)}, message, AUTHOR)

    try:
        await asyncio.to_thread(write)
    except (GuildError, OSError) as error:
        _log.warning("%s: the artifact could not be written: %s", id, error)


async def refresh_artifact(context: CommissionContext, id: str) -> None:
    """Write an artifact if it is missing or outdated. Leave it if it was edited by hand."""

    def needs_writing() -> bool:
        commission = context.get(id)
        data = context.branches_of(commission).read(commission.path)
        if data is None:
            return True
        written = Artifact.decode(data, commission.path)
        return written.status != commission.status and written.revision < context.revision(id)

    if await asyncio.to_thread(needs_writing):
        await write_artifact(context, id)


def artifact_warnings(context: CommissionContext, commission: Commission) -> list[str]:
    """Return a warning if the artifact is missing, unreadable or edited by hand."""
    try:
        data = context.branches_of(commission).read(commission.path)
        if data is None:
            return [f"{commission.path} is missing on {INTEGRATION}"]
        written = Artifact.decode(data, commission.path)
    except GuildError as error:
        return [f"{commission.path}: {error.message}"]
    if written.status == commission.status or written.revision < context.revision(commission.id):
        return []
    return [f"{commission.path} was edited by hand to {written.status!r}, but the commission is {commission.status}"]


# rebuilding


def rebuild_rows(context: CommissionContext, project: Project) -> None:
    """Create the rows that are missing from the artifacts of a project, for example after the database was lost."""
    for id, data in context.unrecorded_artifacts(project, FOLDER):
        if not is_id(id, COMMISSION):
            continue
        try:
            commission = parse(id, project.name, data, context.now())
        except GuildError as error:
            _log.warning("%s", error)
            continue
        add = partial(records.add, activity=commission, kind="rebuild", reason=_REBUILT)
        context.store.submit(add).result()


def parse(id: str, project: str, data: bytes, now: str) -> Commission:
    """Return the commission that an artifact describes. Raise InvalidFile if it describes none.

    A worker may have written the file, so checks are dropped and the user has to dispatch the commission.
    """
    where = f"{project}: {id}"
    try:
        artifact = Artifact.parse(data.decode(), where)
        extra = artifact.extra
        if extra.get("commission") != id:
            raise InvalidFile("not the artifact of this commission", where=where)
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
        raise InvalidFile(f"not a valid commission: {error}", where=where) from None
