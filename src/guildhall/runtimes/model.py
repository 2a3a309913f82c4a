"""Types of runtimes: assignment, attachments and outcome, and the protocols of the doors and of a runtime.

Does not perform I/O. Does not implement the doors: `runs.execution` does.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from guildhall.core.ids import digest

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.tools.model import ToolCall, ToolResult


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file of the first message: text in UTF-8, or an image or PDF for a model that accepts it."""

    name: str
    media_type: str
    data: bytes

    @property
    def is_text(self) -> bool:
        return not is_media(self.media_type)

    @cached_property
    def digest(self) -> str:
        return digest(self.data)

    @property
    def label(self) -> str:
        return attachment_label(self.describe())

    def describe(self) -> dict[str, Any]:
        """Return the metadata without the content."""
        return {"name": self.name, "media_type": self.media_type, "bytes": len(self.data), "digest": self.digest}

    def as_dict(self) -> dict[str, Any]:
        """Return metadata and content for the journal. Text stays readable."""
        text = {"text": self.data.decode()} if self.is_text else None
        content = text or {"data": base64.b64encode(self.data).decode("ascii")}
        return {"name": self.name, "media_type": self.media_type, **content}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Attachment:
        content = data["text"].encode() if "text" in data else base64.b64decode(data["data"])
        return Attachment(name=data["name"], media_type=data["media_type"], data=content)


def is_media(media_type: str) -> bool:
    """Return True if a model gets the file as bytes (an image or a PDF) and not as text."""
    return media_type == "application/pdf" or media_type.startswith("image/")


def attachment_label(described: Mapping[str, Any]) -> str:
    return f"[{described['media_type']}, {described['bytes']:,} bytes] {described['name']}"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The input of a runtime."""

    system_prompt: str
    first_message: str
    tools: tuple[Mapping[str, Any], ...]  # name, description and input_schema of each
    output_schema: Mapping[str, Any] | None = None
    attachments: tuple[Attachment, ...] = ()
    model: str = ""  # the name in the worker file, for programs
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # declared model settings, for programs
    is_conversation: bool = False  # continues with the next user message after each response and never ends by itself


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The output of a run and its conversation."""

    output: Any
    messages: Sequence[ModelMessage]


@dataclass(frozen=True, kw_only=True)
class ProgramHooks:
    """The callbacks of a program that uses the doors of a run over HTTP."""

    name_tool: Callable[[str, str], str]  # returns the program's name for a tool of a server
    on_answer: Callable[[ModelResponse], None]  # gets each recorded model response
    on_result: Callable[[Mapping[str, Any]], Awaitable[ToolResult]] | None = None  # gets the final result
    is_finished: Callable[[], bool] = lambda: False  # True if no further model call is needed


@dataclass(frozen=True, kw_only=True)
class DoorAccess:
    """The access of a registered program to the doors: a token and the names of the tool servers."""

    token: str = field(repr=False)
    servers: tuple[str, ...]
    has_calls: Callable[[], bool]  # True while a call is running
    wait_for_calls: Callable[[], Awaitable[None]]  # waits for running calls, which do not need the program
    close: Callable[[], None]  # revokes the token and cancels running calls


class Doors(Protocol):
    """The only way out of a runtime: model calls, tool calls and the next user message."""

    async def call_model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse: ...

    async def call_tool(self, call: ToolCall) -> ToolResult: ...

    async def next_message(self, key: str) -> str:
        """Wait for the next user message of a conversation. The keys are u1, u2 and so on."""
        ...


class HttpDoors(Doors, Protocol):
    """Doors that a program can also use over HTTP."""

    def register(self, hooks: ProgramHooks) -> DoorAccess: ...


class Runtime(Protocol):
    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome: ...
