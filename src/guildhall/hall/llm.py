"""The model door over HTTP: `/llm/anthropic/v1/...` and `/llm/openai/v1/...`, with a run's token in a key's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.tools.http_guard import bearer
from guildhall.tools.http_messages import Unheard, demand_here, read_body, send_json
from guildhall.tools.mcp_messages import Headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.runs.tokens import RunDoor
    from guildhall.tools.http_messages import Message, Receive, Send

_DIALECTS = {
    "/llm/anthropic/v1/messages": Anthropic(),
    "/llm/openai/v1/responses": OpenAIResponses(),
    "/llm/openai/v1/chat/completions": OpenAIChat(),
}


class LlmEndpoint:
    """The ASGI application. `door` finds the doors that a token opens now."""

    def __init__(self, door: Callable[[str], RunDoor | None]) -> None:
        self._door = door

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except Unheard as no:
            await send_json(send, no.status, no.as_dict(), no.headers)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers.of(scope["headers"])
        demand_here(headers)
        token = headers.get("x-api-key") or bearer(headers.get("authorization"))
        door = self._door(token) if token else None
        if door is None or door.passing is None:
            raise Unheard(401, "this takes the token of a run that is going on")
        dialect = _DIALECTS.get(scope["path"])
        if dialect is None:
            raise Unheard(404, f"{scope['path']} is not served here")
        reply = await door.passing.answer(dialect, await read_body(receive))
        head = [(b"content-type", reply.media_type.encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        async for piece in reply.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
