"""Test case: the format of a script's section `test:`, which `guild test` starts, answers and compares.

docs/testing-workers.md describes the format. The module also defines the placeholders of recordings, such as
`@PROJECT@`.
Does not run tests: `hall.testrun` does. The scripted model does not read the section.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

# What stands in a script for what is another one each time: folders, ids.
PROJECT = "@PROJECT@"
HOME = "@HOME@"
RUN = "@RUN@"  # the id of a run, in what a model is told

TIME = "@TIME@"  # when something was said in a room
WHY = "@WHY@"  # for what reason an agent has failed, in what the others are told of it

TIMED_OUT = "timeout"  # in the place of an answer: nobody said anything in time


class Strict(BaseModel):
    """A section of a script. Unknown names and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(Strict):
    """What a person answered to one ask."""

    answer: Annotated[str, Field(min_length=1)]
    tool: str | None = None
    limit: str | None = None
    loop: bool = False  # agents go round in circles
    worker: str | None = None  # None: the worker of the test
    run: PositiveInt = 1  # which of that worker's runs asked
    note: str | None = None

    @model_validator(mode="after")
    def _about_one_thing(self) -> Reply:
        if (self.tool is not None) + (self.limit is not None) + self.loop != 1:
            raise ValueError("say what was asked about: either `tool` (an approval), `limit` or `loop`")
        return self


class Shown(Strict):
    """What the model of one worker is shown besides the conversation."""

    system: str | None = None
    tools: dict[str, str] | None = None  # name -> fingerprint of its description and schema


class Command(Strict):
    """A command of a workflow's setup, and what came of it. A test does not run it."""

    command: str
    variables: dict[str, str] = Field(default_factory=dict[str, str])
    prints: str = ""  # what was kept of it; of one that failed: what was told of it
    failed: bool = False


class Spoken(Strict):
    """What a person said to a team."""

    person: Annotated[str, Field(min_length=1)]
    to: list[str] = Field(default_factory=list[str])  # agents that it was for, beside those whom it mentions


class Case(Strict):
    """One test: what is run, with what, and what must come of it."""

    worker: Annotated[str, Field(min_length=1)] | None = None
    input: Annotated[str, Field(min_length=1)] | None = None
    workflow: Annotated[str, Field(min_length=1)] | None = None  # in the place of both: its file, in the project
    tag: str = "main"
    params: dict[str, str] = Field(default_factory=dict[str, str])
    setup: list[Command] = Field(default_factory=list[Command])
    order: list[str | Spoken] = Field(default_factory=list[str | Spoken])  # in which things happen in its room
    attachments: list[str] = Field(default_factory=list[str])
    folder: str = "."  # where it was started, from the top of the project
    mode: Literal["ask", "approve_all", "strict"] = "ask"
    max_turns: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_budget_usd: PositiveFloat | None = None
    budget: PositiveFloat | None = None
    files: dict[str, str | None] = Field(default_factory=dict[str, str | None])  # before it begins; None: is not there
    answers: list[Reply] = Field(default_factory=list[Reply])
    shown: dict[str, Shown] = Field(default_factory=dict[str, Shown])
    status: Literal["completed", "failed"] = "completed"
    error: str | None = None
    output: Any = None

    @property
    def subject(self) -> str:
        """The worker, or the workflow."""
        return self.workflow or self.worker or ""

    @model_validator(mode="after")
    def _of_one_thing(self) -> Case:
        if self.workflow is not None and (self.worker is not None or self.input is not None):
            raise ValueError("a test is of a `worker` with an `input`, or of a `workflow`; not of both")
        if self.workflow is None and (self.worker is None or self.input is None):
            missing = "worker" if self.worker is None else "input"
            raise ValueError(f"`{missing}` is missing: a test is of a `worker` with an `input`, or of a `workflow`")
        return self

    @model_validator(mode="after")
    def _inside_the_project(self) -> Case:
        for name in (self.folder, *self.files, *([self.workflow] if self.workflow else [])):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or not name:
                raise ValueError(f"{name!r} is not a path inside the project")
        return self
