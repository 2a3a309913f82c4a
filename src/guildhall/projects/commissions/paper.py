"""A commission as its artifact: what the row says, written where people and workers read it. The row is what counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import COMMISSION, is_id
from guildhall.jobs.contract import as_text
from guildhall.projects.artifact import Artifact
from guildhall.projects.commissions.model import UNDER_WAY, Commission, Draft, checked_status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.jobs.model import Asked, Decided
    from guildhall.projects.model import Moment

TAG = "commission"
_KEPT = ("worker", "prompt", "dependencies", "artifacts", "linked", "max_turns", "max_budget_usd", "model", "reviewer")
_LONGEST = 20_000  # characters of a result or of an output that the artifact repeats


def written(
    commission: Commission,
    timeline: Sequence[Moment],
    *,
    redact: Callable[[str], str],
    decisions: Sequence[Decided] = (),
    asked: Sequence[Asked] = (),
) -> bytes:
    """The text of the artifact. Secrets are taken out of what was said before it is cut and put into lines."""

    def flat(text: str) -> str:
        return " ".join(redact(text).split())[:2_000]

    draft = commission.draft.as_dict()
    extra: dict[str, Any] = {
        "commission": commission.id,
        "project": commission.project,
        **{name: draft[name] for name in _KEPT if draft.get(name)},
        **({"checks": draft["checks"]} if draft["checks"] else {}),
        "by": commission.by,
        "attempt": commission.attempt,
        **({"branch": commission.branch} if commission.branch else {}),
        "created_at": commission.created_at,
        "revision": sum(1 for one in timeline if one.after is not None),
    }
    parts: list[str] = []
    if commission.result is not None:
        parts.append(f"## Result\n\n{_cut(redact(as_text(commission.result)))}")
    if decisions:
        parts.append("## Decisions\n\n" + "\n".join(_decision(one, flat) for one in decisions))
    if asked:
        parts.append("## Questions\n\n" + "\n".join(_question(one, flat) for one in asked))
    parts.append("## Timeline\n\n" + "\n".join(_line(one, flat) for one in timeline))
    artifact = Artifact(
        title=commission.title,
        date=commission.created_at[:10],
        status=commission.status,
        tags=(TAG,),
        extra=extra,
        body="\n" + "\n\n".join(parts) + "\n",
    )
    return artifact.redacted(redact).render().encode()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n[... {len(text) - _LONGEST:,} characters left out]"


def _decision(one: Decided, flat: Callable[[str], str]) -> str:
    return f"- {flat(one.question)}\n  - decided: {flat(one.decision)}\n  - because: {flat(one.reasoning)}"


def _question(one: Asked, flat: Callable[[str], str]) -> str:
    return f"- {flat(one.question)}\n  - {flat(one.answer) if one.answer else 'not answered'}"


def _line(one: Moment, flat: Callable[[str], str]) -> str:
    return f"- {one.at} {f'**{one.after}**: ' if one.after else ''}{flat(one.reason)}"


def rebuilt(id: str, project: str, data: bytes, now: str) -> Commission:
    """The commission that an artifact tells of, where the row is gone. InvalidFile: it tells of none.

    Commands are not taken from it: whoever writes artifacts must not say what is executed. Nor is it believed whose
    it is.
    """
    where = f"{project}: {id}"
    try:
        artifact = Artifact.parse(data.decode(), where)
        extra: Mapping[str, Any] = artifact.extra
        if not is_id(id, COMMISSION) or extra.get("commission") != id:
            raise InvalidFile("it is not the artifact of this commission", where=where)
        given: dict[str, Any] = {name: extra[name] for name in _KEPT if extra.get(name) is not None}
        given |= {name: tuple(given[name]) for name in ("dependencies", "artifacts", "linked") if name in given}
        draft = Draft(title=str(artifact.title), **given)
        draft.check()
        status = checked_status(str(artifact.status))
        attempt = extra.get("attempt")
        return Commission(
            id=id,
            project=project,
            draft=draft,
            status="failed" if status in UNDER_WAY else status,
            by="artifact",
            attempt=attempt if isinstance(attempt, int) and 0 <= attempt < 10_000 else 0,
            branch=str(extra["branch"]) if extra.get("branch") else None,
            created_at=str(extra.get("created_at") or now),
            changed_at=now,
        )
    except (GuildError, TypeError, ValueError) as error:
        raise InvalidFile(f"it cannot be read as a commission: {error}", where=where) from None
