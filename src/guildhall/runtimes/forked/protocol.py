"""Protocol between the hall and the process of a run: defines the lines of JSON on their socket.

The process sends requests, and the hall replies. A model call contains only the new messages, because the hall
keeps the conversation. A tool call names the model response that contains it.
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

MAX_LINE_BYTES = 128 * 1024**2  # in either direction

_Id = Annotated[int, Field(ge=1)]
_Key = Annotated[str, Field(min_length=1, max_length=1000)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    def encode(self) -> bytes:
        text = json.dumps(self.model_dump(mode="json")).encode() + b"\n"  # json keeps lone surrogates
        if len(text) > MAX_LINE_BYTES:
            raise RuntimeFailed(
                f"message of the run too long: {len(text):,} bytes, at most {MAX_LINE_BYTES:,} are allowed"
            )
        return text

    @classmethod
    def decode(cls, line: bytes) -> Self:
        return cls.model_validate(json.loads(line))


class Start(_Message):
    """The first line, from the hall: the assignment without its attachments."""

    system_prompt: str
    first_message: str
    tools: list[dict[str, Any]]
    output_schema: dict[str, Any] | None
    is_conversation: bool = False

    def assignment(self) -> Assignment:
        fields: dict[str, Any] = {**dict(self), "tools": tuple(self.tools)}
        return Assignment(**fields)


class CallModel(_Message):
    """A model call with the new requests of the conversation. The hall already has the first `after` messages."""

    door: Literal["model"] = "model"
    id: _Id
    key: _Key
    after: int
    requests: list[ModelRequest]


class CallTool(_Message):
    """A tool call that is part of a model response."""

    door: Literal["tool"] = "tool"
    id: _Id
    key: _Key


class NextMessage(_Message):
    """A request for the next user message."""

    door: Literal["message"] = "message"
    id: _Id
    key: _Key


class Done(_Message):
    """The output of the run."""

    door: Literal["out"] = "out"
    output: str | dict[str, Any]


class Failed(_Message):
    """The error that ended the run."""

    door: Literal["failed"] = "failed"
    message: str
    hint: str | None = None


class Reply(_Message):
    """The hall's reply to a request."""

    id: _Id
    response: ModelResponse | None = None
    result: dict[str, Any] | None = None  # a ToolResult
    text: str | None = None  # the user message


_AnyMessage = CallModel | CallTool | NextMessage | Done | Failed
_ANY_MESSAGE: TypeAdapter[_AnyMessage] = TypeAdapter(Annotated[_AnyMessage, Field(discriminator="door")])


def decode_message(line: bytes) -> _AnyMessage:
    """Return the message of a run's process. Raise ValueError if the line is not a valid message."""
    return _ANY_MESSAGE.validate_python(json.loads(line))
