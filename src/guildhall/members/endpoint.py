"""What a member answers at its address: MCP and `worker/*` by POST, to whoever shows the secret.

An ASGI application. It keeps no session. What it serves is handed in: tools with a way to call them, and the six
operations of a worker, or one of the two.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.nearest import did_you_mean
from guildhall.core.tokens import is_same_token
from guildhall.members.protocol import METHODS, hear, reply
from guildhall.tools.define import invoke
from guildhall.tools.http_guard import bearer
from guildhall.tools.http_messages import Unheard, demand_here, demand_message, read_body, send_json
from guildhall.tools.mcp_messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Headers,
    Request,
    Wrong,
    answer,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from guildhall.tools.http_messages import Message, Receive, Send
    from guildhall.tools.model import Tool, ToolResult

    Operate = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

PATH = "/mcp"
MOST_UNDER_WAY = 256
_log = logging.getLogger("guildhall.members")


class Refusal(Exception):
    """What a `worker/*` request is answered with when it cannot be carried out."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What is served under one address."""

    name: str
    version: str
    tools: tuple[Tool, ...] = ()
    call: Callable[[Tool, Mapping[str, Any]], Awaitable[ToolResult]] = invoke
    worker: Operate | None = None  # carries out `worker/*`, or raises Refusal; None: there is no worker
    missing: str | None = None  # nothing is served, as there is nobody of the name that was asked for: what is said


class Endpoint:
    """The ASGI application."""

    def __init__(self, *, admits: Callable[[str], bool], find: Callable[[Message], Offer | None]) -> None:
        """`admits`: whether a token opens. `find`: what is served where a request goes; Unheard, or None: nothing."""
        self._admits = admits
        self._find = find
        self._under_way = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            headers = Headers.of(scope["headers"])
            offer = self._entered(scope, headers)
            status, told = await self._answer(await read_body(receive), headers, offer)
        except Unheard as no:
            await send_json(send, no.status, no.as_dict(), no.headers)
        else:
            await send_json(send, status, told)

    def _entered(self, scope: Message, headers: Headers) -> Offer:
        demand_here(headers)
        token = bearer(headers.get("authorization"))
        if token is None or "authorization" in headers.twice or not self._admits(token):
            raise Unheard(401, "this takes the secret of the member", (b"www-authenticate", b"Bearer"))
        offer = self._find(scope)
        if offer is None:
            raise Unheard(404, "nothing is served here")
        demand_message(scope["method"], headers)
        return offer

    @staticmethod
    def of_one(offer: Offer, secret: str) -> Endpoint:
        """That of a program which serves one thing, at `/mcp`, to whoever knows the secret."""

        def admits(token: str) -> bool:
            return is_same_token(token, secret)

        return Endpoint(admits=admits, find=lambda scope: offer if scope["path"] in (PATH, f"{PATH}/") else None)

    async def _answer(self, body: bytes, headers: Headers, offer: Offer) -> tuple[int, Any]:
        if self._under_way >= MOST_UNDER_WAY:
            raise Unheard(503, f"{MOST_UNDER_WAY} requests are under way: wait for one of them")
        self._under_way += 1
        try:
            heard = hear(body, headers)
            status, told = reply(heard, [await _answered(message, offer) for message in heard.messages])
            return (status if offer.missing is None else 404), told
        except Wrong as wrong:
            return wrong.status, wrong.as_dict()
        finally:
            self._under_way -= 1


async def _answered(message: Request | Wrong, offer: Offer) -> dict[str, Any] | Wrong | None:
    """The answer to one message; None: it wants none."""
    if isinstance(message, Wrong):
        return message
    try:
        told = await _carried_out(message, offer)
    except Wrong as wrong:
        return None if message.quiet else wrong
    except Exception as error:  # noqa: BLE001 - the edge: whoever asks is told in words, whatever it was
        _log.exception("%s broke", message.method[:100])
        said = f"something broke that should not have: {type(error).__name__}. The log says where."
        return None if message.quiet else _wrong(message, INTERNAL_ERROR, said)
    return None if message.quiet else told


async def _carried_out(request: Request, offer: Offer) -> dict[str, Any]:
    if offer.missing is not None:
        raise _wrong(request, INVALID_PARAMS, offer.missing)
    if request.method in METHODS and offer.worker is not None:
        try:
            result = await offer.worker(request.method, request.params)
        except Refusal as no:
            raise _wrong(request, no.code, no.message, no.data) from None
        return {"jsonrpc": "2.0", "id": request.id, "result": result}  # the same in every era
    return answer(request, await _result(request, offer))


async def _result(request: Request, offer: Offer) -> dict[str, Any]:
    ours = {"name": offer.name, "version": offer.version}
    if request.method in METHODS:
        raise _wrong(request, METHOD_NOT_FOUND, f"{offer.name} has no worker: it takes no {request.method}")

    async def call(request: Request) -> ToolResult:
        if request.quiet:  # nobody would hear what came of it
            raise _wrong(request, METHOD_NOT_FOUND, "a tool is not called by a notification")
        return await offer.call(*_asked(request, offer.tools))

    result = await result_of(request, ours, offer.tools, call)
    return _told(result, offer) if request.method in ("initialize", "server/discover") else result


def _told(about: dict[str, Any], offer: Offer) -> dict[str, Any]:
    """What it says about itself. MCP has a place for what it does not know."""
    if offer.worker is None:
        return about
    return {**about, "capabilities": {**about["capabilities"], "experimental": {"worker": {}}}}


def _asked(request: Request, tools: tuple[Tool, ...]) -> tuple[Tool, Mapping[str, Any]]:
    """The tool that a request calls, and the arguments. Whether they fit is told to the model, as a result."""
    name, arguments = request.params.get("name"), request.params.get("arguments")
    known = {tool.name: tool for tool in tools}
    if not isinstance(name, str):
        raise _wrong(request, INVALID_PARAMS, "`name` is the name of a tool")
    if name not in known:
        hint = did_you_mean(name[:100], known)
        raise _wrong(request, INVALID_PARAMS, f"there is no tool {name[:100]!r} here. {hint or ''}".strip())
    if arguments is not None and not isinstance(arguments, dict):
        raise _wrong(request, INVALID_PARAMS, "`arguments` is an object")
    return known[name], cast("dict[str, Any]", arguments or {})


def _wrong(request: Request, code: int, message: str, data: Any = None) -> Wrong:
    return Wrong(code, message, id=request.id, modern=request.modern, data=data)
