"""Passthrough session: answers the model requests of the program that executes a run, in the provider's format.

A request without the run's prompt, such as a request for a title, gets a fixed answer and is not recorded. If it
contains an earlier answer, such as a request for a summary, the run fails.
A call continues if the program disconnects. A repeated request gets the recorded answer.
Does not call the provider: `relay` does. Does not serve HTTP: `hall.doors` does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturnPart

from guildhall.core.errors import GuildError, ModelFailed, RuntimeFailed, RuntimeToolless
from guildhall.core.ids import fingerprint
from guildhall.models.dialects.base import Dialect, InvalidMessage, TrimRules, WireRequest, parse_body
from guildhall.models.dialects.canonical import rename_tools, sort_results
from guildhall.models.model import Upstream, estimate_tokens, latest_input
from guildhall.models.passthrough.provider_connection import ConnectionPool
from guildhall.models.passthrough.relay import PassthroughRequest, count_tokens

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.usage import RequestUsage

    # The model door of a run.
    Ask = Callable[
        [str, Sequence[ModelMessage], ModelRequestParameters, PassthroughRequest | None], Awaitable[ModelResponse]
    ]

MAX_CALLS = 16  # running at a time, of one run
_SIDE_ANSWER = "ok"  # for requests of the program itself, such as a request for a title
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-cache"}
_NO_RETRY = {"x-should-retry": "false"}  # the clients of both providers obey it: only the door retries


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The HTTP response for a program."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """The only content that the model of a run may see. Programs add text of their own and shorten long text."""

    prompt: str
    names: Mapping[str, str]  # the program's names of the run's tools, with the run's own names
    parameters: ModelRequestParameters  # with the definitions of these tools
    results: Mapping[str, ToolReturnPart] = field(default_factory=dict[str, "ToolReturnPart"])  # by call id; it grows
    wait_for_results: Callable[[], Awaitable[None]] | None = None

    def trim_rules(self, *, has_login: bool) -> TrimRules:
        tools = {tool.name: tool for tool in (*self.parameters.function_tools, *self.parameters.output_tools)}
        shown = {shown_name: tools[name] for shown_name, name in self.names.items() if name in tools}
        names = frozenset(self.names)
        return TrimRules(prompt=self.prompt, tools=names, definitions=shown, results=self.results, has_login=has_login)


@dataclass(kw_only=True)
class _Call:
    """A model call that is running."""

    question: str
    chunks: asyncio.Queue[bytes | None]
    task: asyncio.Future[ModelResponse]
    request: PassthroughRequest


class PassthroughSession:
    """Answers the model requests of the program that executes one run."""

    def __init__(
        self,
        ask: Ask,
        *,
        content: RunContent | None,
        on_error: Callable[[Exception], None],
        on_answer: Callable[[str, ModelResponse], None] = lambda key, response: None,
        has_other_question: Callable[[str, Sequence[ModelMessage]], bool] = lambda key, messages: False,
        upstream: Callable[[str], Upstream | None] = lambda api: None,
        pool: ConnectionPool | None = None,
        id_prefix: str = "",
        may_retry: bool = False,
    ) -> None:
        """Without `content`, the model sees each request unchanged.

        `on_error` ends the run. `on_answer` gets each recorded answer. `has_other_question` returns True if a different
        question is recorded under a key. `upstream` returns the provider that requests are forwarded to. `may_retry`:
        the program may repeat failed requests; otherwise only the door retries.
        """
        self._ask = ask
        self._content = content
        self._on_error = on_error
        self._on_answer = on_answer
        self._has_other_question = has_other_question
        self._upstream = upstream
        self._pool = pool or ConnectionPool()
        self._id_prefix = id_prefix
        self._retry_headers = {} if may_retry else _NO_RETRY
        self._calls: dict[str, _Call] = {}
        self._usage: dict[str, RequestUsage] = {}  # by call key

    def active_calls(self) -> tuple[asyncio.Future[ModelResponse], ...]:
        return tuple(call.task for call in self._calls.values())

    def close(self) -> None:
        for task in self.active_calls():
            task.cancel()

    async def answer(
        self, dialect: Dialect, body: bytes, headers: Mapping[str, str], *, query: str = "", count: bool = False
    ) -> Reply:
        """Return the reply to a model request, or its number of tokens if `count` is True."""
        try:
            content = parse_body(body)
            if count:
                return await self._count_tokens(dialect, content, headers)
            if self._content is not None and self._content.wait_for_results is not None:
                await self._content.wait_for_results()
            if self._is_side_request(dialect, content):
                return self._answer_side_request(dialect, content)
            trimmed = self._trim(dialect, content)
            request = self._normalize(dialect.parse_request(trimmed))
        except InvalidMessage as error:
            return error_reply(dialect, 400, error.message, error.param)
        except GuildError as error:
            self._on_error(error)
            return error_reply(dialect, 400, str(error))
        return await self._answer_call(dialect, request, trimmed, headers, query)

    def list_models(self, dialect: Dialect) -> Reply:
        """Return the reply to a request for models. A run has one model."""
        upstream = self._upstream(dialect.api)
        model = {"id": upstream.model if upstream else "model", "object": "model", "type": "model"}
        return _json_reply(200, {"object": "list", "data": [model], "has_more": False})

    def _is_side_request(self, dialect: Dialect, body: Mapping[str, Any]) -> bool:
        """Return True if the run's prompt is missing, so that the request is the program's own."""
        return self._content is not None and _words(self._content.prompt) not in _words(dialect.system_prompt(body))

    def _answer_side_request(self, dialect: Dialect, body: Mapping[str, Any]) -> Reply:
        """Return a fixed answer, for example to a request for a title.

        A summary of the conversation would change the run, so it fails.
        """
        request = dialect.parse_request(body)
        if any(message.kind == "response" for message in request.messages):
            error = RuntimeFailed(
                "the program sent a model request of its own during the run, such as a request for a summary",
                hint="The conversation is probably too long. Give the worker a smaller task.",
            )
            self._on_error(error)
            return error_reply(dialect, 400, str(error))
        return _render(dialect, request, ModelResponse(parts=[TextPart(_SIDE_ANSWER)], finish_reason="stop"), "aside")

    def _trim(self, dialect: Dialect, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._content is None:
            return body
        upstream = self._upstream(dialect.api)
        return dialect.trim(body, self._content.trim_rules(has_login=upstream is not None and upstream.has_login))

    async def _count_tokens(self, dialect: Dialect, body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Return the provider's token count, or an estimate without a provider or for a side request."""
        is_side = self._is_side_request(dialect, body)
        body = body if is_side else self._trim(dialect, body)
        request = dialect.parse_request({"max_tokens": 1, **body})
        upstream = None if is_side else self._upstream(dialect.api)
        if upstream is not None:
            try:
                status, more, data = await count_tokens(dialect, body, headers, self._pool, upstream)
            except ModelFailed as error:
                return error_reply(dialect, error.status or 503, str(error))
            return Reply(status=status, headers={**_JSON, **more}, body=_iterate([data]))
        texts = sum(len(latest_input([message])) for message in request.messages if message.kind == "request")
        return _json_reply(200, {"input_tokens": estimate_tokens(texts)})

    def _normalize(self, request: WireRequest) -> WireRequest:
        """Return the request with the run's tool names and prompt. Raise RuntimeToolless if tools are missing."""
        if (content := self._content) is None:
            return request
        offered = (*request.parameters.function_tools, *request.parameters.output_tools)
        if missing := sorted(content.names[name] for name in content.names.keys() - {tool.name for tool in offered}):
            raise RuntimeToolless(f"the program does not offer the tools of the run to its model: {', '.join(missing)}")
        messages = [
            rename_tools(message, content.names, content.prompt, content.results) for message in request.messages
        ]
        messages = sort_results([message for message in messages if message.parts])
        if not messages or messages[-1].kind != "request":
            raise InvalidMessage("messages: the last message is not from the user", "messages")
        return replace(request, messages=self._add_usage(messages), parameters=content.parameters)

    def _add_usage(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Set the known usage of earlier answers, so that the door need not estimate their tokens."""
        steps = count(1)
        return [
            replace(message, usage=self._usage.get(f"m{next(steps)}", message.usage))
            if isinstance(message, ModelResponse)
            else message
            for message in messages
        ]

    async def _answer_call(
        self, dialect: Dialect, request: WireRequest, body: Mapping[str, Any], headers: Mapping[str, str], query: str
    ) -> Reply:
        step = sum(1 for message in request.messages if message.kind == "response")
        fields = ("part_kind", "content", "tool_name", "tool_call_id", "args")  # equal if the question is repeated
        parts = request.messages[-1].parts
        question = fingerprint([[repr(getattr(part, name, None)) for name in fields] for part in parts])
        key = self._call_key(f"m{step + 1}", question, request.messages)
        if (call := self._calls.get(key)) is not None:
            return await self._wait_for_answer(dialect, request, call, key)
        if len(self._calls) >= MAX_CALLS:
            return error_reply(dialect, 429, f"{MAX_CALLS} calls of this run are running: wait for one of them")
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        forwarded = PassthroughRequest(
            dialect,
            body,
            headers,
            self._pool,
            on_data=chunks.put_nowait,
            restore_names=self._restore_names,
            query=query,
        )
        call_model = self._ask(key, request.messages, request.parameters, forwarded)
        call = _Call(question=question, chunks=chunks, task=asyncio.ensure_future(call_model), request=forwarded)
        self._calls[key] = call
        call.task.add_done_callback(lambda done: self._finish_call(key, call))
        if (first := await chunks.get()) is None:
            return await self._wait_for_answer(dialect, request, call, key)
        headers = {**_EVENTS, **(forwarded.answer_headers or {})}
        return Reply(status=200, headers=headers, body=self._stream_body(dialect, call, first))

    def _call_key(self, first: str, question: str, messages: Sequence[ModelMessage]) -> str:
        """Return the key for the step, with a suffix if another question has that key."""
        key, number = first, 1
        while True:
            call = self._calls.get(key)
            if call.question == question if call is not None else not self._has_other_question(key, messages):
                return key
            number += 1
            key = f"{first}.{number}"

    def _finish_call(self, key: str, call: _Call) -> None:
        """Report the recorded answer or the error, and end the queue of chunks."""
        self._calls.pop(key, None)
        error = None if call.task.cancelled() else call.task.exception()
        if error is None and not call.task.cancelled():
            response = call.task.result()
            if key not in self._usage:
                self._on_answer(key, response)
            self._usage[key] = response.usage
        elif isinstance(error, Exception):
            self._on_error(error)
        call.chunks.put_nowait(None)

    async def _wait_for_answer(self, dialect: Dialect, request: WireRequest, call: _Call, key: str) -> Reply:
        await asyncio.wait([call.task])  # the call continues if this request is cancelled
        if call.task.cancelled():
            return error_reply(dialect, 503, "the run has ended or was paused")
        error = call.task.exception()
        if error is not None:
            return self._failure_reply(dialect, call, error)
        sent = call.request
        if not sent.has_started and sent.answer_headers is not None:
            is_stream = sent.answer_headers.get("content-type", "").startswith("text/event-stream")
            if is_stream == request.stream:
                headers = {**(_EVENTS if is_stream else _JSON), **sent.answer_headers}
                return Reply(status=200, headers=headers, body=_iterate([bytes(sent.held_bytes)]))
        return _render(dialect, request, self._program_names(call.task.result()), f"{self._id_prefix}{key}")

    async def _stream_body(self, dialect: Dialect, call: _Call, first: bytes) -> AsyncGenerator[bytes]:
        """Yield the chunks as they arrive, then the held bytes or an error event."""
        yield first
        while (chunk := await call.chunks.get()) is not None:
            yield chunk
        if call.task.cancelled():
            yield dialect.error_event(503, "the run has ended or was paused").encode()
        elif (error := call.task.exception()) is not None:
            status = (error.status if isinstance(error, ModelFailed) else None) or 500
            yield dialect.error_event(status, _error_text(error)).encode()
        else:
            yield bytes(call.request.held_bytes)

    def _failure_reply(self, dialect: Dialect, call: _Call, error: BaseException) -> Reply:
        """Return the provider's error response unchanged, or another error in the format of the API."""
        if isinstance(error, ModelFailed) and call.request.error_response is not None:
            status, headers, body = call.request.error_response
            return Reply(status=status, headers={**_JSON, **headers, **self._retry_headers}, body=_iterate([body]))
        status, after = (error.status, error.retry_after) if isinstance(error, ModelFailed) else (None, None)
        more = {} if after is None else {"retry-after-ms": str(int(after * 1000))}
        body = dialect.error_body(status or 400, _error_text(error))
        return _json_reply(status or 400, body, {**self._retry_headers, **more})

    def _restore_names(self, response: ModelResponse) -> ModelResponse:
        return response if self._content is None else rename_tools(response, self._content.names)

    def _program_names(self, response: ModelResponse) -> ModelResponse:
        if self._content is None:
            return response
        return rename_tools(response, {ours: theirs for theirs, ours in self._content.names.items()})


def error_reply(dialect: Dialect, status: int, message: str, param: str | None = None) -> Reply:
    """Return an error in the format of the API that the client must not retry."""
    return _json_reply(status, dialect.error_body(status, message, param), _NO_RETRY)


def _render(dialect: Dialect, request: WireRequest, response: ModelResponse, id: str) -> Reply:
    if request.stream:
        events = (event.encode() for event in dialect.stream_answer(request, response, id))
        return Reply(status=200, headers=_EVENTS, body=_iterate(events))
    return _json_reply(200, dialect.build_answer(request, response, id))


def _json_reply(status: int, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=status, headers={**_JSON, **(headers or {})}, body=_iterate([json.dumps(payload).encode()]))


async def _iterate(chunks: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for chunk in chunks:
        yield chunk


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, GuildError) else f"internal error: {type(error).__name__}"


def _words(text: str) -> str:
    return " ".join(text.split())
