"""A server of tools as a program of its own: started confined, spoken to in lines, ended with whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Any, cast

from guildhall.tools.jail import spawn
from guildhall.tools.mcp_model import MAX_MESSAGE, LinkBroken, refused_request, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.tools.jail import Confined
    from guildhall.tools.mcp_model import ServerSpec

_CHUNK = 65_536
_LOG_BYTES = 16_384
_END_SECONDS = 1.0  # that a server gets to end by itself when its input ends
_DRAIN_SECONDS = 10.0
_MOST_IDLE = 100_000  # lines in a row that are no answer


class StdioLink:
    """The connection to a program."""

    def __init__(self, confined: Confined) -> None:
        self._confined = confined
        self._waiting: dict[int | str, asyncio.Future[Mapping[str, Any]]] = {}
        self._log = bytearray()
        self._gone: str | None = None
        self._over = asyncio.Event()
        self._logging = asyncio.create_task(self._keep_log())
        self._reading = asyncio.create_task(self._read())

    @staticmethod
    async def start(spec: ServerSpec) -> StdioLink:
        assert spec.confinement is not None
        pipe = asyncio.subprocess.PIPE
        return StdioLink(await spawn(spec.command, spec.confinement, stdin=pipe, stdout=pipe, stderr=pipe))

    @property
    def gone(self) -> str | None:
        return self._gone

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        if self._gone is not None:
            raise LinkBroken(self._gone, sent=False)
        number = message["id"]
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self.tell(message)
                return await future
        except TimeoutError:
            raise LinkBroken(f"did not answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def tell(self, message: Mapping[str, Any]) -> None:
        stream = self._confined.process.stdin
        if stream is None or self._gone is not None:
            return
        stream.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # the reader says why
            await stream.drain()

    async def close(self) -> None:
        """Ends the program: it gets a moment to end by itself."""
        self._gone = self._gone or "was ended"
        await asyncio.shield(self._closed())

    async def _closed(self) -> None:
        stream = self._confined.process.stdin
        if stream is not None:
            stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._over.wait()
        await self._confined.kill()
        self._logging.cancel()
        await asyncio.wait([self._reading, self._logging], timeout=1)

    async def _read(self) -> None:
        """Hands out the answers; when there are no more, says to those who wait why."""
        why: str | None = None
        try:
            why = await self._listen()
        except (OSError, EOFError):
            pass
        finally:
            await self._ended(why)

    async def _listen(self) -> str | None:
        """Reads messages until the stream ends, or until something comes that ends it."""
        stream = self._confined.process.stdout
        buffer, idle = bytearray(), 0
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            buffer += chunk
            if b"\n" in chunk:
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    idle = 0 if await self._take(line) else idle + 1
            if len(buffer) > MAX_MESSAGE:
                return f"wrote a message of more than {MAX_MESSAGE:,} bytes and was ended"
            if idle > _MOST_IDLE:
                return "wrote without end what is no answer and was ended"
        return None

    async def _take(self, line: bytes | bytearray) -> bool:
        """Takes one line; whether it is an answer that somebody waits for. What is no message at all is passed over:
        some programs print where they should not."""
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict):
            return False
        told = cast("dict[str, Any]", message)
        if (reply := refused_request(told)) is not None:
            await self.tell(reply)
            return False
        id = told.get("id")
        future = self._waiting.get(id) if isinstance(id, int | str) else None
        if future is None or future.done():
            return False
        future.set_result(told)
        return True

    async def _ended(self, why: str | None) -> None:
        if why is None:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._confined.process.wait()
            except TimeoutError:
                why = "closed its output and was ended"
        if why is not None:
            await asyncio.gather(self._confined.kill(), self._drain())
        code = await self._confined.wait()
        await asyncio.wait([self._logging], timeout=0.2)
        self._gone = self._gone or f"{why or _ending(code)}{self._last_words()}"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkBroken(self._gone))
        self._over.set()

    async def _drain(self) -> None:
        """Reads what is left: a pipe with something in it is not closed, and its process not over."""
        stream = self._confined.process.stdout
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while stream is not None and await stream.read(_CHUNK):
                    pass

    async def _keep_log(self) -> None:
        stream = self._confined.process.stderr
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            self._log += chunk
            del self._log[:-_LOG_BYTES]

    def _last_words(self) -> str:
        lines = [line for line in self._log.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; the last that it printed: {shortened(lines[-1])}" if lines else ""


def _ending(code: int) -> str:
    if code <= 128:
        return f"ended by itself (exit code {code})"
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"was ended by signal {code - 128}"
