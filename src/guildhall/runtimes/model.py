"""Types of runtimes: assignment, attachments and outcome, and the protocols of the doors and of a runtime.

Does not perform I/O. Does not implement the doors: `runs.execution` does.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from guildhall.core.ids import digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.tools.model import ToolCall, ToolResult


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file that comes with the first message: text in UTF-8, or bytes that a model looks at (an image, a PDF)."""

    name: str  # as whoever attached it calls it
    media_type: str
    data: bytes

    @property
    def is_text(self) -> bool:
        return not is_looked_at(self.media_type)

    @cached_property
    def digest(self) -> str:
        return digest(self.data)

    @property
    def label(self) -> str:
        return labelled(self.as_described())

    def as_described(self) -> dict[str, Any]:
        """What it is, without what is in it."""
        return {"name": self.name, "media_type": self.media_type, "bytes": len(self.data), "digest": self.digest}

    def as_dict(self) -> dict[str, Any]:
        """All of it, as the record keeps it: text as text, so that it can be read there."""
        content = (
            {"text": self.data.decode()} if self.is_text else {"data": base64.b64encode(self.data).decode("ascii")}
        )
        return {"name": self.name, "media_type": self.media_type, **content}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Attachment:
        content = data["text"].encode() if "text" in data else base64.b64decode(data["data"])
        return Attachment(name=data["name"], media_type=data["media_type"], data=content)


def is_looked_at(media_type: str) -> bool:
    """Whether it is handed over as bytes, to a model that can look at them; all else is text."""
    return media_type == "application/pdf" or media_type.startswith("image/")


def labelled(described: Mapping[str, Any]) -> str:
    """A described attachment in a line."""
    return f"[{described['media_type']}, {described['bytes']:,} bytes] {described['name']}"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """All that a runtime needs to know about a run."""

    system_prompt: str
    first_message: str
    tools: tuple[Mapping[str, Any], ...]  # as the model is shown them
    output_schema: Mapping[str, Any] | None = None
    attachments: tuple[Attachment, ...] = ()
    model: str = ""  # as the worker names it; only programs that have to be told one look at it
    converses: bool = False  # it goes on after each answer with what the person says next, and never ends by itself


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended between the doors: its output, and the conversation that led there."""

    output: Any
    messages: Sequence[ModelMessage]


@dataclass(frozen=True, kw_only=True)
class ProgramHooks:
    """A program that comes to the doors of a run over HTTP: what they have to know of it."""

    name_of: Callable[[str, str], str]  # how it names a tool of a server to its model
    heard: Callable[[ModelResponse], None]  # is told each answer of the model, once that is on record
    result: Callable[[Mapping[str, Any]], Awaitable[ToolResult]] | None = None  # takes what it gives as the result
    over: Callable[[], bool] = lambda: False  # is asked before the model: whether there is nothing left to ask it


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a guest comes in: this token opens the model door, and the servers of tools by their names."""

    token: str = field(repr=False)
    servers: tuple[str, ...]
    busy: Callable[[], bool]  # whether a call is under way
    settle: Callable[[], Awaitable[None]]  # waits for the calls under way: they go on without the guest
    close: Callable[[], None]  # the token opens nothing any more; calls under way are cut off


class Doors(Protocol):
    """The only way out of a runtime: the model door and the tool door, and the ear for what a person says next."""

    async def model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse: ...

    async def tool(self, call: ToolCall) -> ToolResult: ...

    async def said(self, key: str) -> str:
        """What the person says next, in a conversation; by the keys u1, u2 and so on. Waits for it."""
        ...


class OpenDoors(Doors, Protocol):
    """The same, to which a program can come by HTTP."""

    def register(self, hooks: ProgramHooks) -> Entry:
        """Lets a program in, until it is closed."""
        ...


class Runtime(Protocol):
    """Something that can execute an assignment."""

    async def execute(self, assignment: Assignment, doors: OpenDoors) -> Outcome: ...
