"""The section `test:` of a script: what `guild test` starts, answers and compares. The scripted model does not read it.

The format is described in docs/testing-workers.md.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

# What stands in a script for what is another one each time: folders, ids.
PROJECT = "@PROJECT@"
HOME = "@HOME@"
RUN = "@RUN@"  # the id of a run, in what a model is told

TIMED_OUT = "timeout"  # in the place of an answer: nobody said anything in time


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Reply(_Strict):
    """What a person answered to one ask."""

    answer: Annotated[str, Field(min_length=1)]
    tool: str | None = None
    limit: str | None = None
    worker: str | None = None  # None: the worker of the test
    run: PositiveInt = 1  # which of that worker's runs asked
    note: str | None = None

    @model_validator(mode="after")
    def _about_one_thing(self) -> Reply:
        if (self.tool is None) == (self.limit is None):
            raise ValueError("say what was asked about: either `tool` (an approval) or `limit`")
        return self


class Shown(_Strict):
    """What the model of one worker is shown besides the conversation."""

    system: str | None = None
    tools: dict[str, str] | None = None  # name -> fingerprint of its description and schema


class Case(_Strict):
    """One test: what is run, with what, and what must come of it."""

    worker: Annotated[str, Field(min_length=1)]
    input: Annotated[str, Field(min_length=1)]
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

    @model_validator(mode="after")
    def _inside_the_project(self) -> Case:
        for name in (self.folder, *self.files):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or not name:
                raise ValueError(f"{name!r} is not a path inside the project")
        return self
