"""Job tools: give the worker of a job its tools, its first message, its read-only form and its contract.

The tools are `update_summary`, `record_decision`, `log_question`, `store_memory`, `write_artifact` and `submit_result`.
The model reads their docstrings. Answers that the user gave meanwhile are appended to the result of the next call.

Does not decide how a job ends: `jobs.service` does.

Invariant: a repeated call with an equal key has no second effect, which is the promise of `repeatable`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import READ_TOOLS, SUBMIT, WRITE_TOOLS, Decision, with_output_schema
from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, Refused, UsageError
from guildhall.core.text import check_text
from guildhall.jobs.model import Dispatch, artifact_path
from guildhall.runs.purpose import Contract
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from guildhall.activities.questions import QuestionChannel
    from guildhall.jobs.directory import JobFolder
    from guildhall.tools.model import Tool, ToolResult
    from guildhall.workers.model import Worker

    Remember = Callable[[str, str], Awaitable[ToolResult]]  # key and content of a memory entry


SERVER = "job"
_REMEMBER = "store_memory"
TOOLS = {
    "update_summary": frozenset[str](),
    "record_decision": frozenset[str](),
    "log_question": frozenset[str](),
    _REMEMBER: frozenset({"memory.write"}),
    "write_artifact": frozenset[str](),
    SUBMIT: frozenset[str](),
}
_MAX_SUMMARY = 20_000  # characters
_MAX_WORDS = 10_000
_MAX_FILE = 10_000_000


def job_tools(contract: Contract, *, remembers: bool) -> tuple[Tool, ...]:
    """Return the tools as the model sees them. A worker without memory has no store_memory."""
    needed = {name: needs for name, needs in TOOLS.items() if remembers or name != _REMEMBER}
    tools = bind_tools(JobTools, needed)
    return tuple(with_output_schema(one, contract.schema) if one.name == SUBMIT else one for one in tools)


@dataclass(frozen=True, eq=False)
class JobTools:
    """The tools of one call in a job. The model reads the docstrings."""

    folder: JobFolder
    contract: Contract
    lock: asyncio.Lock  # of the job's directory: concurrent calls write one after another
    questions: QuestionChannel
    remember: Remember
    key: str

    async def update_summary(self, summary: str) -> str:
        """Say how far you are: what is done, what you are at, what comes next. It replaces what you said before, and
        is all that others see of your work until there is a result.

        Args:
            summary: A few sentences.
        """
        check_text("summary", summary, _MAX_SUMMARY)
        await self._write(lambda folder: folder.summarise(summary))
        return "Noted."

    async def record_decision(self, question: str, decision: str, reasoning: str) -> str:
        """Record a judgement call that you made on your own, so that a person can review it later.

        Args:
            question: What had to be decided.
            decision: What you decided.
            reasoning: Why.
        """
        for name, text in (("question", question), ("decision", decision), ("reasoning", reasoning)):
            check_text(name, text, _MAX_WORDS)
        decided = Decision(question=question, decision=decision, reasoning=reasoning)
        await self._write(lambda folder: folder.decide(self.key, decided))
        return "Recorded."

    async def log_question(self, question: str, wait: bool = False) -> str:
        """Put a question to a person: something that you cannot find out and should not decide. You go on without the
        answer; if one comes while you work, you are told.

        Args:
            question: The question, understandable without having seen your work.
            wait: true: go on only with the answer, which may take hours.
        """
        check_text("question", question, _MAX_WORDS)
        answer = await self.questions.ask(self.key, question, wait)
        if wait:
            return "Nobody will answer: decide it yourself." if answer is None else f"A person has answered: {answer}"
        return "The question is noted for a person. Go on without the answer."

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
            path: Its name, such as report.md or tables/prices.csv.
            content: All of its text.
        """
        place = artifact_path(path)
        check_text("content", content, _MAX_FILE, allow_empty=True)
        await self._write(lambda folder: folder.write_artifact(place, content))
        return f"Written: artifacts/{place}"

    async def submit_result(self, output: str, artifacts: list[str] | None = None) -> str:
        """Submit the result of the job, when all of it is there. Files that belong to it are written before, with
        write_artifact. Submitted again, it replaces what was submitted before.

        Args:
            output: The whole result; whoever asked for the job reads this and the artifacts, and nothing else.
            artifacts: The files that belong to it, to be sure that they are there.
        """
        if isinstance(output, str):  # with a schema it may be anything  # pyright: ignore[reportUnnecessaryIsInstance]
            check_text("output", output, _MAX_FILE)
        named = tuple(map(artifact_path, artifacts or ()))
        contract = replace(self.contract, artifacts=tuple(dict.fromkeys((*self.contract.artifacts, *named))))
        try:
            await self._write(lambda folder: folder.give(folder.check_result(contract, output)))
        except NotFulfilled as error:
            raise UsageError(f"Not accepted: {error.message}", hint=error.hint) from None
        return "The result is submitted. Nothing more is to be done: end with a short word."

    async def _write(self, write: Callable[[JobFolder], object]) -> None:
        """Change the directory. Its path is left out of errors, because a model reads them."""
        try:
            async with self.lock:
                await asyncio.to_thread(write, self.folder)
        except (Conflict, InvalidFile) as error:
            raise Conflict(f"Not done: {error.message}") from None


HOW_TO = """\
You work on a job by yourself. Nobody reads along, and what you merely say reaches nobody: report through your tools.
- update_summary: where you are, in a few sentences, whenever that changes. Begin with it.
- record_decision: each judgement call that you make on your own, with the reason.
- log_question: what you cannot decide and a person should. Go on as well as you can; with wait: true you get the \
answer before you go on, which may take hours: only where nothing sensible can be done without it."""
_MEMORY = "- store_memory: save facts, preferences and approaches that worked, for later jobs."
_RESULT = """\
- write_artifact: files that belong to the result; it is the only way to write one.
- submit_result: the result, once, when all of it is there. A job counts as done when it was submitted."""


def refuse_writing(worker: Worker) -> None:
    """Raise Refused if a worker declares tools or sandboxes that write: a job has its own."""
    definition = worker.definition
    writing = [f"tools: {name}" for name in WRITE_TOOLS if name in definition.tools]
    writing += [f"sandboxes.{name}: mode rw" for name, box in definition.sandboxes.items() if box.mode == "rw"]
    if writing:
        raise Refused(
            f"{worker.name} cannot take a job: it declares {', '.join(writing)}, and a job has its own way to write",
            where=worker.place,
            hint="Take out what is named (write_artifact writes files in a job), or use `guild run`.",
        )


def job_profile(worker: Worker) -> Worker:
    """Return the worker as it is in a job: it reads, and writes only with the tools of the job."""
    definition = worker.definition
    declared = [name for name in definition.tools if name not in (*READ_TOOLS, *WRITE_TOOLS)]
    boxes = {name: box.model_copy(update={"mode": "ro"}) for name, box in definition.sandboxes.items()}
    # What the result must look like is told by submit_result.
    changed = {"tools": (*READ_TOOLS, *declared), "sandboxes": boxes, "output_schema_ref": None}
    how_to = "\n".join([HOW_TO, _MEMORY, _RESULT] if definition.base else [HOW_TO, _RESULT])
    instructions = f"{worker.instructions.rstrip()}\n\n{how_to}\n"
    return replace(worker, definition=definition.model_copy(update=changed), instructions=instructions)


def first_message(dispatch: Dispatch) -> str:
    """Return the first message: the task, and the worker's own part of the configuration as data."""
    if not dispatch.own:
        return dispatch.task
    shown = json.dumps(dispatch.own, indent=2, ensure_ascii=False)
    return f"{dispatch.task.rstrip()}\n\nThe configuration of this job, as JSON:\n{shown}"


def contract_of(worker: Worker, dispatch: Dispatch, schema: Mapping[str, Any] | None) -> Contract:
    """Return the contract of a job, from the worker file and the dispatch."""
    try:
        own = tuple(map(artifact_path, worker.definition.completion.artifacts))
    except UsageError as error:
        raise InvalidFile(f"completion.{error.message}", where=worker.place, hint=error.hint) from None
    return Contract(artifacts=tuple(dict.fromkeys((*own, *dispatch.artifacts))), schema=schema)
