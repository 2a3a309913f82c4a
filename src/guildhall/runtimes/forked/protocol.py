"""Protocol between the hall and the process of a run: defines the lines of JSON on their socket.

The process asks at the doors, and the hall answers. A model call contains only the new messages, because the hall
keeps the conversation. A tool call names the model answer that contains it.
Does not read or write sockets: `runtime` and `child` do.

Invariant: the hall validates everything that a process sends.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_ai.messages import ModelRequest, ModelResponse

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.model import Assignment

LONGEST = 128 * 1024**2  # bytes of a line, in either direction

_Id = Annotated[int, Field(ge=1)]
_Key = Annotated[str, Field(min_length=1, max_length=1000)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    def line(self, longest: int = LONGEST) -> bytes:
        """As it is written."""
        text = json.dumps(self.model_dump(mode="json")).encode() + b"\n"  # by json: half characters survive it
        if len(text) > longest:
            raise RuntimeFailed(f"what would be sent is too long: {len(text):,} bytes of at most {longest:,}")
        return text

    @classmethod
    def read(cls, line: bytes) -> Self:
        return cls.model_validate(json.loads(line))


class Given(_Line):
    """The first line of the hall: what is to be done. What is attached stays with the hall."""

    system_prompt: str
    first_message: str
    tools: list[dict[str, Any]]
    output_schema: dict[str, Any] | None
    converses: bool = False

    @staticmethod
    def of(assignment: Assignment) -> Given:
        return Given.model_validate(assignment, from_attributes=True)

    def assignment(self) -> Assignment:
        fields: dict[str, Any] = {**dict(self), "tools": tuple(self.tools)}
        return Assignment(**fields)


class Asked(_Line):
    """At the model door: the requests that are new in the conversation, after so many messages that the hall has."""

    door: Literal["model"] = "model"
    id: _Id
    key: _Key
    after: int
    requests: list[ModelRequest]


class Called(_Line):
    """At the tool door: a call that stands in an answer of the model."""

    door: Literal["tool"] = "tool"
    id: _Id
    key: _Key


class Listened(_Line):
    """At the ear: what the person says next is to be heard."""

    door: Literal["said"] = "said"
    id: _Id
    key: _Key


class Done(_Line):
    """The way out: the output."""

    door: Literal["out"] = "out"
    output: str | dict[str, Any]


class Failed(_Line):
    """The other way out: what went wrong between the doors."""

    door: Literal["failed"] = "failed"
    message: str
    hint: str | None = None


class Answered(_Line):
    """The hall's answer to a question or a call."""

    id: _Id
    response: ModelResponse | None = None
    result: dict[str, Any] | None = None  # a ToolResult
    words: str | None = None  # of the person


_Message = Asked | Called | Listened | Done | Failed
_MESSAGE: TypeAdapter[_Message] = TypeAdapter(Annotated[_Message, Field(discriminator="door")])


def said(line: bytes) -> _Message:
    """Return the message of a run's process. Raise ValueError if the line is not a valid message."""
    return _MESSAGE.validate_python(json.loads(line))
