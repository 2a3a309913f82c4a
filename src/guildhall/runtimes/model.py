"""The nouns of a runtime: what it is given, and the doors that it may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from guildhall.tools.model import ToolCall, ToolResult


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """All that a runtime needs to know about a run."""

    system_prompt: str
    first_message: str
    tools: tuple[Mapping[str, Any], ...]  # as the model is shown them
    output_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended between the doors: its output, and the conversation that led there."""

    output: Any
    messages: Sequence[ModelMessage]


class Doors(Protocol):
    """The only way out of a runtime: the model door and the tool door."""

    async def model(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
    ) -> ModelResponse: ...

    async def tool(self, call: ToolCall) -> ToolResult: ...


class Runtime(Protocol):
    """Something that can execute an assignment."""

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome: ...
