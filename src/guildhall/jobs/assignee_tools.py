"""Job tools: defines the tools, the instructions, the first message and the contract of a job.

Does not decide how a job ends: `jobs.service` does.

Invariant: the tools are idempotent. A repeated call with an equal key has no second effect.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import READ_TOOLS, SUBMIT, WRITE_TOOLS, Decision, with_output_schema
from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, Refused, UsageError
from guildhall.core.text_checks import check_text
from guildhall.jobs.model import Dispatch, artifact_path
from guildhall.runs.purpose import Contract
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from guildhall.activities.questions import QuestionChannel
    from guildhall.jobs.directory import JobDirectory
    from guildhall.tools.model import Tool, ToolResult
    from guildhall.workers.model import Worker

    Remember = Callable[[str, str], Awaitable[ToolResult]]  # key and content of a memory entry


SERVER = "job"
_STORE_MEMORY = "store_memory"
TOOLS = {
    "update_summary": frozenset[str](),
    "record_decision": frozenset[str](),
    "log_question": frozenset[str](),
    _STORE_MEMORY: frozenset({"memory.write"}),
    "write_artifact": frozenset[str](),
    SUBMIT: frozenset[str](),
}
WITHHELD = frozenset({"memory.write"})  # a job has store_memory instead of memory_write
_MAX_SUMMARY_CHARS = 20_000
_MAX_TEXT_CHARS = 10_000
_MAX_FILE_CHARS = 10_000_000


def job_tools(contract: Contract, *, has_memory: bool) -> tuple[Tool, ...]:
    """Return the tool definitions of a job. A worker without memory has no store_memory."""
    capabilities = {name: needs for name, needs in TOOLS.items() if has_memory or name != _STORE_MEMORY}
    # All questions of a model response are asked at once.
    tools = (replace(tool, parallel=tool.name == "log_question") for tool in bind_tools(JobTools, capabilities))
    return tuple(with_output_schema(tool, contract.schema) if tool.name == SUBMIT else tool for tool in tools)


@dataclass(frozen=True, eq=False)
class JobTools:
    """The tools of a job, for one call. The model reads the docstrings."""

    directory: JobDirectory
    contract: Contract
    lock: asyncio.Lock  # concurrent calls write to the directory one after another
    questions: QuestionChannel
    remember: Remember
    key: str  # the key of the call

    async def update_summary(self, summary: str) -> str:
        """Report your progress: the finished, the current and the next steps. Replaces your last summary.
        Until the result is submitted, others see only this summary of your work.

        Args:
            summary: 1-3 sentences.
        """
        check_text("summary", summary, _MAX_SUMMARY_CHARS)
        await self._write(lambda directory: directory.write_summary(summary))
        return "Summary updated."

    async def record_decision(self, question: str, decision: str, reasoning: str) -> str:
        """Record a decision that you made without the user, with its reason, for later review.

        Args:
            question: The question that you had to decide.
            decision: Your decision.
            reasoning: The reason.
        """
        for name, text in (("question", question), ("decision", decision), ("reasoning", reasoning)):
            check_text(name, text, _MAX_TEXT_CHARS)
        entry = Decision(question=question, decision=decision, reasoning=reasoning)
        await self._write(lambda directory: directory.add_decision(self.key, entry))
        return "Decision recorded."

    async def log_question(self, question: str, wait: bool = False) -> str:
        """Ask the user something that you cannot find out and should not decide. Continue without the answer. If one
        comes while you work, it is appended to the result of a later call.

        Args:
            question: The question, understandable without having seen your work.
            wait: true: wait for the answer, which can take hours.
        """
        check_text("question", question, _MAX_TEXT_CHARS)
        answer = await self.questions.ask(self.key, question, wait)
        if not wait:
            return "Question recorded. Continue without an answer; it is delivered if the user replies while you work."
        if answer is None:
            return "No answer will come. Decide yourself and record the decision."
        return f"The user answered: {answer}"

    async def store_memory(self, key: str, content: str) -> ToolResult:
        """Save a note for later jobs: a fact, a preference of the user, an approach that worked. Storing an existing
        key replaces its whole content.

        Args:
            key: Short name such as build-commands. Letters, digits, "_", "-" and "."; no slash, no file suffix.
            content: The whole note. Never save passwords or API keys.
        """
        return await self.remember(key, content)

    async def write_artifact(self, path: str, content: str) -> str:
        """Write a file that belongs to the result. Writing a path again replaces the file.

        Args:
            path: Path of the file, such as report.md or tables/prices.csv.
            content: The whole text of the file.
        """
        path = artifact_path(path)
        check_text("content", content, _MAX_FILE_CHARS, allow_empty=True)
        await self._write(lambda directory: directory.write_artifact(path, content))
        return f"Wrote artifacts/{path}."

    async def submit_result(self, output: str, artifacts: list[str] | None = None) -> str:
        """Submit the complete result of the job. Write its files with write_artifact first. Submitting again replaces
        the earlier result.

        Args:
            output: The whole result. The requester reads only this and the artifacts.
            artifacts: Paths of files that belong to the result. The result is rejected if one is missing.
        """
        if isinstance(output, str):  # with a schema it may be anything  # pyright: ignore[reportUnnecessaryIsInstance]
            check_text("output", output, _MAX_FILE_CHARS)
        required = (*self.contract.artifacts, *map(artifact_path, artifacts or ()))
        contract = replace(self.contract, artifacts=tuple(dict.fromkeys(required)))
        try:
            await self._write(lambda directory: directory.write_result(directory.check_result(contract, output)))
        except NotFulfilled as error:
            raise UsageError(error.message, hint=error.hint) from None
        return "Result accepted. The task is complete; finish with one short sentence."

    async def _write(self, write: Callable[[JobDirectory], object]) -> None:
        """Change the directory of the job. Errors do not contain its path, because a model reads them."""
        try:
            async with self.lock:
                await asyncio.to_thread(write, self.directory)
        except (Conflict, InvalidFile) as error:
            raise Conflict(error.message) from None


_INTRODUCTION = """\
You are working unattended. Your messages are not shown to anyone; report only through the tools below.
- update_summary: your current progress in 1-3 sentences. Call it first, then whenever the status changes.
- record_decision: each decision that you make without the user, with its reason.
- log_question: ask the user about something that you cannot decide. Continue without the answer unless wait is true. \
Wait only if no useful work is possible without the answer, which can take hours."""
_MEMORY = "- store_memory: save facts, preferences and approaches that worked, for later jobs."
_RESULT = """\
- write_artifact: write a file of the result. You cannot write files in another way.
- submit_result: the complete result, once. The job is complete only when a result was accepted."""


def check_read_only(worker: Worker) -> None:
    """Raise Refused if a worker declares tools or sandboxes that write. A job writes only with its own tools."""
    definition = worker.definition
    writing = [f"the tool {name}" for name in WRITE_TOOLS if name in definition.tools]
    writing += [f"a writable sandbox ({name})" for name, box in definition.sandboxes.items() if box.mode == "rw"]
    if writing:
        message = f"{worker.name} cannot run as a job: it has {' and '.join(writing)}"
        hint = "Jobs write files only with write_artifact. Change the worker file, or use `guild run`."
        raise Refused(message, where=worker.place, hint=hint)


def job_profile(worker: Worker) -> Worker:
    """Return the worker with the instructions of a job, read-only sandboxes and the tools that read files."""
    definition = worker.definition
    others = [name for name in definition.tools if name not in (*READ_TOOLS, *WRITE_TOOLS)]
    sandboxes = {name: sandbox.model_copy(update={"mode": "ro"}) for name, sandbox in definition.sandboxes.items()}
    # The output schema is in submit_result.
    changes = {"tools": (*READ_TOOLS, *others), "sandboxes": sandboxes, "output_schema_ref": None}
    how_to = "\n".join([_INTRODUCTION, _MEMORY, _RESULT] if definition.base else [_INTRODUCTION, _RESULT])
    instructions = f"{worker.instructions.rstrip()}\n\n{how_to}\n"
    return replace(worker, definition=definition.model_copy(update=changes), instructions=instructions)


def first_message(dispatch: Dispatch) -> str:
    """Return the first message: the task, and the configuration for the worker as JSON."""
    if not dispatch.worker_config:
        return dispatch.task
    config = json.dumps(dispatch.worker_config, indent=2, ensure_ascii=False)
    return f"{dispatch.task.rstrip()}\n\nThe configuration of this job, as JSON:\n{config}"


def job_contract(worker: Worker, dispatch: Dispatch, schema: Mapping[str, Any] | None) -> Contract:
    """Return the contract of a job, from the worker file and the dispatch."""
    try:
        own = tuple(map(artifact_path, worker.definition.completion.artifacts))
    except UsageError as error:
        raise InvalidFile(f"completion.{error.message}", where=worker.place, hint=error.hint) from None
    return Contract(artifacts=tuple(dict.fromkeys((*own, *dispatch.artifacts))), schema=schema)
