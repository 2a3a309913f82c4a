"""What the manager is told of workers, projects and commissions, in lines."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.projects.commissions.model import Commission, CommissionDetails
    from guildhall.projects.model import Project
    from guildhall.workers.model import Worker

_LINE = 300  # characters of what others have written, in a line
_RESULT = 20_000  # of a result, where one is told of


def worker_lines(workers: Sequence[Worker]) -> str:
    """Who there is, and what each can do."""
    lines = [f"- {one.name}: {_line(one.description or 'says nothing of itself')}{_uses(one)}" for one in workers]
    return "\n".join(lines) or "There are no workers that could be given work."


def _uses(worker: Worker) -> str:
    definition = worker.definition
    named = [*definition.tools, *definition.toolboxes, *definition.members, *definition.mcp_servers]
    return f" (uses {', '.join(named)})" if named else ""


def project_lines(projects: Sequence[Project], commissions: Sequence[Commission], *, here: Project | None) -> str:
    """The projects, with how their commissions stand."""
    lines: list[str] = []
    for project in projects:
        counts = Counter(one.status for one in commissions if one.project == project.name)
        stand = ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "no commissions"
        own = " (you are in it)" if here is not None and here.name == project.name else ""
        lines.append(f"- {project.name}{own}: the user's branch is {project.branch}; {stand}")
    return "\n".join(lines) or "No project is registered."


def commission_line(shown: CommissionDetails) -> str:
    """One of a listing."""
    one = shown.commission
    parts = [f"{one.id} {one.status}: {_line(one.title)} ({one.worker}, made by the {_maker(one)})"]
    if one.reason and one.status not in ("completed", "in_progress"):
        parts.append(_line(one.reason))
    parts += [f"needs {', '.join(shown.neighbours.missing)}"] if shown.neighbours.missing else []
    parts += [f"comes after {', '.join(shown.neighbours.after)}"] if shown.neighbours.after else []
    parts += [f"makes {', '.join(one.draft.artifacts)}"] if one.draft.artifacts else []
    parts += ["waits for a person"] if shown.waiting else []
    parts += shown.warnings if one.status == "dispatched" else []  # why it does not begin
    if one.summary and one.status == "in_progress":
        parts.append(_line(one.summary))
    return "- " + "; ".join(parts)


def _maker(commission: Commission) -> str:
    return "manager" if commission.by == "manager" else "user"


def outcome(shown: CommissionDetails) -> str:
    """How one stands that was waited for, with what came of it."""
    one = shown.commission
    lines = [commission_line(shown).removeprefix("- ")]
    if one.status == "completed":
        lines.append(f"What it gave:\n{_result(one.result)}")
    for asked in shown.asked:
        if asked.answer is None:
            lines.append(f"It asks a person: {_line(asked.question)}")
    return "\n".join(lines)


def _result(result: Any) -> str:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
    text = text.strip() or "nothing but its files"
    return text if len(text) <= _RESULT else f"{text[:_RESULT]}\n[cut: {len(text):,} characters in all]"


def _line(text: str) -> str:
    """What somebody has written, on one line and not too long."""
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return shown if len(shown) <= _LINE else f"{shown[:_LINE]}..."
