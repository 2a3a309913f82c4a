"""What a member says about its jobs, as it came over the wire and held to its shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

from guildhall.core.errors import MemberRefused
from guildhall.tools.mcp_model import shortened

JobStatus = Literal["running", "completed", "failed", "cancelled"]


@dataclass(frozen=True)
class Shape:
    """An object of an answer. What is not as it should be is a MemberRefused that names the field."""

    data: dict[str, Any]
    said: str

    @staticmethod
    def of(data: Any, said: str) -> Shape:
        if not isinstance(data, dict):
            raise MemberRefused(f"{said} with what is no object")
        return Shape(cast("dict[str, Any]", data), said)

    def wrong(self, name: str, expected: str) -> MemberRefused:
        got = shortened(repr(self.data.get(name)))[:80]
        return MemberRefused(f"{self.said}: {name} is not {expected} (it is {got})")

    def text(self, name: str) -> str:
        value = self.data.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "text")
        return value

    def text_or_none(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "text or null")
        return value

    def any_text(self, name: str) -> str:
        value = self.text_or_none(name)
        if value is None:
            raise self.wrong(name, "text")
        return value

    def status(self) -> JobStatus:
        value: Any = self.data.get("status")
        if value not in get_args(JobStatus):
            raise self.wrong("status", f"one of {', '.join(get_args(JobStatus))}")
        return value

    def list_or_none(self, name: str) -> list[Any] | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "a list or null")
        return cast("list[Any] | None", value)

    def texts_or_none(self, name: str) -> tuple[str, ...] | None:
        values = self.list_or_none(name)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "a list of texts")
        return None if values is None else tuple(values)

    def rows(self, name: str) -> list[Shape]:
        values = self.list_or_none(name)
        if values is None:
            raise self.wrong(name, "a list")
        return [Shape.of(value, f"{self.said}: {name}[{place}]") for place, value in enumerate(values)]


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job in a listing."""

    id: str
    status: JobStatus
    description: str | None = None  # None: the listing is a simple one
    summary: str | None = None

    @staticmethod
    def of(row: Shape, *, detailed: bool) -> JobLine:
        simple = JobLine(id=row.text("jobId"), status=row.status())
        if not detailed:
            return simple
        return JobLine(
            id=simple.id,
            status=simple.status,
            description=row.any_text("description"),
            summary=row.text_or_none("summary"),
        )

    def as_wire(self) -> dict[str, Any]:
        simple = {"jobId": self.id, "status": self.status}
        if self.description is None:
            return simple
        return {**simple, "description": self.description, "summary": self.summary}


@dataclass(frozen=True, kw_only=True)
class JobListing:
    jobs: tuple[JobLine, ...]
    next: str | None = None  # the cursor of the next page

    def as_wire(self) -> dict[str, Any]:
        more = {"nextCursor": self.next} if self.next is not None else {}
        return {"jobs": [line.as_wire() for line in self.jobs], **more}


@dataclass(frozen=True, kw_only=True)
class JobDecision:
    question: str
    decision: str
    reasoning: str


@dataclass(frozen=True, kw_only=True)
class JobStanding:
    """All that a member says about a job."""

    id: str
    status: JobStatus
    description: str
    summary: str | None
    questions: tuple[str, ...] | None
    decisions: tuple[JobDecision, ...] | None
    error: str | None
    started_at: str
    completed_at: str | None
    waiting: bool = False  # for a person, and nothing goes on until then; not every member says so

    @staticmethod
    def of(told: Shape) -> JobStanding:
        decisions = None if told.list_or_none("decisions") is None else told.rows("decisions")
        return JobStanding(
            id=told.text("jobId"),
            status=told.status(),
            description=told.any_text("description"),
            summary=told.text_or_none("summary"),
            questions=told.texts_or_none("questions"),
            decisions=None
            if decisions is None
            else tuple(
                JobDecision(**{name: one.any_text(name) for name in ("question", "decision", "reasoning")})
                for one in decisions
            ),
            error=told.text_or_none("error"),
            started_at=told.text("startedAt"),
            completed_at=told.text_or_none("completedAt"),
            waiting=told.data.get("waiting") is True,
        )

    def as_wire(self) -> dict[str, Any]:
        return {
            "jobId": self.id,
            "status": self.status,
            "description": self.description,
            "summary": self.summary,
            "questions": None if self.questions is None else list(self.questions),
            "decisions": None if self.decisions is None else [asdict(one) for one in self.decisions],
            "error": self.error,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            **({"waiting": True} if self.waiting else {}),
        }


@dataclass(frozen=True, kw_only=True)
class AtWork:
    """A job of a member that goes on."""

    member: str  # its name; with its place before it, where there are two of that name
    job: JobStanding
    project: str | None = None  # the folder in which the member is found; None: in any

    @property
    def id(self) -> str:
        return f"{self.member}/{self.job.id}"

    def as_dict(self) -> dict[str, Any]:
        return {**self.job.as_wire(), "member": self.member, "id": self.id, "project": self.project}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a job."""

    id: str
    output: str
    artifacts: tuple[str, ...] | None

    @staticmethod
    def of(told: Shape) -> Result:
        return Result(id=told.text("jobId"), output=told.any_text("output"), artifacts=told.texts_or_none("artifacts"))

    def as_wire(self) -> dict[str, Any]:
        artifacts = None if self.artifacts is None else list(self.artifacts)
        return {"jobId": self.id, "output": self.output, "artifacts": artifacts}
