"""HTTP API of a hall: serves a route for each verb, with JSON bodies and streams as lines of JSON.

Host, Origin and token are checked before the body is read. `/api/` accepts the user's token only. A run's token opens
the applications that are mounted for runs, such as `/mcp/`, and there only the part of that run.
Verbs that are not read-only wait while the hall recovers, and are refused while it stops.
Does not implement verbs: `hall.services` does. Does not define routes: `hall.client.interface` does.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from guildhall import __version__
from guildhall.core.errors import (
    GuildError,
    HallGone,
    NotFound,
    Refused,
    StorageFailed,
    TimedOut,
    UsageError,
    internal_error,
)
from guildhall.core.request_frame import Frame
from guildhall.core.text_checks import did_you_mean, is_text
from guildhall.hall.client.codec import decode, encode, get_verb, texts_in
from guildhall.hall.client.interface import VERBS, HallClient
from guildhall.rpc.asgi_requests import BODY_TIMEOUT_S, Headers, HttpError, check_local, is_token, read_body, send_json
from guildhall.rpc.jsonrpc import RpcError, parse_json
from guildhall.store.engine import MAY_WAIT_FOR_DISK

if TYPE_CHECKING:
    from guildhall.hall.client.model import Health
    from guildhall.rpc.asgi_requests import App, Message, Receive, Send

MAX_BODY_BYTES = 20_000_000
_SEND_TIMEOUT_S = 600.0  # for a client that has stopped reading a stream

_ROUTES = {f"/api/{name.replace('.', '/')}": name for name in VERBS}
# Verbs that are answered while the hall recovers runs and while it stops.
_READ_ONLY = frozenset(
    {
        *("hall.status", "runs.get", "runs.list", "runs.journal", "asks.list", "asks.get"),
        *("workflows.get", "workflows.list", "workflows.find_by_run", "rooms.messages"),
    }
)
# Verbs that write nothing are answered while the disk is full.
_WRITES_NOTHING = re.compile(
    r".*\.(active_jobs|check|doctor|documents|find_by_run|follow|get|hello|history|inspect|journal|list|messages|plan"
    r"|proposals|read_document|replay|result|schedules|script|status|tools|untrusted_callees)"
)
_WHILE_STOPPING = _READ_ONLY | {"runs.pause"}
_WHILE_RECOVERING = _READ_ONLY | {"hall.hello"}

_END_OF_STREAM = object()
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_log = logging.getLogger("guildhall.hall")


class _Rejected(HttpError):
    """A request that is rejected with an error of the hall."""

    def __init__(self, status: int, error: GuildError, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status, error.message, *headers)
        self.error = error


@dataclass(frozen=True, kw_only=True)
class ApiContext:
    """The process that serves the API."""

    boot: str
    token: str = field(repr=False)  # the user's token
    is_run_token: Callable[[str], bool]  # returns True for the token of a live run
    hall: HallClient
    is_stopping: Callable[[], bool]
    disk_error: Callable[[], GuildError | None]  # returns the reason if the disk does not accept new work
    recovered: asyncio.Event  # set when the runs of earlier halls are resumed
    add_secrets: Callable[[Mapping[str, str]], None]  # redacts these values in the log


class Api:
    """The ASGI application of the HTTP API."""

    def __init__(self, context: ApiContext, *, body_timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._context = context
        self._body_timeout_s = body_timeout_s
        self._mounts: dict[str, App] = {}
        self._apps: dict[str, App] = {}

    def mount(self, prefix: str, app: App) -> None:
        """Serve an ASGI application below a path. It checks tokens itself."""
        self._mounts[prefix] = app

    def add_route(self, path: str, app: App) -> None:
        """Serve an ASGI application at a path. It checks tokens itself."""
        self._apps[path] = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers.of(scope["headers"])
        try:
            await self._route(scope, headers, receive, send)
        except HttpError as error:
            await send_json(send, error.status, {"error": _to_guild_error(error).as_dict()}, error.headers)
        except GuildError as error:
            await send_json(send, error.http_status, {"error": error.as_dict()})
        except Exception as error:  # noqa: BLE001 - the client gets every error as JSON
            await send_json(send, 500, {"error": _to_internal_error(error).as_dict()})

    async def _route(self, scope: Message, headers: Headers, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if (app := self._apps.get(path)) is not None:
            await app(scope, receive, send)
            return
        for prefix, app in self._mounts.items():
            if path.startswith(prefix):
                await app(scope, receive, send)
                return
        check_local(headers)
        if path == "/healthz":
            state = "leaving" if self._context.is_stopping() else "serving"
            health: Health = {"boot": self._context.boot, "version": __version__, "state": state}
            await send_json(send, 200, health)
            return
        self._check_user_token(headers)
        if path == "/api/openapi.json":
            await _send_openapi(scope["method"], send)
            return
        if (name := _ROUTES.get(path)) is None:
            raise _Rejected(404, NotFound(f"unknown path {path[:200]}", hint=did_you_mean(path[:60], _ROUTES)))
        if scope["method"] != "POST":
            raise _Rejected(405, UsageError(f"invalid method: {path} requires POST"), (b"allow", b"POST"))
        await self._call(name, await _read_json(receive, headers, self._body_timeout_s), receive, send)

    def _check_user_token(self, headers: Headers) -> None:
        token = headers.bearer
        if is_token(token, self._context.token):
            return
        if token is not None and self._context.is_run_token(token):
            raise _Rejected(403, Refused("invalid token: the API requires the token of the user, not of a run"))
        error = Refused("missing or invalid token", hint="Use the token in hall.json in the home directory.")
        raise _Rejected(401, error, (b"www-authenticate", b"Bearer"))

    async def _call(self, name: str, body: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if self._context.is_stopping() and name not in _WHILE_STOPPING:
            raise HallGone("the hall is stopping", hint="Repeat the command to start a new hall.")
        if not _WRITES_NOTHING.fullmatch(name) and (error := self._context.disk_error()) is not None:
            raise error
        arguments = self._decode_arguments(name, body)
        if name not in _WHILE_RECOVERING:
            await self._context.recovered.wait()
        MAY_WAIT_FOR_DISK.set(False)
        service, _, method = name.partition(".")
        result = getattr(getattr(self._context.hall, service), method)(**arguments)
        if get_verb(name).is_stream:
            await _stream(result, receive, send)
        else:
            await send_json(send, 200, {"result": encode(await result)})

    def _decode_arguments(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the decoded arguments of a verb. Raise UsageError if an argument is invalid."""
        verb = get_verb(name)
        for parameter in body:
            if parameter not in verb.parameters:
                hint = did_you_mean(parameter, verb.parameters)
                raise UsageError(f"unknown parameter {parameter[:60]!r} of {name}", hint=hint)
        if missing := sorted(verb.required - body.keys()):
            raise UsageError(f"{name} requires {', '.join(missing)}")
        arguments = {key: decode(verb.parameters[key], value, key) for key, value in body.items()}
        for parameter, value in arguments.items():
            if isinstance(value, Frame):
                _check_frame(value)
                self._context.add_secrets({**value.env, **value.keys})
            elif not all(is_text(text) for text in texts_in(value)):
                raise UsageError(f"{parameter}: invalid text (contains a NUL or a lone surrogate)")
        return arguments


def _check_frame(frame: Frame) -> None:
    if not (frame.cwd.is_absolute() and frame.root.is_absolute()):
        raise UsageError("invalid frame: cwd and root must be absolute paths")
    if frame.worktree is not None:
        raise UsageError("invalid frame: only the hall sets the worktree")


async def _send_openapi(method: str, send: Send) -> None:
    from guildhall.hall.client.openapi import openapi_document

    if method != "GET":
        raise _Rejected(405, UsageError("invalid method: the OpenAPI document requires GET"), (b"allow", b"GET"))
    await send_json(send, 200, await asyncio.to_thread(openapi_document))


async def _stream(items: AsyncGenerator[Any], receive: Receive, send: Send) -> None:
    """Send a line for each item until the client disconnects. Raise an error that occurs before the first item."""
    async with aclosing(items):
        first = [encode(item)] if (item := await anext(items, _END_OF_STREAM)) is not _END_OF_STREAM else []
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        tasks = [asyncio.create_task(_send_lines(first, items, send)), asyncio.create_task(_wait_disconnect(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


async def _send_lines(first: list[Any], items: AsyncGenerator[Any], send: Send) -> None:
    async def send_line(line: Any) -> None:
        async with asyncio.timeout(_SEND_TIMEOUT_S):
            body = json.dumps(line).encode() + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

    try:
        for item in first:
            await send_line({"item": item})
        async for item in items:
            await send_line({"item": encode(item)})
    except TimeoutError:  # the client has stopped reading
        return
    except GuildError as error:
        await send_line({"error": error.as_dict()})
    except Exception as error:  # noqa: BLE001 - the client gets every error as JSON
        await send_line({"error": _to_internal_error(error).as_dict()})
    else:
        await send_line({"end": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _to_internal_error(error: Exception) -> GuildError:
    """Return an unexpected error as a GuildError, and log it unless it is an error of the disk."""
    if isinstance(error, OSError) and error.errno in _DISK_ERRNOS:
        message = f"cannot use the disk: {error.strerror}{f' at {error.filename}' if error.filename else ''}"
        return StorageFailed(message, hint="Check the disk and its free space, then try again.")
    _log.error("internal error", exc_info=error)
    return internal_error(error, "Please report it with the traceback in hall.log in the home directory.")


async def _read_json(receive: Receive, headers: Headers, timeout_s: float) -> dict[str, Any]:
    data = await read_body(receive, headers, max_bytes=MAX_BODY_BYTES, timeout_s=timeout_s)
    try:
        payload = parse_json(data)
    except RpcError as error:
        raise HttpError(400, error.message) from None
    if not isinstance(payload, dict):
        raise HttpError(400, "invalid body: not a JSON object")
    return cast("dict[str, Any]", payload)


def _to_guild_error(error: HttpError) -> GuildError:
    if isinstance(error, _Rejected):
        return error.error
    return {403: Refused, 408: TimedOut, 421: Refused}.get(error.status, UsageError)(error.message)
