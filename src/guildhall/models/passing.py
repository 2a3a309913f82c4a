"""The model door on the wire, for one run: what a program asks in a provider's own format passes here.

The names of tools are ours behind it, whatever the program calls them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart

from guildhall.core.errors import GuildError, ModelFailed
from guildhall.models.dialects.model import Malformed, parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from guildhall.models.dialects.model import Dialect, WireRequest


class Through(Protocol):
    """A request as it came, for a source that can pass it on as it is."""


class Ask(Protocol):
    async def __call__(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        through: Through | None = None,
    ) -> ModelResponse: ...


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the program is answered."""

    status: int
    media_type: str
    body: AsyncIterator[bytes]


class Passing:
    """Answers the program of one run."""

    def __init__(
        self,
        ask: Ask,
        *,
        names: Mapping[str, str],
        prompt: str,
        login: bool,
        heard: Callable[[str, ModelResponse], None],
        breaks: Callable[[Exception], None],
    ) -> None:
        """`names` are the run's tools as the program shows them to its model, and as they are called here."""
        self._ask = ask
        self._ours = names
        self._theirs = {ours: theirs for theirs, ours in names.items()}
        self._prompt = prompt
        self._login = login
        self._heard = heard
        self._breaks = breaks
        self._tasks: set[asyncio.Task[ModelResponse]] = set()

    def under_way(self) -> Iterable[asyncio.Task[ModelResponse]]:
        """The calls that are being answered."""
        return tuple(self._tasks)

    def close(self) -> None:
        """Cuts off what is under way."""
        for task in self._tasks:
            task.cancel()

    async def answer(self, dialect: Dialect, body: bytes) -> Reply:
        import json

        try:
            request = self._read(dialect.read(parse(body)))
        except Malformed as error:
            return _whole(400, json.dumps(dialect.error(400, error.message, error.param)))
        step = sum(1 for message in request.messages if message.kind == "response")
        key = f"m{step + 1}"
        task = asyncio.create_task(self._ask(key, request.messages, request.settings, request.parameters))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})
        if task.cancelled():
            return _whole(503, json.dumps(dialect.error(503, "the run has ended")))
        if (error := task.exception()) is not None:
            if isinstance(error, Exception):
                self._breaks(error)
            status = error.status if isinstance(error, ModelFailed) and error.status else 400
            said = str(error) if isinstance(error, GuildError) else "the run has ended"
            return _whole(status, json.dumps(dialect.error(status, said)))
        response = task.result()
        self._heard(key, response)
        shown = replace(response, parts=[_renamed(part, self._theirs) for part in response.parts])
        if not request.stream:
            return _whole(200, json.dumps(dialect.whole(request, shown, key)))

        async def events() -> AsyncIterator[bytes]:
            for event in dialect.stream(request, shown, key):
                yield event.encode()

        return Reply(status=200, media_type="text/event-stream", body=events())

    def _read(self, request: WireRequest) -> WireRequest:
        """The request with our names for tools, and our system prompt in the place of the program's."""
        messages: list[ModelMessage] = []
        for message in request.messages:
            parts: list[Any] = [_renamed(part, self._ours) for part in message.parts]
            if isinstance(message, ModelRequest):
                parts = [part for part in parts if not isinstance(part, SystemPromptPart)]
                messages.append(replace(message, parts=parts, instructions=self._prompt))
            else:
                messages.append(replace(message, parts=parts))
        shown = request.parameters
        tools = [replace(t, name=self._ours[t.name]) for t in shown.function_tools if t.name in self._ours]
        results = [replace(t, name=self._ours[t.name]) for t in shown.output_tools if t.name in self._ours]
        parameters = replace(shown, function_tools=tools, output_tools=results)
        return replace(request, messages=messages, parameters=parameters)


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    named: Any = part  # calls and their results have the name of a tool, others have none
    ours = names.get(getattr(named, "tool_name", None) or "")
    return replace(named, tool_name=ours) if ours else part


def _whole(status: int, text: str) -> Reply:
    async def body() -> AsyncIterator[bytes]:
        yield text.encode()

    return Reply(status=status, media_type="application/json", body=body())
