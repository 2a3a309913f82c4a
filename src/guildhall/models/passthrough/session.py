"""Passthrough session: answers the model requests of the program that executes a run, in the provider's format.

A request without the run's prompt, such as a request for a title, gets a fixed answer and is not recorded. If it
contains an earlier answer, such as a request for a summary, the run fails.
A call continues if the program disconnects. A repeated request gets the recorded answer.
Does not call the provider: `request` does. Does not serve HTTP: `hall.doors` does.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturnPart

from guildhall.core.errors import GuildError, ModelFailed, RuntimeFailed, RuntimeToolless
from guildhall.core.ids import fingerprint
from guildhall.models.dialects.base import Dialect, Malformed, Trim, WireRequest, parse
from guildhall.models.dialects.canonical import in_order, renamed
from guildhall.models.model import Upstream, sent_text, tokens
from guildhall.models.passthrough.connection import Line
from guildhall.models.passthrough.request import Through, counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.usage import RequestUsage

    # The model door of a run.
    Ask = Callable[[str, Sequence[ModelMessage], ModelRequestParameters, Through | None], Awaitable[ModelResponse]]

MAX_CALLS = 16  # of one run under way at a time
_ASIDE = "ok"  # what a program is told that asks for something of its own, such as a title
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}
_FINAL = {"x-should-retry": "false"}  # the clients of both providers heed it: asking again is the door's to do


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the program is answered."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The only content that the model of a run is shown. Programs add text of their own and cut long text."""

    prompt: str
    names: Mapping[str, str]  # the run's tools as the program shows them, and as they are called here
    parameters: ModelRequestParameters  # those tools as they are to be shown
    results: Mapping[str, ToolReturnPart] = field(default_factory=dict[str, "ToolReturnPart"])  # by call; it grows
    settle: Callable[[], Awaitable[None]] | None = None  # waits for the results of calls under way

    def trim(self, *, login: bool) -> Trim:
        ours = {tool.name: tool for tool in (*self.parameters.function_tools, *self.parameters.output_tools)}
        known = {theirs: ours[name] for theirs, name in self.names.items() if name in ours}
        tools = frozenset(self.names)
        return Trim(prompt=self.prompt, tools=tools, definitions=known, results=self.results, login=login)


@dataclass(kw_only=True)
class _Call:
    """A call under way: what is asked, and what of the answer may be passed on by now."""

    question: str
    pieces: asyncio.Queue[bytes | None]
    task: asyncio.Future[ModelResponse]
    through: Through


class Passing:
    """Answers the requests of the program that executes one run."""

    def __init__(
        self,
        ask: Ask,
        *,
        shown: Shown | None,
        breaks: Callable[[Exception], None],
        heard: Callable[[str, ModelResponse], None] = lambda key, response: None,
        another: Callable[[str, Sequence[ModelMessage]], bool] = lambda key, messages: False,
        upstream: Callable[[str], Upstream | None] = lambda api: None,
        line: Line | None = None,
        id: str = "",
        retries: bool = False,
    ) -> None:
        """Without `shown`, the model is shown everything that the program asks.

        `breaks` ends the run with an error, and `heard` gets each answer when it is recorded. `another` returns True if
        another question is recorded under a key. `upstream` returns where requests are passed on, over `line`.
        `retries`: the program may repeat failed requests; else only the door does.
        """
        self._ask = ask
        self._shown = shown
        self._breaks = breaks
        self._heard = heard
        self._another = another
        self._upstream = upstream
        self._line = line or Line()
        self._id = id
        self._final = {} if retries else _FINAL
        self._calls: dict[str, _Call] = {}
        self._usage: dict[str, RequestUsage] = {}  # what the answers have cost, by the keys of their calls

    def under_way(self) -> tuple[asyncio.Future[ModelResponse], ...]:
        return tuple(call.task for call in self._calls.values())

    def close(self) -> None:
        """Cuts off what is under way."""
        for task in self.under_way():
            task.cancel()

    async def answer(
        self, dialect: Dialect, body: bytes, headers: Mapping[str, str], *, query: str = "", count: bool = False
    ) -> Reply:
        """The answer to a request, in the format of its API. `count`: only its tokens are to be counted."""
        try:
            told = parse(body)
            if count:
                return await self._counted(dialect, told, headers)
            if self._shown is not None and self._shown.settle is not None:
                await self._shown.settle()
            if self._is_aside(dialect, told):
                return self._aside(dialect, told)
            trimmed = self._trimmed(dialect, told)
            request = self._ours(dialect.read(trimmed))
        except Malformed as error:
            return failure(dialect, 400, error.message, error.param)
        except GuildError as error:
            self._breaks(error)
            return failure(dialect, 400, str(error))
        return await self._reply(dialect, request, trimmed, headers, query)

    def models(self, dialect: Dialect) -> Reply:
        """The models that the program may ask: the run has one."""
        upstream = self._upstream(dialect.api)
        model = {"id": upstream.model if upstream else "model", "object": "model", "type": "model"}
        return _whole(200, {"object": "list", "data": [model], "has_more": False})

    def _is_aside(self, dialect: Dialect, body: Mapping[str, Any]) -> bool:
        """Whether the program asks for something of its own: then the run's prompt is not in the request."""
        return self._shown is not None and _bare(self._shown.prompt) not in _bare(dialect.system(body))

    def _aside(self, dialect: Dialect, body: Mapping[str, Any]) -> Reply:
        """A title for the conversation costs nothing and is nobody's. A summary of it would be another run."""
        request = dialect.read(body)
        if any(message.kind == "response" for message in request.messages):
            error = RuntimeFailed(
                "the program asked its model for something of its own in the midst of the run, such as a summary",
                hint="The conversation has probably become too long: give the worker less to do at once.",
            )
            self._breaks(error)
            return failure(dialect, 400, str(error))
        return _rendered(dialect, request, ModelResponse(parts=[TextPart(_ASIDE)], finish_reason="stop"), "aside")

    def _trimmed(self, dialect: Dialect, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._shown is None:
            return body
        upstream = self._upstream(dialect.api)
        return dialect.trimmed(body, self._shown.trim(login=upstream is not None and upstream.login))

    async def _counted(self, dialect: Dialect, body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """The tokens of a request, by the provider; where there is none, or it is not to see it, by a rule of thumb."""
        aside = self._is_aside(dialect, body)
        body = body if aside else self._trimmed(dialect, body)
        request = dialect.read({"max_tokens": 1, **body})
        upstream = None if aside else self._upstream(dialect.api)
        if upstream is not None:
            try:
                status, more, told = await counted(dialect, body, headers, self._line, upstream)
            except ModelFailed as error:
                return failure(dialect, error.status or 503, str(error))
            return Reply(status=status, headers={**_JSON, **more}, body=_at_once([told]))
        texts = sum(len(sent_text([message])) for message in request.messages if message.kind == "request")
        return _whole(200, {"input_tokens": tokens(texts)})

    def _ours(self, request: WireRequest) -> WireRequest:
        """The request with our names, and the prompt where every run has it. Raises where tools are missing."""
        if (shown := self._shown) is None:
            return request
        offered = (*request.parameters.function_tools, *request.parameters.output_tools)
        if missing := sorted(shown.names[name] for name in shown.names.keys() - {tool.name for tool in offered}):
            raise RuntimeToolless(f"the program does not show its model the tools of the run: {', '.join(missing)}")
        messages = [renamed(message, shown.names, shown.prompt, shown.results) for message in request.messages]
        messages = in_order([message for message in messages if message.parts])
        if not messages or messages[-1].kind != "request":
            raise Malformed("messages: the last one is not the user's", "messages")
        return replace(request, messages=self._with_usage(messages), parameters=shown.parameters)

    def _with_usage(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """The answers with what they cost, as far as that is known: what was charged need not be guessed."""
        steps = count(1)
        return [
            replace(message, usage=self._usage.get(f"m{next(steps)}", message.usage))
            if isinstance(message, ModelResponse)
            else message
            for message in messages
        ]

    async def _reply(
        self, dialect: Dialect, request: WireRequest, body: Mapping[str, Any], headers: Mapping[str, str], query: str
    ) -> Reply:
        step = sum(1 for message in request.messages if message.kind == "response")
        fields = ("part_kind", "content", "tool_name", "tool_call_id", "args")  # equal when the question is repeated
        question = fingerprint(
            [[repr(getattr(part, name, None)) for name in fields] for part in request.messages[-1].parts]
        )
        key = self._key(f"m{step + 1}", question, request.messages)
        if (call := self._calls.get(key)) is not None:
            return await self._joined(dialect, request, call, key)
        if len(self._calls) >= MAX_CALLS:
            return failure(dialect, 429, f"{MAX_CALLS} calls of this run are under way: wait for one of them")
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        through = Through(dialect, body, headers, self._line, on=pieces.put_nowait, ours=self._named, query=query)
        asked = self._ask(key, request.messages, request.parameters, through)
        call = _Call(question=question, pieces=pieces, task=asyncio.ensure_future(asked), through=through)
        self._calls[key] = call
        call.task.add_done_callback(lambda done: self._over(key, call))
        if (first := await pieces.get()) is None:
            return await self._joined(dialect, request, call, key)
        headers = {**_EVENTS, **(through.head or {})}
        return Reply(status=200, headers=headers, body=self._flowing(dialect, call, first))

    def _key(self, first: str, question: str, messages: Sequence[ModelMessage]) -> str:
        """The key of a call: that of its place in the conversation, unless that is another question's."""
        key, number = first, 1
        while True:
            call = self._calls.get(key)
            if call.question == question if call is not None else not self._another(key, messages):
                return key
            number += 1
            key = f"{first}.{number}"

    def _over(self, key: str, call: _Call) -> None:
        """The call is on record, or has failed: now the end may be passed on. A failure ends the run."""
        self._calls.pop(key, None)
        error = None if call.task.cancelled() else call.task.exception()
        if error is None and not call.task.cancelled():
            response = call.task.result()
            if key not in self._usage:
                self._heard(key, response)
            self._usage[key] = response.usage
        elif isinstance(error, Exception):
            self._breaks(error)
        call.pieces.put_nowait(None)

    async def _joined(self, dialect: Dialect, request: WireRequest, call: _Call, key: str) -> Reply:
        """The whole answer, when it is on record."""
        await asyncio.wait([call.task])  # it goes on when this one is cancelled
        if call.task.cancelled():
            return failure(dialect, 503, "the run has ended, or was put away")
        error = call.task.exception()
        if error is not None:
            return self._failed(dialect, call, error)
        through = call.through
        if not through.begun and through.head is not None:
            is_stream = through.head.get("content-type", "").startswith("text/event-stream")
            if is_stream == request.stream:
                kind = _EVENTS if request.stream else _JSON
                return Reply(status=200, headers={**kind, **through.head}, body=_at_once([bytes(through.held)]))
        return _rendered(dialect, request, self._theirs(call.task.result()), f"{self._id}{key}")

    async def _flowing(self, dialect: Dialect, call: _Call, first: bytes) -> AsyncGenerator[bytes]:
        """The pieces as they come; after the last one what was held, or what went wrong."""
        yield first
        while (piece := await call.pieces.get()) is not None:
            yield piece
        if call.task.cancelled():
            yield dialect.broken(503, "the run has ended, or was put away").encode()
        elif (error := call.task.exception()) is not None:
            status = (error.status if isinstance(error, ModelFailed) else None) or 500
            yield dialect.broken(status, _words(error)).encode()
        else:
            yield bytes(call.through.held)

    def _failed(self, dialect: Dialect, call: _Call, error: BaseException) -> Reply:
        """A provider's refusal as it came; all else in the shape of the API. None of it is to be tried again."""
        refusal = call.through.refusal
        if isinstance(error, ModelFailed) and refusal is not None:
            status, headers, body = refusal
            return Reply(status=status, headers={**_JSON, **headers, **self._final}, body=_at_once([body]))
        status, after = (error.status, error.retry_after) if isinstance(error, ModelFailed) else (None, None)
        more = {} if after is None else {"retry-after-ms": str(int(after * 1000))}
        return _whole(status or 400, dialect.error(status or 400, _words(error)), {**self._final, **more})

    def _named(self, response: ModelResponse) -> ModelResponse:
        return response if self._shown is None else renamed(response, self._shown.names)

    def _theirs(self, response: ModelResponse) -> ModelResponse:
        if self._shown is None:
            return response
        return renamed(response, {ours: theirs for theirs, ours in self._shown.names.items()})


def failure(dialect: Dialect, status: int, message: str, param: str | None = None) -> Reply:
    """A failure in the shape of the API, which asking again does not help."""
    return _whole(status, dialect.error(status, message, param), _FINAL)


def _rendered(dialect: Dialect, request: WireRequest, response: ModelResponse, id: str) -> Reply:
    if request.stream:
        events = (event.encode() for event in dialect.stream(request, response, id))
        return Reply(status=200, headers=_EVENTS, body=_at_once(events))
    return _whole(200, dialect.whole(request, response, id))


def _whole(status: int, told: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=status, headers={**_JSON, **(headers or {})}, body=_at_once([json.dumps(told).encode()]))


async def _at_once(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, GuildError) else f"the call broke: {type(error).__name__}"


def _bare(text: str) -> str:
    return " ".join(text.split())
