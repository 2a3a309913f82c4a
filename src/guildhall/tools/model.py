"""Tool types: define tools, toolboxes, calls and results, and convert them to JSON and back.

Does not make tools from functions (see `tools.definition`) or call them (see `tools.gate`). A tool error
is a result, because the model reads it and continues.

Invariant: the key of a call is its identity, even after a crash.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from guildhall.core.errors import ToolUnavailable
from guildhall.core.ids import is_name


@dataclass(frozen=True)
class Text:
    """A text block of a result."""

    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True)
class Blob:
    """A block of bytes in a result, such as an image or a PDF."""

    data: bytes
    media_type: str

    @property
    def label(self) -> str:
        return f"[{self.media_type}, {len(self.data):,} bytes]"

    def as_dict(self) -> dict[str, Any]:
        return {"type": "blob", "media_type": self.media_type, "data": base64.b64encode(self.data).decode()}


Block = Text | Blob


# The state of a file before a call of a file tool: it did not exist, or the result shows its whole content. Only the
# journal has this field. The model does not see it.
FileBefore = Literal["absent", "shown"]


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """The result of a call. The model reads an error and continues."""

    content: tuple[Block, ...]
    is_error: bool = False
    file_before: FileBefore | None = None

    @staticmethod
    def of(text: str, *, file_before: FileBefore | None = None) -> ToolResult:
        return ToolResult(content=(Text(text),), file_before=file_before)

    @staticmethod
    def error(text: str) -> ToolResult:
        return ToolResult(content=(Text(text),), is_error=True)

    @property
    def text(self) -> str:
        return "\n".join(block.text if isinstance(block, Text) else block.label for block in self.content)

    def as_dict(self) -> dict[str, Any]:
        data = {"content": [block.as_dict() for block in self.content], "is_error": self.is_error}
        return data if self.file_before is None else {**data, "file_before": self.file_before}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ToolResult:
        blocks = cast("list[dict[str, Any]]", data["content"])
        content = tuple(
            Blob(base64.b64decode(block["data"]), block["media_type"])
            if block["type"] == "blob"
            else Text(block["text"])
            for block in blocks
        )
        return ToolResult(content=content, is_error=data["is_error"], file_before=data.get("file_before"))


Handler = Callable[..., Any]  # gets typed arguments and returns str, ToolResult, blocks or JSON; may be async
Place = Literal["hall", "host", "run"]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model can call: its name, description, input schema and handler.

    `runs_in` is the place of the handler: the hall for system tools, a tool host (a confined child process), or the run
    for handlers that need their call. `repeatable`: an interrupted call may be repeated. `also`: capabilities of
    calls with a certain argument. A `native` tool is executed by the model provider, so its calls do not pass the gate.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    handler: Handler
    capabilities: frozenset[str] = frozenset()
    repeatable: bool = False
    runs_in: Place = "host"
    also: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    native: bool = False
    parallel: bool = False  # calls of one response may run in parallel, although they do not only read

    def capabilities_of(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the capabilities of a call with these arguments."""
        return self.capabilities.union(*(more for name, more in self.also.items() if arguments.get(name)))

    def as_shown(self) -> dict[str, Any]:
        """Return the tool as the model sees it and as the journal records it."""
        shown = {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}
        return {**shown, "native": True} if self.native else shown

    def as_described(self) -> dict[str, Any]:
        """Return the tool without its handler."""
        return {**self.as_shown(), "capabilities": sorted(self.capabilities), "repeatable": self.repeatable}

    @staticmethod
    def from_described(data: Mapping[str, Any], handler: Handler) -> Tool:
        return Tool(
            name=data["name"],
            description=data["description"],
            input_schema=data["input_schema"],
            handler=handler,
            capabilities=frozenset(data["capabilities"]),
            repeatable=data["repeatable"],
        )


@dataclass(frozen=True)
class Toolbox:
    """A named set of tools of one domain."""

    name: str
    tools: tuple[Tool, ...] = field(default=())

    def __init__(self, name: str, *tools: Tool) -> None:
        if not is_name(name):
            raise ToolUnavailable(f"invalid toolbox name {name!r}", hint="Use letters, digits, '_', '-' and '.'.")
        for value in tools:
            if not isinstance(value, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                label = getattr(value, "__name__", repr(value))
                problem = f"invalid toolbox {name!r}: {label} is not a tool"
                raise ToolUnavailable(problem, hint="Decorate it with @tool.")
        names = [tool.name for tool in tools]
        if duplicates := {name for name in names if names.count(name) > 1}:
            problem = f"invalid toolbox {name!r}: two tools are named {sorted(duplicates)[0]!r}"
            raise ToolUnavailable(problem, hint="Rename one of them.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tools", tuple(tools))


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool call of a run. The key identifies the call, even after a crash."""

    key: str
    tool: str
    arguments: Mapping[str, Any] | None  # None if the model did not write a JSON object


Execute = Callable[[Tool, ToolCall], Awaitable[ToolResult]]

MAX_NESTING = 64  # levels of a JSON value


def is_shallow(value: Any) -> bool:
    """Return True if a JSON value has at most MAX_NESTING levels."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, Any]", item).values()
            elif isinstance(item, list):
                inner += cast("list[Any]", item)
        if not inner:
            return True
        level = inner
    return False
