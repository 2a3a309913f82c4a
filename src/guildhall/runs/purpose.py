"""Purpose of a run: records whether the run answers its input, makes a call, or works for an owner.

Does not carry out a purpose: jobs, commissions, meetings and workflows do.

Invariant: the purpose of a run never changes, and `runs.kind` in the database is the kind of its purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

RunKind = Literal["plain", "call", "job", "commission", "meeting", "workflow"]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The result that a job or a commission must deliver before it is completed."""

    artifacts: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None  # of the result


@dataclass(frozen=True, kw_only=True)
class PlainPurpose:
    """The run answers its input."""

    kind: Literal["plain"] = "plain"


@dataclass(frozen=True, kw_only=True)
class CallPurpose:
    """The run makes one `worker_call` and asks no model."""

    kind: Literal["call"] = "call"
    worker_name: str
    input_data: str | Mapping[str, Any]
    attachments: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        return {"worker_name": self.worker_name, "input_data": self.input_data, "attachments": list(self.attachments)}


@dataclass(frozen=True, kw_only=True)
class JobPurpose:
    """The run does a job."""

    kind: Literal["job"] = "job"
    id: str
    description: str
    remembers: bool  # the job has the memory tools, because its worker has the base tools
    contract: Contract = field(default_factory=Contract)


@dataclass(frozen=True, kw_only=True)
class CommissionPurpose:
    """The run works on an attempt of a commission, or reviews it."""

    kind: Literal["commission"] = "commission"
    id: str
    attempt: int
    title: str
    contract: Contract | None  # None: the run is a review

    @property
    def is_review(self) -> bool:
        return self.contract is None


@dataclass(frozen=True, kw_only=True)
class MeetingPurpose:
    """The run is a session of a meeting."""

    kind: Literal["meeting"] = "meeting"
    id: str
    session: int  # number of the session, from 1
    after: int  # number of the last message of the user before this session


@dataclass(frozen=True, kw_only=True)
class WorkflowPurpose:
    """The run is a workflow: it asks no model, its agents are the runs below it."""

    kind: Literal["workflow"] = "workflow"
    tag: str
    params: Mapping[str, str]
    mode: str


PLAIN = PlainPurpose()
Purpose = PlainPurpose | CallPurpose | JobPurpose | CommissionPurpose | MeetingPurpose | WorkflowPurpose
PurposeT = TypeVar("PurposeT", bound=Purpose)
_CLASSES: Mapping[str, type[Purpose]] = {purpose.kind: purpose for purpose in get_args(Purpose)}


def purpose_from_record(record: Mapping[str, Any]) -> Purpose:
    """Return the purpose that was stored as a plain dict."""
    fields = dict(record)
    if (contract := cast("Mapping[str, Any] | None", fields.get("contract"))) is not None:
        fields["contract"] = Contract(artifacts=tuple(contract["artifacts"]), schema=contract["schema"])
    if "attachments" in fields:
        fields["attachments"] = tuple(fields["attachments"])
    return _CLASSES[record["kind"]](**fields)
