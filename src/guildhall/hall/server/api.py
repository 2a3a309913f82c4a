"""HTTP API of a hall: serves a route for each verb, with JSON bodies and streams as lines of JSON.

Host, Origin and token are checked before the body is read. `/api/` accepts the user's token only. A run's token opens
the applications that are mounted for runs, such as `/mcp/`, and there only the part of that run.
While the hall recovers, all verbs except read-only verbs wait. While it leaves, they are refused.
Does not implement verbs: `hall.services` does. Does not define routes: `hall.client.interface` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from guildhall import __version__
from guildhall.core.errors import GuildError, HallGone, NotFound, Refused, TimedOut, UsageError
from guildhall.core.frame import Frame
from guildhall.core.text import did_you_mean, is_text
from guildhall.hall.client.codec import decode, encode, texts_in, verb
from guildhall.hall.client.interface import VERBS, HallClient
from guildhall.rpc.http import BODY_TIMEOUT_S, Headers, HttpError, check_local, is_token, read_body, send_json
from guildhall.rpc.jsonrpc import RpcError, parse_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from guildhall.hall.client.model import Health
    from guildhall.rpc.http import App, Message, Receive, Send

LARGEST = 20_000_000  # bytes of a request
_READ_WITHIN = 600.0  # seconds that a stream waits for a reader who has stopped reading

_ROUTES = {f"/api/{name.replace('.', '/')}": name for name in VERBS}
# Verbs that are answered while the hall recovers runs, and while it is leaving.
_READ_ONLY = frozenset(
    {
        "hall.status",
        "runs.get",
        "runs.list",
        "runs.journal",
        "asks.list",
        "asks.get",
        "workflows.get",
        "workflows.list",
        "workflows.find_by_run",
        "rooms.messages",
    }
)
_WHILE_LEAVING = _READ_ONLY | {"runs.pause"}
_WHILE_RECOVERING = _READ_ONLY | {"hall.hello"}

_END = object()  # of a stream
_log = logging.getLogger("guildhall.hall")


class _Rejected(HttpError):
    """A request that is answered with an error of the hall and not carried out."""

    def __init__(self, status: int, error: GuildError, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status, error.message, *headers)
        self.error = error


@dataclass(frozen=True, kw_only=True)
class House:
    """The process behind the API."""

    boot: str
    token: str = field(repr=False)  # the person's
    is_run: Callable[[str], bool]  # whether a token is that of a live run
    hall: HallClient
    leaving: Callable[[], bool]
    recovered: asyncio.Event  # what an earlier hall has left behind goes on
    secrets: Callable[[Mapping[str, str]], None]  # is told what must not be in the log


class Api:
    """An ASGI application."""

    def __init__(self, house: House, *, body_within: float = BODY_TIMEOUT_S) -> None:
        self._house = house
        self._body_within = body_within
        self._mounts: dict[str, App] = {}
        self._places: dict[str, App] = {}

    def mount(self, prefix: str, app: App) -> None:
        """Serve an ASGI application below a path. It checks tokens itself."""
        self._mounts[prefix] = app

    def place(self, path: str, app: App) -> None:
        """Serve an ASGI application at a path. It checks tokens itself."""
        self._places[path] = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers.of(scope["headers"])
        try:
            await self._route(scope, headers, receive, send)
        except HttpError as error:
            await send_json(send, error.status, {"error": _guild_error(error).as_dict()}, error.headers)
        except GuildError as error:
            await send_json(send, error.http_status, {"error": error.as_dict()})
        except Exception as error:  # noqa: BLE001 - the edge: whoever asks is told in words, whatever it was
            await send_json(send, 500, {"error": _broken(error).as_dict()})

    # who asks, for what

    async def _route(self, scope: Message, headers: Headers, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if (placed := self._places.get(path)) is not None:
            await placed(scope, receive, send)
            return
        for prefix, app in self._mounts.items():
            if path.startswith(prefix):
                await app(scope, receive, send)
                return
        check_local(headers)
        if path == "/healthz":
            state = "leaving" if self._house.leaving() else "serving"
            health: Health = {"boot": self._house.boot, "version": __version__, "state": state}
            await send_json(send, 200, health)
            return
        self._demand_person(headers)
        if path == "/api/openapi.json":
            await self._document(scope["method"], send)
            return
        if (name := _ROUTES.get(path)) is None:
            raise _Rejected(404, NotFound(f"there is nothing at {path[:200]}", hint=did_you_mean(path[:60], _ROUTES)))
        if scope["method"] != "POST":
            raise _Rejected(405, UsageError("verbs are asked for with POST"), (b"allow", b"POST"))
        await self._verb(name, await _body(receive, headers, self._body_within), receive, send)

    def _demand_person(self, headers: Headers) -> None:
        token = headers.bearer
        if is_token(token, self._house.token):
            return
        if token is not None and self._house.is_run(token):
            raise _Rejected(403, Refused("this takes the token of the person, not that of a run"))
        error = Refused("a token is needed that this hall has given", hint="hall.json has it.")
        raise _Rejected(401, error, (b"www-authenticate", b"Bearer"))

    async def _document(self, method: str, send: Send) -> None:
        from guildhall.hall.client.openapi import openapi_document

        if method != "GET":
            raise _Rejected(405, UsageError("the OpenAPI document is read with GET"), (b"allow", b"GET"))
        await send_json(send, 200, await asyncio.to_thread(openapi_document))

    # the verbs

    async def _verb(self, name: str, body: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if self._house.leaving() and name not in _WHILE_LEAVING:
            raise HallGone("the hall is leaving", hint="The same command again starts a new one.")
        arguments = self._arguments(name, body)
        if name not in _WHILE_RECOVERING:
            await self._house.recovered.wait()
        service, _, method = name.partition(".")
        done = getattr(getattr(self._house.hall, service), method)(**arguments)
        if verb(name).streams:
            await self._stream(done, receive, send)
        else:
            await send_json(send, 200, {"result": encode(await done)})

    def _arguments(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        known = verb(name)
        for part in body:
            if part not in known.parameters:
                raise UsageError(f"{name} takes no {part[:60]!r}", hint=did_you_mean(part, known.parameters))
        if missing := sorted(known.required - body.keys()):
            raise UsageError(f"{name} needs {', '.join(missing)}")
        arguments = {part: decode(known.parameters[part], value, part) for part, value in body.items()}
        for part, value in arguments.items():
            if isinstance(value, Frame):
                _check_frame(value)
                self._house.secrets({**value.env, **value.keys})
            elif not all(is_text(text) for text in texts_in(value)):
                raise UsageError(f"{part}: invalid text (it contains a NUL or a lone surrogate)")
        return arguments

    async def _stream(self, items: AsyncGenerator[Any], receive: Receive, send: Send) -> None:
        """Send a line for each item. An error before the first item is an ordinary answer."""
        async with aclosing(items):
            first = [encode(item)] if (item := await anext(items, _END)) is not _END else []
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            telling = asyncio.create_task(_tell(first, items, send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (telling, leaving):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task


def _check_frame(frame: Frame) -> None:
    if not (frame.cwd.is_absolute() and frame.root.is_absolute()):
        raise UsageError("frame: cwd and root are absolute paths")
    if frame.worktree is not None:
        raise UsageError("frame: a worktree is the hall's to give")


async def _tell(first: list[Any], items: AsyncGenerator[Any], send: Send) -> None:
    async def line(told: Any) -> None:
        async with asyncio.timeout(_READ_WITHIN):
            body = json.dumps(told).encode() + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

    try:
        for item in first:
            await line({"item": item})
        async for item in items:
            await line({"item": encode(item)})
    except TimeoutError:  # nobody reads any more
        return
    except GuildError as error:
        await line({"error": error.as_dict()})
    except Exception as error:  # noqa: BLE001 - whoever follows is told in words, whatever it was
        await line({"error": _broken(error).as_dict()})
    else:
        await line({"end": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _broken(error: Exception) -> GuildError:
    _log.error("something broke", exc_info=error)
    return GuildError(
        f"something broke in the hall that should not have: {type(error).__name__}: {error}",
        hint="Nothing on record is lost. hall.log in the home shows where; please report that.",
    )


async def _left(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, headers: Headers, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object of a request."""
    data = await read_body(receive, headers, max_bytes=LARGEST, timeout_s=timeout_s)
    try:
        payload = parse_json(data)
    except RpcError as error:
        raise HttpError(400, error.message) from None
    if not isinstance(payload, dict):
        raise HttpError(400, "the body is not an object of JSON")
    return cast("dict[str, Any]", payload)


def _guild_error(error: HttpError) -> GuildError:
    if isinstance(error, _Rejected):
        return error.error
    return {403: Refused, 408: TimedOut, 421: Refused}.get(error.status, UsageError)(error.message)
