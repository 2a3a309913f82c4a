"""Test case: the format of a script's section `test:`, which `guild test` starts, answers and compares.

docs/testing-workers.md describes the format. The module also defines the placeholders of recordings, such as
`@PROJECT@`.
Does not run tests: `hall.testrun` does. The scripted model does not read the section.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

# Placeholders for values that differ each time.
PROJECT = "@PROJECT@"
HOME = "@HOME@"
RUN = "@RUN@"  # the id of a run in a model input
TIME = "@TIME@"  # the time of a message in a room
WHY = "@WHY@"  # the reason of a failed agent, in a message to the others

TIMED_OUT = "timeout"  # replaces an answer if the ask timed out


class Strict(BaseModel):
    """A section of a script that rejects unknown fields and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(Strict):
    """The user's answer to an ask."""

    answer: Annotated[str, Field(min_length=1)]
    tool: str | None = None
    limit: str | None = None
    loop: bool = False
    worker: str | None = None  # by default the worker of the test
    run: PositiveInt = 1  # of that worker
    note: str | None = None

    @model_validator(mode="after")
    def _check_subject(self) -> Reply:
        if (self.tool is not None) + (self.limit is not None) + self.loop != 1:
            raise ValueError("set exactly one of `tool` (an approval), `limit` and `loop`")
        return self


class PromptSnapshot(Strict):
    """The system prompt and the tools that the model of a worker gets."""

    system: str | None = None
    tools: dict[str, str] | None = None  # name -> fingerprint of its description and schema
    memory: bool = False  # True if its memory had entries, which adds the tools that read them


class SetupCommand(Strict):
    """A setup command of a workflow with its recorded output. A test does not execute it."""

    command: str
    variables: dict[str, str] = Field(default_factory=dict[str, str])
    prints: str = ""  # its output, or the error message if it failed
    failed: bool = False


class UserMessage(Strict):
    """A user message to a team."""

    person: Annotated[str, Field(min_length=1)]
    to: list[str] = Field(default_factory=list[str])  # recipients in addition to the mentioned agents


class Case(Strict):
    """A test: the worker or workflow to run, its input, and the expected result."""

    worker: Annotated[str, Field(min_length=1)] | None = None
    input: Annotated[str, Field(min_length=1)] | None = None
    workflow: Annotated[str, Field(min_length=1)] | None = None  # a file in the project, instead of worker and input
    tag: str = "main"
    params: dict[str, str] = Field(default_factory=dict[str, str])
    setup: list[SetupCommand] = Field(default_factory=list[SetupCommand])
    order: list[str | UserMessage] = Field(default_factory=list[str | UserMessage])  # of the events in its room
    attachments: list[str] = Field(default_factory=list[str])
    folder: str = "."  # the working directory, relative to the project
    mode: Literal["ask", "approve_all", "strict"] = "ask"
    max_turns: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_budget_usd: PositiveFloat | None = None
    budget: PositiveFloat | None = None
    files: dict[str, str | None] = Field(default_factory=dict[str, str | None])  # before the run; None if missing
    answers: list[Reply] = Field(default_factory=list[Reply])
    shown: dict[str, PromptSnapshot] = Field(default_factory=dict[str, PromptSnapshot])
    status: Literal["completed", "failed"] = "completed"
    error: str | None = None
    output: Any = None

    @property
    def subject(self) -> str:
        return self.workflow or self.worker or ""

    @model_validator(mode="after")
    def _check_subject(self) -> Case:
        if self.workflow is not None and (self.worker is not None or self.input is not None):
            raise ValueError("set either `worker` and `input`, or `workflow`")
        if self.workflow is None and (self.worker is None or self.input is None):
            missing = "worker" if self.worker is None else "input"
            raise ValueError(f"`{missing}` is missing: set `worker` and `input`, or `workflow`")
        return self

    @model_validator(mode="after")
    def _check_paths(self) -> Case:
        for name in (self.folder, *self.files, *([self.workflow] if self.workflow else [])):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or not name:
                raise ValueError(f"{name!r} is not a path inside the project")
        return self
