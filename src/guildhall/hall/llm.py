"""The model door over HTTP: `/llm/anthropic/v1/...` and `/llm/openai/v1/...`, with a run's token in a key's place.

An ASGI application of its own, as the tool door is. What goes wrong is told in the shape of the API that was meant.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.models.passing import Reply, failure
from guildhall.rpc.http import Headers, HttpError, check_json_post, check_local, read_body

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from guildhall.models.dialects.model import Dialect
    from guildhall.models.passing import Passing
    from guildhall.rpc.http import Message, Receive, Send

MAX_BODY = 32_000_000
PREFIX = "/llm"
_DRAINED = 4_000_000  # bytes of a request that is not heard
_DRAIN_SECONDS = 2.0
_COUNT = "/anthropic/v1/messages/count_tokens"


class LlmEndpoint:
    """The ASGI application. `passing` finds the model door that a token opens now."""

    def __init__(
        self, passing: Callable[[str], Passing | None], *, prefix: str = PREFIX, max_body: int = MAX_BODY
    ) -> None:
        self._passing = passing
        self._prefix = prefix
        self._max_body = max_body
        self._anthropic = Anthropic()
        self._chat = OpenAIChat()
        self._asked: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/messages": self._anthropic,
            f"{prefix}{_COUNT}": self._anthropic,
            f"{prefix}/openai/v1/chat/completions": self._chat,
            f"{prefix}/openai/v1/responses": OpenAIResponses(),
        }
        self._listed: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/models": self._anthropic,
            f"{prefix}/openai/v1/models": self._chat,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            reply, last = await self._reply(scope, path, receive), False
        except HttpError as error:
            reply, last = failure(self._meant(path), error.status, error.message), True
            await _drained(receive)
        await _send(send, reply, last=last)

    async def _reply(self, scope: Message, path: str, receive: Receive) -> Reply:
        headers = Headers.of(scope["headers"])
        check_local(headers)
        passing = self._entered(headers)
        if (listed := self._listed.get(path)) is not None and scope["method"] == "GET":
            return passing.models(listed)
        if (dialect := self._asked.get(path)) is None:
            raise HttpError(404, f"{scope['method']} {path[:200]} is not served here")
        check_json_post(scope["method"], headers)
        body = await read_body(receive, headers, max_bytes=self._max_body)
        passing = self._entered(headers)  # while it came the run may have ended
        query = "?" + scope["query_string"].decode("latin-1") if scope.get("query_string") else ""
        count = path == f"{self._prefix}{_COUNT}"
        return await passing.answer(dialect, body, headers.values, query=query, count=count)

    def _entered(self, headers: Headers) -> Passing:
        token = key_of(headers)
        if not token or (passing := self._passing(token)) is None:
            raise HttpError(401, "this takes the token of a run that is going on, in the place of a key")
        return passing

    def _meant(self, path: str) -> Dialect:
        return self._asked.get(path) or (self._anthropic if "/anthropic" in path else self._chat)


def key_of(headers: Headers) -> str | None:
    """What a client shows in the place of a key."""
    return headers.get("x-api-key") or headers.bearer


async def _drained(receive: Receive) -> None:
    """Lets a client finish who is not heard, or it would not read why. One that sends without end is cut off."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAINED:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def _send(send: Send, reply: Reply, *, last: bool) -> None:
    """The answer as it comes. It is not read to its end where nobody listens any more: the call goes on without."""
    head = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in reply.headers.items()]
    head += [(b"connection", b"close")] if last else []
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    async with aclosing(cast("AsyncGenerator[bytes, Any]", reply.body)) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
