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
    """A block as it was recorded or sent."""
    if data["type"] == "blob":
        return Blob(base64.b64decode(data["data"]), data["media_type"])
    return Text(data["text"])


# What a call of a file tool proves about its file before the call: it did not exist, or the text is its whole content.
# Only the journal has this fact. The model does not see it.
FileBefore = Literal["absent", "shown"]


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What a call gives back to the model. An error is content too: the model reads it and goes on."""

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
        """The result as a person reads it."""
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

    `runs_in` says where the handler executes: system handlers in the hall, all others in a tool host, a child process
    that sees the run's folders and nothing of the hall, and those that need to know which call of which run they are by
    the run itself. `repeatable` says that a call cut off by a crash may simply be
    made again (it changes nothing, or the same call twice is the same as once). `also` are capabilities that only calls
    with certain arguments have. A `native` tool is the provider's own: whoever answers for the model makes its calls,
    which come with the answer and never to the gate.
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

    def capabilities_of(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """What a call with these arguments can do to the world."""
        return self.capabilities.union(*(more for name, more in self.also.items() if arguments.get(name)))

    def as_shown(self) -> dict[str, Any]:
        """The tool as the model is shown it; this is what the record freezes."""
        shown = {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}
        return {**shown, "native": True} if self.native else shown

    def as_described(self) -> dict[str, Any]:
        """All of the tool but its handler: enough to judge its calls where the handler is not."""
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
            raise ToolUnavailable(f"{name!r} cannot name a toolbox", hint="Use letters, digits, '_', '-' and '.'.")
        for given in tools:
            if not isinstance(given, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                label = getattr(given, "__name__", repr(given))
                raise ToolUnavailable(f"{label} in the toolbox {name!r} is not a tool", hint="Decorate it with @tool.")
        names = [tool.name for tool in tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ToolUnavailable(f"the toolbox {name!r} has two tools named {sorted(twice)[0]!r}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tools", tuple(tools))


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a run. The key is its identity: the same key is the same call, also after a crash."""

    key: str
    tool: str
    arguments: Mapping[str, Any] | None  # None: what the model wrote was not a JSON object


Execute = Callable[[Tool, ToolCall], Awaitable[ToolResult]]

_DEEPEST = 64  # levels of nesting in arguments


def is_shallow(value: Any) -> bool:
    """Whether a JSON value is nested so little that whatever reads it later can."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
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
