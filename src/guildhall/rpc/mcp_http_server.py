"""Member endpoint: an ASGI application that serves MCP and the methods `worker/*` to callers with a token.

Does not implement `worker/*`. The owner of an endpoint passes in the tools, a function that calls them, and a function
that executes the methods of the worker.

Invariant: the endpoint has no sessions, so any number of clients can share it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.rpc.asgi_requests import Headers, HttpError, check_json_post, check_local, is_token, read_body, send_json
from guildhall.rpc.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from guildhall.rpc.mcp_messages import Request, ServerInfo, build_response, handle_request, reply_to
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from guildhall.rpc.asgi_requests import Message, Receive, Send
    from guildhall.tools.model import Tool, ToolResult

    Operate = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

PATH = "/mcp"
MAX_REQUESTS = 256  # concurrent requests

DISPATCH = "worker/dispatch"
LIST = "worker/list"
STATUS = "worker/status"
RESULT = "worker/result"
CANCEL = "worker/cancel"
DELETE = "worker/delete"
ANSWER = "worker/answer"
RESUME = "worker/resume"
METHODS = (DISPATCH, LIST, STATUS, RESULT, CANCEL, DELETE, ANSWER, RESUME)  # the last two are optional for members

_log = logging.getLogger("guildhall.members")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The tools and the worker of one address."""

    name: str
    version: str
    tools: tuple[Tool, ...] = ()
    call: Callable[[Tool, Mapping[str, Any]], Awaitable[ToolResult]] = invoke
    worker: Operate | None = None  # executes `worker/*`, or raises RpcError; None if there is no worker
    missing: str | None = None  # the error of all requests, if the address names an unknown worker


class Endpoint:
    """An ASGI application that serves the offers of one or more addresses."""

    def __init__(self, *, is_valid_token: Callable[[str], bool], find_offer: Callable[[Message], Offer | None]) -> None:
        """`find_offer` returns the offer at the path of a request or None. It may raise HttpError."""
        self._is_valid_token = is_valid_token
        self._find_offer = find_offer
        self._active_requests = 0

    @staticmethod
    def for_offer(offer: Offer, secret: str) -> Endpoint:
        """Return an endpoint that serves one offer at `/mcp`."""
        return Endpoint(
            is_valid_token=lambda token: is_token(token, secret),
            find_offer=lambda scope: offer if scope["path"] in (PATH, f"{PATH}/") else None,
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await send_reply(send, self._reply(scope, receive))

    async def _reply(self, scope: Message, receive: Receive) -> tuple[int, Any]:
        headers = Headers.of(scope["headers"])
        offer = self._check_request(scope, headers)
        body = await read_body(receive, headers)
        if self._active_requests >= MAX_REQUESTS:
            raise HttpError(503, f"too many concurrent requests (maximum: {MAX_REQUESTS}): try again")
        self._active_requests += 1
        try:
            status, payload = await reply_to(body, headers, lambda request: _respond(request, offer), batches=True)
        finally:
            self._active_requests -= 1
        return (status if offer.missing is None else 404), payload

    def _check_request(self, scope: Message, headers: Headers) -> Offer:
        check_local(headers)
        if (token := headers.bearer) is None or not self._is_valid_token(token):
            raise HttpError(401, "missing or invalid token", (b"www-authenticate", b"Bearer"))
        offer = self._find_offer(scope)
        if offer is None:
            raise HttpError(404, f"unknown path {scope['path'][:100]!r}")
        check_json_post(scope["method"], headers)
        return offer


async def send_reply(send: Send, reply: Awaitable[tuple[int, Any]]) -> None:
    """Send the status and the payload of a reply. Send an HttpError that it raises as a JSON-RPC error."""
    try:
        status, payload = await reply
    except HttpError as error:
        response = RpcError(INTERNAL_ERROR, error.message).as_response(None)
        await send_json(send, error.status, response, error.headers)
    else:
        await send_json(send, status, payload)


async def _respond(request: Request, offer: Offer) -> dict[str, Any]:
    try:
        return await _handle(request, offer)
    except RpcError:
        raise
    except Exception as error:  # noqa: BLE001 - the caller receives a response to every request
        _log.exception("%s failed", request.method[:100])
        text = f"internal error: {type(error).__name__}. See the log of the server."
        raise RpcError(INTERNAL_ERROR, text) from None


async def _handle(request: Request, offer: Offer) -> dict[str, Any]:
    if offer.missing is not None:
        raise RpcError(INVALID_PARAMS, offer.missing)
    if request.method not in METHODS:
        server = ServerInfo(name=offer.name, version=offer.version)
        tools = {tool.name: tool for tool in offer.tools}
        result = await handle_request(request, server, tools, offer.call)
        if offer.worker is not None and request.method in ("initialize", "server/discover"):
            # MCP reserves `experimental` for capabilities that it does not define.
            result["capabilities"] = {**result["capabilities"], "experimental": {"worker": {}}}
        return build_response(request, result)
    if offer.worker is None:
        raise RpcError(METHOD_NOT_FOUND, f"unsupported method {request.method}: {offer.name} has no worker")
    result = await offer.worker(request.method, request.params)
    return {"jsonrpc": "2.0", "id": request.id, "result": result}  # independent of the MCP version
