"""Purposes of runs: answering the input, making a single call, or working for an owner.

Does not execute runs: `runs.execution` does.

Invariant: the purpose of a run never changes. The column `runs.kind` has the kind of the purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

RunKind = Literal["plain", "call", "job", "commission", "meeting", "workflow"]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The result that a job or a commission must deliver before it is completed."""

    artifacts: tuple[str, ...] = ()  # names of the required files
    schema: Mapping[str, Any] | None = None  # JSON Schema of the result


@dataclass(frozen=True, kw_only=True)
class PlainPurpose:
    """Purpose of a run that answers its input."""

    kind: Literal["plain"] = "plain"


@dataclass(frozen=True, kw_only=True)
class CallPurpose:
    """Purpose of a run that makes one `worker_call` and calls no model."""

    kind: Literal["call"] = "call"
    worker: str
    input_data: str | Mapping[str, Any]
    attachments: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        return {"worker": self.worker, "input_data": self.input_data, "attachments": list(self.attachments)}


@dataclass(frozen=True, kw_only=True)
class JobPurpose:
    """Purpose of the run of a job."""

    kind: Literal["job"] = "job"
    id: str
    description: str
    has_memory: bool  # the run has the memory tools of a job
    contract: Contract = field(default_factory=Contract)


@dataclass(frozen=True, kw_only=True)
class CommissionPurpose:
    """Purpose of a run that works on an attempt of a commission or reviews the attempt."""

    kind: Literal["commission"] = "commission"
    id: str
    attempt: int
    title: str
    contract: Contract | None  # None if the run is a review

    @property
    def is_review(self) -> bool:
        return self.contract is None


@dataclass(frozen=True, kw_only=True)
class MeetingPurpose:
    """Purpose of a run that is a session of a meeting."""

    kind: Literal["meeting"] = "meeting"
    id: str
    session: int  # number of the session, from 1
    last_message: int  # number of the last user message before this session, or 0


@dataclass(frozen=True, kw_only=True)
class WorkflowPurpose:
    """Purpose of the run of a workflow, which calls no model. The runs of its agents are child runs."""

    kind: Literal["workflow"] = "workflow"
    tag: str
    params: Mapping[str, str]
    mode: str


PLAIN = PlainPurpose()
Purpose = PlainPurpose | CallPurpose | JobPurpose | CommissionPurpose | MeetingPurpose | WorkflowPurpose
PurposeT = TypeVar("PurposeT", bound=Purpose)
_CLASSES: Mapping[str, type[Purpose]] = {purpose.kind: purpose for purpose in get_args(Purpose)}


def purpose_from_record(record: Mapping[str, Any]) -> Purpose:
    """Return the purpose from its stored fields."""
    fields = dict(record)
    if (contract := cast("Mapping[str, Any] | None", fields.get("contract"))) is not None:
        fields["contract"] = Contract(artifacts=tuple(contract["artifacts"]), schema=contract["schema"])
    if "attachments" in fields:
        fields["attachments"] = tuple(fields["attachments"])
    return _CLASSES[record["kind"]](**fields)
