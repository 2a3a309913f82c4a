"""The worker's side of a commission: instructions, input, and the tools to report, ask and submit.

New answers of the user are appended to the result of the next tool call.
Does not check a submitted result (`contract.py`).

Invariant: the tools are idempotent by the key of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import SUBMIT, with_output_schema
from guildhall.core.errors import NotFulfilled, UsageError
from guildhall.core.text_checks import check_text
from guildhall.projects.commissions import records
from guildhall.projects.commissions.contract import submit
from guildhall.projects.commissions.model import TOOLS, Commission
from guildhall.projects.model import is_hall_path
from guildhall.projects.workspace import checkout_profile
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from guildhall.activities.questions import QuestionChannel
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.runs.purpose import Contract
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

SERVER = "commission"
_MAX_SUMMARY_CHARS = 20_000
_MAX_QUESTION_CHARS = 10_000
_MAX_RESULT_CHARS = 1_000_000

_INSTRUCTIONS = """\
You are working on a commission, unattended, in a checkout of the project that only you use. Your messages are not \
shown to anyone: change the files, and report only through the tools below. When you have finished, everything in the \
checkout is committed and merged for you; do not use git.
- report_progress: your current progress in 1-3 sentences. Call it first, then whenever the status changes.
- log_question: ask the user about something that you cannot decide. Continue without the answer.
- submit_result: submit the result when all of the work is in the files. The commission is complete only after a \
result is accepted. A rejection lists what is missing."""
_DECISIONS = "- record_decision: record every decision that you make without the user, with its reason."


def commission_profile(worker: Worker) -> Worker:
    """Return the worker with file tools and the instructions for a commission."""
    instructions = f"{_INSTRUCTIONS}\n{_DECISIONS}" if worker.definition.base else _INSTRUCTIONS
    return checkout_profile(worker, instructions)


def commission_message(commission: Commission) -> str:
    draft = commission.draft
    parts = [f"Commission {commission.id}: {draft.title}", draft.prompt.rstrip()]
    paths = dict.fromkeys((*draft.dependencies, *draft.linked))
    records, files = [path for path in paths if is_hall_path(path)], [path for path in paths if not is_hall_path(path)]
    if files:
        parts.append("Read these files in the checkout first:\n" + "\n".join(f"- {path}" for path in files))
    if records:
        parts.append("Read these with artifact_read first:\n" + "\n".join(f"- {path}" for path in records))
    if draft.artifacts:
        parts.append(
            "Required files (the commission is rejected without them):\n"
            + "\n".join(f"- {path}" for path in draft.artifacts)
        )
    return "\n\n".join(parts)


def commission_tools(schema: Mapping[str, Any] | None) -> tuple[Tool, ...]:
    """Return the tool definitions. `schema`: JSON Schema of the result, or None for text."""
    tools = bind_tools(CommissionTools, dict.fromkeys(TOOLS, ()))
    return tuple(with_output_schema(tool, schema) if tool.name == SUBMIT else tool for tool in tools)


class CommissionTools:
    """The tools of one call in a commission. The model reads the docstrings of the methods."""

    def __init__(
        self, context: CommissionContext, id: str, contract: Contract, questions: QuestionChannel, key: str
    ) -> None:
        self._context = context
        self._id = id
        self._contract = contract
        self._questions = questions
        self._key = key

    async def report_progress(self, summary: str) -> str:
        """Report your progress: completed steps, current step, next steps. It replaces your last report.

        Args:
            summary: A few sentences.
        """
        check_text("summary", summary, _MAX_SUMMARY_CHARS)
        now = self._context.now()
        await self._context.store.write(
            lambda connection: records.update_fields(connection, self._id, now, summary=summary)
        )
        return "Reported."

    async def log_question(self, question: str) -> str:
        """Ask the user about something that you cannot find out and should not decide. Continue without the answer. An
        answer that arrives while you work is appended to the result of a later call.

        Args:
            question: The question, understandable without having seen your work.
        """
        check_text("question", question, _MAX_QUESTION_CHARS)
        await self._questions.ask(self._key, question, False)
        return "Question recorded. Continue without an answer; it will be delivered if the user replies while you work."

    async def submit_result(self, output: str) -> str:
        """Submit the result of the commission when all of the work is in the files. The files and the result are
        checked. A rejection lists what is missing: correct it and submit again.

        Args:
            output: The work and its outcome. Do not repeat the content of the files.
        """
        if isinstance(output, str):  # a schema allows other types  # pyright: ignore[reportUnnecessaryIsInstance]
            check_text("output", output, _MAX_RESULT_CHARS)
        try:
            warning = await submit(self._context, self._id, self._key, self._contract, output)
        except NotFulfilled as error:
            raise UsageError(error.message, hint=error.hint) from None
        if warning:
            return f"Result submitted. {warning} Otherwise the commission is complete; finish with a brief message."
        return "Result submitted. The commission is complete; finish with a brief closing message."
