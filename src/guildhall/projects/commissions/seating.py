"""A worker in a commission: what it may use there, what it is told, and what must be there in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.jobs.model import Contract
from guildhall.projects.seating import in_checkout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from guildhall.projects.commissions.model import Commission
    from guildhall.workers.model import Worker

HOW_TO = """\
You work on a commission by yourself, in a checkout of the project that is yours alone. Nobody reads along, and what \
you merely say reaches nobody: change the files, and report through your tools. What is in the checkout in the end is \
committed and merged for you; do not use git.
- report_progress: where you are, in a few sentences, whenever that changes.
- log_question: what you cannot decide and a person should. Go on as well as you can without the answer.
- submit_result: the result, once, when all of the work is in the files. A commission counts as done when it was \
submitted and taken; if something is missing, you are told what."""
_DECISIONS = "- record_decision: each judgement call that you make on your own, with the reason."


def seated(worker: Worker) -> Worker:
    """The worker as it is in a commission: it works on files without declaring it."""
    return in_checkout(worker, "\n".join([HOW_TO, _DECISIONS] if worker.definition.base else [HOW_TO]))


def first_message(commission: Commission) -> str:
    """What the worker is told first."""
    draft = commission.draft
    parts = [f"Commission {commission.id}: {draft.title}", draft.prompt.rstrip()]
    there = dict.fromkeys((*draft.dependencies, *draft.linked))
    if there:
        parts.append("Read first, in the checkout:\n" + "\n".join(f"- {path}" for path in there))
    if draft.artifacts:
        parts.append("These files must be there in the end:\n" + "\n".join(f"- {path}" for path in draft.artifacts))
    return "\n\n".join(parts)


def contract_of(commission: Commission, schema: Mapping[str, Any] | None) -> Contract:
    """What the commission must give."""
    return Contract(artifacts=commission.draft.artifacts, schema=schema)


def contract_told(told: Mapping[str, Any]) -> Contract:
    """The same, as the record of its run has it."""
    return Contract.of(told)
