"""Tool types: define tools, toolboxes, calls and results, and convert them to JSON and back.

Does not make tools from functions (see `tools.definition`) or call them (see `tools.gate`). An error of a tool is a
result too, because the model reads it and continues.

Invariant: the key of a call is its identity, also after a crash.
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
    """A piece of text in a result."""

    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True)
class Blob:
    """Bytes in a result: an image, a PDF."""

    data: bytes
    media_type: str

    @property
    def label(self) -> str:
        return f"[{self.media_type}, {len(self.data):,} bytes]"

    def as_dict(self) -> dict[str, Any]:
        return {"type": "blob", "media_type": self.media_type, "data": base64.b64encode(self.data).decode()}


Block = Text | Blob


def block_from(data: Mapping[str, Any]) -> Block:
    if data["type"] == "blob":
        return Blob(base64.b64decode(data["data"]), data["media_type"])
    return Text(data["text"])


# What a call of a file tool proves about its file before the call: it did not exist, or the text is its whole content.
# Only the journal has this fact. The model does not see it.
FileBefore = Literal["absent", "shown"]


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """The result of a call. An error is content too: the model reads it and continues."""

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
        content = tuple(block_from(block) for block in blocks)
        return ToolResult(content=content, is_error=data["is_error"], file_before=data.get("file_before"))


Handler = Callable[..., Any]  # typed arguments in; str, ToolResult, a block or JSON out; may be async
Place = Literal["hall", "host", "run"]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A name, a description, a typed input and a handler.

    `runs_in` is the place of the handler: the hall for system tools, a tool host (a confined child process), or the run
    for handlers that need their call. `repeatable`: a call that a crash cut off may be repeated. `also`: capabilities
    of calls with certain arguments. A `native` tool belongs to the provider, whose calls do not pass the gate.
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
    parallel: bool = False  # calls of one answer may run in parallel, although the tool has other effects than reading

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
            raise ToolUnavailable(
                f"{name!r} is not a valid name of a toolbox", hint="Use letters, digits, '_', '-' and '.'."
            )
        for given in tools:
            if not isinstance(given, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                label = getattr(given, "__name__", repr(given))
                raise ToolUnavailable(f"{label} in the toolbox {name!r} is not a tool", hint="Decorate it with @tool.")
        names = [tool.name for tool in tools]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise ToolUnavailable(f"the toolbox {name!r} has two tools named {sorted(duplicates)[0]!r}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tools", tuple(tools))


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call of a run. The key is its identity, also after a crash."""

    key: str
    tool: str
    arguments: Mapping[str, Any] | None  # None: the model did not write a JSON object


Execute = Callable[[Tool, ToolCall], Awaitable[ToolResult]]

_MAX_DEPTH = 64  # levels of nesting in arguments


def is_shallow(value: Any) -> bool:
    """Return True if a JSON value is not nested too deeply for later readers."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
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
