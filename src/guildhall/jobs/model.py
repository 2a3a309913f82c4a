"""Job model: defines a dispatch, a job, its status and its result, and converts them to wire and JSON form.

Checks the fields of a dispatch and the paths of artifacts. Declares the operations that the jobs of a hall and the
jobs of a member share.

Does no I/O: `jobs.directory` accesses the files, `jobs.service` performs the operations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from guildhall.core.errors import UsageError
from guildhall.core.text import check_line, check_text, did_you_mean, is_text
from guildhall.runs.model import check_limits
from guildhall.tools.model import is_shallow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.activities.contract import AskedQuestion, Decision

JobStatus = Literal["running", "completed", "failed", "cancelled"]
Detail = Literal["simple", "detailed"]

LONGEST_DESCRIPTION = 1_000  # characters
LONGEST_TASK = 1_000_000  # bytes
LONGEST_CONFIG = 100_000  # bytes, as JSON
MOST_ARTIFACTS = 100  # that a dispatch or a worker may demand
_OURS = ("maxTurns", "maxBudgetUsd", "artifacts", "model")
_LIMITS = {"max_turns": "config.maxTurns", "max_budget_usd": "config.maxBudgetUsd"}


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A request for a job. `config` is for the worker, except for limits, model and artifacts."""

    description: str  # a short label
    task: str  # all that the worker is told
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
        """Return the files that the job must write."""
        return tuple(map(artifact_path, self.config.get("artifacts") or ()))

    @property
    def own(self) -> dict[str, Any]:
        """Return the part of the configuration that is for the worker."""
        return {name: value for name, value in self.config.items() if name not in _OURS}

    @property
    def near_misses(self) -> dict[str, str]:
        """Return the fields for the worker that were probably meant for the hall, each with the right name."""
        import difflib

        ours = {name.lower(): name for name in _OURS}
        near = {name: difflib.get_close_matches(name.lower().replace("_", ""), ours, 1, 0.8) for name in self.own}
        return {name: ours[found[0]] for name, found in near.items() if found}

    def check(self) -> None:
        """Raise UsageError if a field is not valid."""
        check_text("task", self.task, LONGEST_TASK)  # first: without a task there is no label either
        check_line("description", self.description, LONGEST_DESCRIPTION)
        if len(self.task.encode()) > LONGEST_TASK:
            hint = "Put it into a file that it reads."
            raise UsageError(f"task: it is longer than {LONGEST_TASK:,} bytes", hint=hint)
        _check_config(self.config)
        check_limits(max_turns=self.max_turns, max_budget_usd=self.max_budget_usd, names=_LIMITS)
        if self.model is not None and not (is_text(self.model) and self.model.strip()):
            raise UsageError("config.model: expected the name of a model")
        wanted: object = self.config.get("artifacts")
        if wanted is not None and not isinstance(wanted, list | tuple):
            raise UsageError("config.artifacts: expected a list of paths")
        if len(self.artifacts) > MOST_ARTIFACTS:
            raise UsageError(f"config.artifacts: more than {MOST_ARTIFACTS} cannot be demanded")


def _check_config(config: object) -> None:
    if not isinstance(config, dict):
        raise UsageError("config: expected an object")
    if not is_shallow(config):
        raise UsageError("config: it is nested too deeply")
    try:
        text = json.dumps(config, allow_nan=False)
        json.dumps(config, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise UsageError("config: it is not JSON") from None
    if len(text) > LONGEST_CONFIG:
        raise UsageError(f"config: it is longer than {LONGEST_CONFIG:,} bytes")


def refuse_choice_of_model(config: Mapping[str, Any] | None) -> None:
    """Raise UsageError if a model that dispatches a job chooses the model that does it: only people do."""
    if config and "model" in config:
        raise UsageError("config.model: which model does the work is for a person to say", hint="Leave it out.")


def artifact_path(path: object) -> str:
    """Return a path relative to artifacts/. Raise UsageError if it leads out of there or is not valid."""
    if not isinstance(path, str) or not is_text(path) or not path.strip():
        raise UsageError("artifacts: expected a path such as report.md")
    shown = repr(path[:100])
    parts = path.split("/")
    if parts[0] == "artifacts" and len(parts) > 1:
        parts = parts[1:]
    if len(path.encode()) > 500 or len(parts) > 16 or not path.isprintable():
        raise UsageError(f"artifacts: {shown} cannot be the path of an artifact")
    if any(part in ("", ".", "..") or part.startswith(".") or "\\" in part for part in parts):
        hint = "Give a path like report.md or tables/prices.csv: relative, without '..' and hidden names."
        raise UsageError(f"artifacts: {shown} does not lie below artifacts/", hint=hint)
    if any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"artifacts: {shown} has a name in it that is too long")
    return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as its directory has it, or as a member describes it.

    A member's id is local to the member, and `worker` is the member. A listing of a member has no times, and its answer
    to `cancel` has no description; these are empty then.
    """

    id: str
    worker: str
    description: str
    status: JobStatus
    started_at: str
    completed_at: str | None = None
    error: str | None = None
    late_error: str | None = None  # what went wrong after the result was there
    run: str | None = None  # the run that does it, or did
    summary: str | None = None  # in the worker's own words; None: it has written none

    @property
    def place(self) -> tuple[str, str]:
        """Return the position in a listing."""
        return self.started_at, self.id

    def row(self, detail: Detail = "simple") -> dict[str, Any]:
        """Return the row of `worker/list`."""
        simple = {"jobId": self.id, "status": self.status}
        if detail == "simple":
            return simple
        return {**simple, "description": self.description, "summary": self.summary}

    def as_dict(self) -> dict[str, Any]:
        """Return the job for `--json`."""
        return {
            **self.row("detailed"),
            "worker": self.worker,
            "run": self.run,
            "error": self.error,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
        }


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of jobs, newest first. `next` is the cursor of the following page."""

    jobs: Sequence[Job]
    next: str | None = None

    def as_wire(self, detail: Detail = "simple") -> dict[str, Any]:
        rows = [job.row(detail) for job in self.jobs]
        return {"jobs": rows} if self.next is None else {"jobs": rows, "nextCursor": self.next}


@dataclass(frozen=True, kw_only=True)
class JobShown:
    """All about a job but for its result."""

    job: Job
    questions: Sequence[str] = ()  # that are open, and whatever else of it waits for a person
    decisions: Sequence[Decision] = ()
    waits: bool = False  # for the user, and nothing continues until then
    waiting: Sequence[str] = ()  # the ids of the asks that it waits for; a member's asks have no ids here
    asked: Sequence[AskedQuestion] = ()  # all questions, with their answers
    artifacts: Sequence[str] = ()
    cost_usd: float | None = None
    directory: str | None = None  # where its files are
    hint: str | None = None  # what to do about it, where it has failed

    def as_wire(self) -> dict[str, Any]:
        """Return the answer of `worker/status`."""
        job = self.job
        return {
            "jobId": job.id,
            "status": job.status,
            "description": job.description,
            "summary": job.summary,
            "questions": list(self.questions) or None,
            "decisions": [one.as_wire() for one in self.decisions] or None,
            "error": job.error,
            "startedAt": job.started_at,
            "completedAt": job.completed_at,
            **({"waiting": True} if self.waits else {}),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the job for `--json`, with the fields that only this hall knows."""
        return {
            **self.as_wire(),
            "worker": self.job.worker,
            "run": self.job.run,
            "lateError": self.job.late_error,
            "asked": [one.as_dict() for one in self.asked],
            "waiting": list(self.waiting),
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
        """Return the answer of `worker/result`."""
        return {"jobId": self.id, "output": self.output, "artifacts": list(self.artifacts) or None}


class JobOperations(Protocol):
    """The operations on jobs, wherever they are: in a hall or in a member."""

    async def page(
        self,
        *,
        detail: Detail = "detailed",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page: ...

    async def status(self, id: str) -> JobShown: ...

    async def result(self, id: str) -> JobResult: ...

    async def cancel(self, id: str) -> Job: ...

    async def delete(self, id: str, *, force: bool = False) -> None: ...

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        """Answer an open question. Return its text, or "" if the worker does not say which one it was."""
        ...


class WorkerJobs(JobOperations, Protocol):
    """The jobs of one worker or member, which can be dispatched to."""

    async def dispatch(self, dispatch: Dispatch) -> Job: ...


def open_question(shown: JobShown, question: str | None) -> AskedQuestion:
    """Return the open question that is meant. Raise UsageError if there is none, or several and none is named."""
    meant = [one for one in shown.asked if one.answer is None and question in (None, one.question)]
    if not meant:
        raise UsageError(f"the job {shown.job.id} has no such open question", hint="`worker/status` has them.")
    if question is None and len(meant) > 1:
        raise UsageError(f"question: {len(meant)} are open; give the text of the one that is meant")
    return meant[0]


def check_filter(filter: str | None) -> None:
    if filter is not None and (not is_text(filter) or len(filter) > LONGEST_DESCRIPTION):
        raise UsageError(f"filter: expected a pattern such as '*report*' of at most {LONGEST_DESCRIPTION:,} characters")


def detail_of(word: object) -> Detail:
    """Return the detail that a caller asks for. Raise UsageError if it is not known."""
    for detail in get_args(Detail):
        if word == detail:
            return detail
    raise UsageError(f"detail: {str(word)[:40]!r} is not known", hint=did_you_mean(str(word), get_args(Detail)))
