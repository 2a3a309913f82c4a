"""A model's answers over HTTP, in the wire formats of Anthropic and OpenAI.

Real provider clients, and programs built on them, talk to it as they would to the provider. It has no answers of its
own: each request is read into a Query and handed to a source. The key that a client sends says who is asking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from guildhall.core.errors import GuildError, ModelFailed
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.models.dialects.reading import Malformed, parse
from guildhall.models.model import Query
from guildhall.models.script import sent_text, tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from pydantic_ai.messages import ModelResponse
    from starlette.requests import Request

    from guildhall.models.dialects.model import Dialect, WireRequest
    from guildhall.models.model import Source

MAX_BODY = 32_000_000
_KEY = re.compile(r"script-(?P<worker>[A-Za-z0-9][A-Za-z0-9_.-]*?)(?:\.(?P<ordinal>\d{1,6}))?")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who is asking: which worker, in the how-manieth of its runs."""

    worker: str
    ordinal: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request, and how it went. `answered` is true when the client got a model's answer."""

    path: str
    key: str | None
    body: Mapping[str, Any] | None
    status: int
    answered: bool


def scripted_caller(key: str) -> Caller | None:
    """The caller that a key of the form `script-WORKER` or `script-WORKER.RUN` names; runs count from 0."""
    if (match := _KEY.fullmatch(key)) is None:
        return None
    return Caller(worker=match["worker"], ordinal=int(match["ordinal"] or 0))


def wire_app(
    source_for_worker: Callable[[str], Source],
    *,
    caller_of: Callable[[str], Caller | None] = scripted_caller,
    on_exchange: Callable[[Exchange], None] = lambda exchange: None,
    max_body: int = MAX_BODY,
) -> Starlette:
    """The HTTP application: `/anthropic/v1/...` and `/openai/v1/...`."""
    wire = _Wire(source_for_worker, caller_of, on_exchange, max_body)
    anthropic = Anthropic()
    return Starlette(
        routes=[
            Route("/anthropic/v1/messages", wire.endpoint(anthropic), methods=["POST"]),
            Route("/anthropic/v1/messages/count_tokens", wire.endpoint(anthropic, count=True), methods=["POST"]),
            Route("/openai/v1/chat/completions", wire.endpoint(OpenAIChat()), methods=["POST"]),
            Route("/openai/v1/responses", wire.endpoint(OpenAIResponses()), methods=["POST"]),
        ],
        exception_handlers={HTTPException: wire.not_served},
    )


class _Refused(Exception):
    """The request is not answered; the client is told why."""

    def __init__(self, status: int, message: str, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after


class _Wire:
    """Serves requests. Its one memory is how often a question has failed, for the scripts' `fail`."""

    def __init__(
        self,
        source_for_worker: Callable[[str], Source],
        caller_of: Callable[[str], Caller | None],
        on_exchange: Callable[[Exchange], None],
        max_body: int,
    ) -> None:
        self._source_for_worker = source_for_worker
        self._caller_of = caller_of
        self._on_exchange = on_exchange
        self._max_body = max_body
        self._failures: dict[tuple[str, int], int] = {}

    def endpoint(self, dialect: Dialect, *, count: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            key = _key(request)
            body: Mapping[str, Any] | None = None
            try:
                caller = self._caller(key)
                body = parse(await self._body(request))
                answer = self._count if count else self._answer
                response = await answer(dialect, body, key or "", caller)
            except Malformed as error:
                response = _failure(dialect, _Refused(400, error.message, error.param))
            except _Refused as error:
                response = _failure(dialect, error)
            answered = response.status_code == 200 and not count
            path = request.url.path
            self._on_exchange(Exchange(path=path, key=key, body=body, status=response.status_code, answered=answered))
            return response

        return serve

    async def not_served(self, request: Request, error: Exception) -> Response:
        """A path or a method that is not served, in the shape of the API that was meant."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        dialect = Anthropic() if request.url.path.startswith("/anthropic") else OpenAIChat()
        message = f"{request.method} {request.url.path} is not served here"
        return JSONResponse(dialect.error(status, message), status)

    def _caller(self, key: str | None) -> Caller:
        caller = self._caller_of(key) if key else None
        if caller is None:
            raise _Refused(401, "the API key is missing or not known here")
        return caller

    async def _body(self, request: Request) -> bytes:
        data = bytearray()
        try:
            async for chunk in request.stream():
                data += chunk
                if len(data) > self._max_body:
                    raise _Refused(413, f"the request is larger than {self._max_body:,} bytes")
        except ClientDisconnect:
            raise _Refused(400, "the request ended before it was complete") from None
        return bytes(data)

    async def _count(self, dialect: Dialect, body: Mapping[str, Any], key: str, caller: Caller) -> Response:
        read = Anthropic().read_for_counting(body)
        texts = sum(len(sent_text([message])) for message in read.messages if message.kind == "request")
        return JSONResponse({"input_tokens": tokens(texts)})

    async def _answer(self, dialect: Dialect, body: Mapping[str, Any], key: str, caller: Caller) -> Response:
        request = dialect.read(body)
        response = await self._ask(request, key, caller)
        step = sum(1 for message in request.messages if message.kind == "response")
        answer_id = f"{caller.worker}_{caller.ordinal}_{step}"
        if request.stream:
            events = dialect.stream(request, response, answer_id)
            return StreamingResponse(
                _one_by_one(events), media_type="text/event-stream", headers={"cache-control": "no-cache"}
            )
        return JSONResponse(dialect.whole(request, response, answer_id))

    async def _ask(self, request: WireRequest, key: str, caller: Caller) -> ModelResponse:
        query = Query(
            worker=caller.worker,
            ordinal=caller.ordinal,
            attempt=0,
            messages=request.messages,
            settings=request.settings,
            parameters=request.parameters,
        )
        question = (key, query.step)
        query = replace(query, attempt=self._failures.get(question, 0))
        try:
            return await self._source_for_worker(caller.worker).answer(query, lambda piece: None)
        except ModelFailed as error:
            if error.status is None:
                raise _Refused(400, str(error)) from None
            self._failures[question] = query.attempt + 1
            raise _Refused(error.status, str(error), retry_after=error.retry_after) from None
        except GuildError as error:
            raise _Refused(400, str(error)) from None


async def _one_by_one(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


def _key(request: Request) -> str | None:
    if key := request.headers.get("x-api-key"):
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _failure(dialect: Dialect, error: _Refused) -> Response:
    """The failure in the API's shape; where it will soon be over, the client is told how soon."""
    headers = {} if error.retry_after is None else {"retry-after-ms": str(int(error.retry_after * 1000))}
    return JSONResponse(dialect.error(error.status, error.message, error.param), error.status, headers)
