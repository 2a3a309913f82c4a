"""Client of a hall in another process: calls each verb of the interface over HTTP.

Closing the stream of `runs.run`, `runs.resume` or `workflows.run` early pauses the run. A lost connection does not.
Does not find or start the process: `discovery` does. Does not write HTTP: `transport` does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, HallGone, Interrupted
from guildhall.hall.client.codec import decode, decode_error, encode, get_verb
from guildhall.hall.client.interface import SERVICES, VERBS, HallClient

if TYPE_CHECKING:
    import asyncio

    from guildhall.core.events import Event
    from guildhall.hall.client.discovery import Address
    from guildhall.hall.client.transport import AsyncTransport, BlockingTransport

_PAUSED_WHEN_CLOSED = frozenset({"runs.run", "runs.resume", "workflows.run"})
_START_TIMEOUT_S = 10.0  # for the id of a run that an interrupted client has to pause


class RemoteHall(HallClient):
    """Calls each verb over HTTP as its service declares it."""

    def __init__(self, address: Address, transport: BlockingTransport | None = None) -> None:
        """`transport` replaces the asyncio transport for calls. Streams always use asyncio."""
        self.address = address
        self._blocking = transport

    def __getattr__(self, name: str) -> Any:
        if name not in SERVICES:
            raise AttributeError(name)
        service = _RemoteService(name, self._build_call)
        setattr(self, name, service)
        return service

    async def wait_background_work(self) -> Sequence[Event]:
        return []  # background work continues in the other process

    async def close(self) -> None:
        if self._blocking is not None:
            await self._blocking.close()
        if "_transport" in vars(self):
            await self._transport.close()

    @cached_property
    def _transport(self) -> AsyncTransport:
        from guildhall.hall.client.transport import AsyncTransport

        return AsyncTransport(self.address)

    def _build_call(self, name: str) -> Callable[..., Any]:
        """Return a function that calls a verb over HTTP, with the signature of the verb."""
        verb = get_verb(name)
        request = self._stream_run if name in _PAUSED_WHEN_CLOSED else self._stream if verb.is_stream else self._call

        @wraps(verb.method)
        def call(*arguments: Any, **named: Any) -> Any:
            bound = verb.bind(arguments, named)
            return request(name, {parameter: encode(value) for parameter, value in bound.items()})

        return call

    async def _call(self, name: str, body: dict[str, Any]) -> Any:
        status, response = await (self._blocking or self._transport).call(_path(name), body)
        if status != 200:
            raise decode_error(response.get("error"))
        return decode(get_verb(name).result, response["result"])

    async def _stream(self, name: str, body: dict[str, Any]) -> AsyncGenerator[Any]:
        kind = get_verb(name).result
        async with self._transport.stream(_path(name), body) as (status, lines), aclosing(lines):
            async for line in lines:
                if status != 200 or "error" in line:
                    raise decode_error(line.get("error"))
                yield decode(kind, line["item"])

    async def _stream_run(self, name: str, body: dict[str, Any]) -> AsyncGenerator[Event]:
        """Stream the events of a run. Closing the stream early pauses the run. A lost connection does not."""
        import asyncio

        async with aclosing(self._stream(name, body)) as events:
            first = asyncio.ensure_future(anext(events))
            try:
                event: Event = await asyncio.shield(first)
            except asyncio.CancelledError:
                if (started := await self._pause_starting_run(first)) is not None:
                    yield started  # the caller needs the id of the paused run
                raise
            run_id = event.run
            try:
                yield event
                async for event in events:
                    yield event
            except (asyncio.CancelledError, GeneratorExit):
                if event.type != "run_ended" or event.run != run_id:
                    await self._pause(run_id)
                raise

    async def _pause_starting_run(self, first: asyncio.Future[Event]) -> Event | None:
        """Pause a run that is starting and return its first event, or None if the hall rejected the run."""
        import asyncio

        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                event = await first
        except (TimeoutError, HallGone):
            hint = "A run may have started. List the runs: guild ls"
            raise Interrupted("interrupted before the hall responded", hint=hint) from None
        except GuildError:
            return None
        await self._pause(event.run)
        return event

    async def _pause(self, run_id: str) -> None:
        with suppress(HallGone):
            await self.runs.pause(run_id)


class _RemoteService:
    """One service of a remote hall. Its verbs are attributes with the signature and docstring of the interface."""

    def __init__(self, name: str, build_call: Callable[[str], Callable[..., Any]]) -> None:
        self._name = name
        self._build_call = build_call

    def __getattr__(self, name: str) -> Any:
        if f"{self._name}.{name}" not in VERBS:
            raise AttributeError(f"the service {self._name!r} has no verb {name!r}", name=name, obj=self)
        call = self._build_call(f"{self._name}.{name}")
        setattr(self, name, call)
        return call

    def __dir__(self) -> list[str]:
        return sorted(verb.partition(".")[2] for verb in VERBS if verb.startswith(f"{self._name}."))


def _path(name: str) -> str:
    return f"/api/{name.replace('.', '/')}"
