"""Job model: defines a dispatch, a job, its result, and the operations that halls and members share.

Does no I/O: `jobs.directory` accesses the files, `jobs.service` performs the operations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from guildhall.core.errors import UsageError
from guildhall.core.text_checks import check_line, check_text, did_you_mean, is_text
from guildhall.runs.model import check_limits
from guildhall.tools.model import MAX_NESTING, is_shallow

if TYPE_CHECKING:
    from guildhall.activities.contract import AskedQuestion, Decision

JobStatus = Literal["running", "completed", "failed", "cancelled"]
Detail = Literal["simple", "detailed"]

MAX_DESCRIPTION_CHARS = 1_000
MAX_TASK_BYTES = 1_000_000
MAX_CONFIG_BYTES = 100_000  # as JSON
MAX_ARTIFACTS = 100  # that a dispatch can require
_LONG_HINT = "Put the data in a file that the worker can read."
_DEEP_HINT = "Use a flatter object, or put the data in a file that the worker can read."
_HALL_FIELDS = ("maxTurns", "maxBudgetUsd", "artifacts", "model")
_LIMITS = {"max_turns": "config.maxTurns", "max_budget_usd": "config.maxBudgetUsd"}


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A request for a job. The hall reads limits, model and artifacts from `config`; the worker reads the rest."""

    description: str  # a short label
    task: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def max_turns(self) -> int | None:
        return self.config.get("maxTurns")

    @property
    def max_budget_usd(self) -> float | None:
        return self.config.get("maxBudgetUsd")

    @property
    def model(self) -> str | None:
        return self.config.get("model")

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Return the paths of the files that the job must write."""
        return tuple(map(artifact_path, self.config.get("artifacts") or ()))

    @property
    def worker_config(self) -> dict[str, Any]:
        """Return the part of the configuration that is for the worker."""
        return {name: value for name, value in self.config.items() if name not in _HALL_FIELDS}

    @property
    def misspelled_fields(self) -> dict[str, str]:
        """Return the fields for the worker that resemble a field of the hall, each with the right name."""
        import difflib

        known = {name.lower(): name for name in _HALL_FIELDS}
        names = ((name, name.lower().replace("_", "")) for name in self.worker_config)
        matches = {name: difflib.get_close_matches(lowered, known, 1, 0.8) for name, lowered in names}
        return {name: known[found[0]] for name, found in matches.items() if found}

    def check(self) -> None:
        # Check the task first, because a command without a task has no description either.
        check_text(
            "task", self.task, max_bytes=MAX_TASK_BYTES, long_hint="Write it to a file that the worker can read."
        )
        check_line("description", self.description, MAX_DESCRIPTION_CHARS)
        _check_config(self.config)
        check_limits(max_turns=self.max_turns, max_budget_usd=self.max_budget_usd, names=_LIMITS)
        if self.model is not None and not (is_text(self.model) and self.model.strip()):
            raise UsageError("invalid config of the job: `model` is not the name of a model")
        artifacts: object = self.config.get("artifacts")
        if artifacts is not None and not isinstance(artifacts, list | tuple):
            raise UsageError("invalid config of the job: `artifacts` is not a list of paths")
        if len(self.artifacts) > MAX_ARTIFACTS:
            raise UsageError(f"invalid config of the job: `artifacts` has more than {MAX_ARTIFACTS} paths")


def _check_config(config: object) -> None:
    if not isinstance(config, dict):
        raise UsageError("invalid config of the job: not a JSON object")
    if not is_shallow(config):
        raise UsageError(f"invalid config of the job: more than {MAX_NESTING} levels of nesting", hint=_DEEP_HINT)
    try:
        text = json.dumps(config, allow_nan=False)
        json.dumps(config, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise UsageError("invalid config of the job: not JSON") from None
    if len(text) > MAX_CONFIG_BYTES:
        raise UsageError(f"invalid config of the job: longer than {MAX_CONFIG_BYTES:,} bytes", hint=_LONG_HINT)


def check_no_model(config: Mapping[str, Any] | None) -> None:
    """Raise UsageError if the configuration chooses a model. A worker that dispatches a job must not choose it."""
    if config and "model" in config:
        raise UsageError("invalid config of the job: only the user can choose the model", hint="Omit `model`.")


def artifact_path(path: object) -> str:
    """Return a path relative to artifacts/. Raise UsageError if the path is invalid or leads out of artifacts/."""
    if not isinstance(path, str) or not is_text(path) or not path.strip():
        raise UsageError("artifacts: invalid path: expected text such as report.md")
    shown = repr(path[:100])
    parts = path.split("/")
    if parts[0] == "artifacts" and len(parts) > 1:
        parts = parts[1:]
    if len(path.encode()) > 500 or len(parts) > 16 or not path.isprintable():
        raise UsageError(f"artifacts: invalid path {shown}: more than 500 bytes, more than 16 parts, or not printable")
    if any(part in ("", ".", "..") or part.startswith(".") or "\\" in part for part in parts):
        hint = "Use a relative path such as report.md or tables/prices.csv, without '..' and hidden names."
        raise UsageError(f"artifacts: invalid path {shown}: not a plain relative path", hint=hint)
    if any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"artifacts: invalid path {shown}: a name exceeds 200 bytes")
    return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of the hall or of a member.

    The id of a member's job is local to the member, and `worker` is the name of the member. Listings of members have
    no times, and responses to `cancel` have no description. These fields are empty then.
    """

    id: str
    worker: str
    description: str
    status: JobStatus
    started_at: str
    completed_at: str | None = None
    error: str | None = None
    late_error: str | None = None  # the error of the run after its result was accepted
    run: str | None = None
    summary: str | None = None  # written by the worker

    @property
    def position(self) -> tuple[str, str]:
        return self.started_at, self.id

    def row(self, detail: Detail = "simple") -> dict[str, Any]:
        """Return the row of `worker/list`."""
        simple = {"jobId": self.id, "status": self.status}
        if detail == "simple":
            return simple
        return {**simple, "description": self.description, "summary": self.summary}

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.row("detailed"),
            "worker": self.worker,
            "run": self.run,
            "error": self.error,
            "startedAt": self.started_at or None,
            "completedAt": self.completed_at,
        }


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of jobs, newest first. `next`: the cursor of the following page, or None on the last page."""

    jobs: Sequence[Job]
    next: str | None = None

    def as_wire(self, detail: Detail = "simple") -> dict[str, Any]:
        rows = [job.row(detail) for job in self.jobs]
        return {"jobs": rows} if self.next is None else {"jobs": rows, "nextCursor": self.next}


@dataclass(frozen=True, kw_only=True)
class JobDetails:
    """A job with its questions, decisions, artifacts and cost, without its result."""

    job: Job
    questions: Sequence[str] = ()  # texts of open questions and other open asks
    decisions: Sequence[Decision] = ()
    is_waiting: bool = False  # the job cannot continue until the user answers
    waiting_asks: Sequence[str] = ()  # ids of the asks that the job waits for; empty for jobs of members
    question_log: Sequence[AskedQuestion] = ()  # all questions, with their answers; of a member: the answered ones
    artifacts: Sequence[str] = ()
    cost_usd: float | None = None
    directory: str | None = None
    hint: str | None = None  # the next step for a failed job

    def as_wire(self) -> dict[str, Any]:
        """Return the result of `worker/status`."""
        job = self.job
        answered = [{"question": asked.question, "answer": asked.answer} for asked in self.question_log if asked.answer]
        return {
            "jobId": job.id,
            "status": job.status,
            "description": job.description,
            "summary": job.summary,
            "questions": list(self.questions) or None,
            "decisions": [decision.as_wire() for decision in self.decisions] or None,
            "error": job.error,
            "startedAt": job.started_at,
            "completedAt": job.completed_at,
            **({"waiting": True} if self.is_waiting else {}),
            **({"answered": answered} if answered else {}),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the job for `--json`, with the fields that `worker/status` does not have."""
        return {
            **self.as_wire(),
            "worker": self.job.worker,
            "run": self.job.run,
            "lateError": self.job.late_error,
            "asked": [question.as_dict() for question in self.question_log],
            "waiting": list(self.waiting_asks),
            "artifacts": list(self.artifacts) or None,
            "cost_usd": self.cost_usd,
            "directory": self.directory,
            "hint": self.hint,
        }


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job. Its paths are relative to the job's directory."""

    id: str
    output: str
    artifacts: Sequence[str] = ()

    def as_wire(self) -> dict[str, Any]:
        """Return the result of `worker/result`."""
        return {"jobId": self.id, "output": self.output, "artifacts": list(self.artifacts) or None}


class WorkerJobs(Protocol):
    """The jobs of one worker or member."""

    async def dispatch(self, dispatch: Dispatch) -> Job: ...

    async def page(
        self,
        *,
        detail: Detail = "detailed",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page: ...

    async def status(self, id: str) -> JobDetails: ...

    async def result(self, id: str) -> JobResult: ...

    async def cancel(self, id: str) -> Job: ...

    async def delete(self, id: str, *, force: bool = False) -> None: ...

    async def resume(self, id: str, *, max_turns: int | None = None, budget: float | None = None) -> Job:
        """Resume a failed job in the background. The arguments raise its limits."""
        ...

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        """Answer an open question. Return the text of the question, or "" if it is unknown."""
        ...


def open_question(details: JobDetails, question: str | None) -> AskedQuestion:
    """Return the open question with this text, or the only one. Raise UsageError if it is missing or ambiguous."""
    matching = [asked for asked in details.question_log if asked.answer is None and question in (None, asked.question)]
    if not matching:
        unknown = "no open question" if question is None else f"no open question {question[:100]!r}"
        raise UsageError(f"cannot answer: the job {details.job.id} has {unknown}", hint="Check the status of the job.")
    if question is None and len(matching) > 1:
        hint = "Pass the text of a question as `question`."
        raise UsageError(f"cannot answer: the job has {len(matching)} open questions", hint=hint)
    return matching[0]


def parse_detail(value: object) -> Detail:
    """Return the level of detail. Raise UsageError if the value is not a level."""
    if value in get_args(Detail):
        return cast("Detail", value)
    raise UsageError(f"unknown detail {str(value)[:40]!r}", hint=did_you_mean(str(value), get_args(Detail)))
