"""Tool host process: starts a confined Python for handlers and exchanges calls and results with it.

A process serves all calls until it exits or a call times out. The running calls then return an error, and the next call
starts a new process. Does not contain the program inside (see `tools.host.main`).

Invariant: a message from the process is validated before use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast, get_args

from guildhall.core.errors import GuildError, NotTrusted, ToolUnavailable
from guildhall.core.ids import is_name
from guildhall.policy.rules import CAPABILITIES
from guildhall.sandbox.jail import ConfinedProcess, Confinement, Kind, describe_exit, spawn
from guildhall.sandbox.mounts import import_paths
from guildhall.sandbox.view import View
from guildhall.tools.host.protocol import LENGTH, MAX_FRAME_BYTES, HostSpec, read_source, source_digest, to_frame
from guildhall.tools.model import FileBefore, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

CALL_TIMEOUT_S = 600.0
_START_TIMEOUT_S = 60.0
_OUTPUT_BYTES = 65_536
_OUTPUT_LINES = 12
_BOOT = (
    "import json, sys; fd, paths = sys.argv[1:]; sys.path[:0] = json.loads(paths); "
    "from guildhall.tools.host.main import main; main(int(fd))"
)

_DEFINITION_HINT = f"Define tools with `@tool` and with these capabilities only: {', '.join(CAPABILITIES)}."


class ToolHost:
    """The tool host of one run for one set of capabilities. Its process starts with the first call."""

    def __init__(
        self,
        spec: HostSpec,
        *,
        kind: Kind | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """`sources` has the source texts. If it is None, the toolbox files are read."""
        self._spec = spec
        self._kind: Kind | None = kind
        self._call_timeout_s = call_timeout_s
        self._starting = asyncio.Lock()
        self._child: _Child | None = None
        self._sources = sources
        self._closed = False

    async def describe(self) -> list[dict[str, Any]]:
        """Return the tools of the toolboxes. Raise ToolUnavailable with the file and line that cannot be loaded."""
        return (await self._ensure_running()).tools

    async def schema(self) -> Mapping[str, Any]:
        """Return the JSON Schema of the model that the spec names. Raise ToolUnavailable if that fails."""
        return (await self._ensure_running()).schema

    async def activation(self) -> Any:
        """Return the result of the activation function. Raise ToolUnavailable if it fails."""
        return (await self._ensure_running()).activation

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call. A failure of the host is an error result."""
        try:
            child = await self._ensure_running()
        except GuildError as error:
            return ToolResult.error(str(error))
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await child.call(tool, arguments)
        except TimeoutError:
            message = f"{tool} took longer than {self._call_timeout_s:g} s and was killed."
            await child.end(f"The tool host was killed, because {message}")
            return ToolResult.error(message)
        except asyncio.CancelledError:
            await child.end(f"The tool host was killed, because the call of {tool} was cancelled.")
            raise

    async def close(self) -> None:
        """Kill the process. Running calls fail, and further calls are rejected."""
        self._closed = True
        async with self._starting:
            if self._child is not None:
                await self._child.end("The tool host was closed.")

    async def _ensure_running(self) -> _Child:
        async with self._starting:
            if self._closed:
                raise ToolUnavailable("cannot call a tool: the run has ended")
            if self._child is None or self._child.has_ended:
                if self._sources is None:
                    self._sources = await asyncio.to_thread(_read_sources, self._spec)
                self._child = await _Child.start(self._spec, self._sources, self._kind)
            return self._child


class _Child:
    """A host process with its connection, its running calls and the last part of its output."""

    def __init__(self, confined: ConfinedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._confined = confined
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, asyncio.Future[ToolResult]] = {}
        self._output = bytearray()  # its last bytes
        self._call_ids = count(1)
        self._end_reason: str | None = None
        self._output_task = asyncio.create_task(self._read_output())
        self._results_task: asyncio.Task[None] | None = None
        self.has_ended = False
        self.tools: list[dict[str, Any]] = []
        self.schema: Mapping[str, Any] = {}
        self.activation: Any = None

    @staticmethod
    async def start(spec: HostSpec, sources: Mapping[str, str], kind: Kind | None) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            confined = await spawn(_command(theirs.fileno()), _confinement(spec), kind=kind, pass_fds=[theirs.fileno()])
            undo.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        child = _Child(confined, reader, writer)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await child._load(spec, sources)
        except TimeoutError:
            await child.end("The tool host did not start.")
            hint = "Move slow work from the import of the toolbox into its tools."
            raise ToolUnavailable(f"the tool host was not ready after {_START_TIMEOUT_S:g} s", hint=hint) from None
        except BaseException:
            await child.end("The tool host did not start.")
            raise
        return child

    async def _load(self, spec: HostSpec, sources: Mapping[str, str]) -> None:
        """Send the spec and receive the tools."""
        self._writer.write(to_frame({"spec": replace(spec, env={}).as_dict(), "sources": sources}))
        reply: dict[str, Any] | None = None
        with contextlib.suppress(OSError, EOFError, ValueError, RecursionError):
            await self._writer.drain()
            reply = await self._receive()
        if reply is None:
            await asyncio.wait([self._output_task], timeout=1)
            raise ToolUnavailable("the tool host exited before it was ready", hint=self._last_output() or None)
        _check_error(reply)
        if spec.schema_of is not None:
            self.schema = _check_schema(reply.get("schema"))
        elif spec.activate is not None:
            self.activation = reply.get("activation")
        else:
            self.tools = _check_tools(reply.get("tools"))
        self._results_task = asyncio.create_task(self._read_results())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        call_id = next(self._call_ids)
        future = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            if self.has_ended:
                return ToolResult.error(self._end_reason or "The tool host has exited.")
            self._writer.write(to_frame({"id": call_id, "tool": tool, "arguments": dict(arguments)}))
            with contextlib.suppress(ConnectionError):  # `_read_results` reports the reason
                await self._writer.drain()
            return await future
        finally:
            del self._calls[call_id]

    async def _read_results(self) -> None:
        """Deliver results to their calls. At the end, fail the remaining calls."""
        is_invalid = False
        try:
            while True:
                reply = await self._receive()
                future = self._calls.get(reply["id"])
                result = _parse_result(reply["result"])
                if future is not None and not future.done():
                    future.set_result(result)
        except (EOFError, OSError):
            pass
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_invalid = True  # a handler wrote to the connection
        self.has_ended = True
        if is_invalid:
            await self._confined.kill()
        code = await self._confined.wait()
        await asyncio.wait([self._output_task], timeout=1)
        ending = "sent an invalid message and was killed" if is_invalid else describe_exit(code)
        last = f"\nIts last output:\n{lines}" if (lines := self._last_output()) else ""
        failure = f"The tool host {ending} while the call was running; the effect of the call is unknown.{last}"
        for future in self._calls.values():
            if not future.done():
                future.set_result(ToolResult.error(self._end_reason or failure))
        self._writer.close()

    async def end(self, reason: str) -> None:
        """Kill the process. Running calls fail with the reason."""
        self.has_ended = True
        self._end_reason = self._end_reason or reason
        await asyncio.shield(self._kill())

    async def _kill(self) -> None:
        await self._confined.kill()
        if self._results_task is not None:
            await asyncio.wait([self._results_task])
        else:
            await asyncio.wait([self._output_task], timeout=1)
            self._writer.close()
        self._output_task.cancel()

    async def _receive(self) -> dict[str, Any]:
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        if size > MAX_FRAME_BYTES:
            raise ValueError("a message is too large")
        message = json.loads(await self._reader.readexactly(size))
        if not isinstance(message, dict):
            raise ValueError("a message is not an object")
        return cast("dict[str, Any]", message)

    async def _read_output(self) -> None:
        stream = self._confined.process.stdout
        while stream is not None and (chunk := await stream.read(_OUTPUT_BYTES)):
            self._output += chunk
            del self._output[:-_OUTPUT_BYTES]

    def _last_output(self) -> str:
        return "\n".join(self._output.decode("utf-8", "replace").splitlines()[-_OUTPUT_LINES:])


def _check_tools(tools: Any) -> list[dict[str, Any]]:
    """Return the tools of a host. They are validated, because the host has run untrusted code."""
    if isinstance(tools, list) and all(map(_is_description, cast("list[Any]", tools))):
        return cast("list[dict[str, Any]]", tools)
    raise ToolUnavailable("invalid tool descriptions from the tool host", hint=_DEFINITION_HINT)


def _check_schema(schema: Any) -> Mapping[str, Any]:
    """Return the JSON Schema of a host. The caller validates its content."""
    if not isinstance(schema, dict):
        raise ToolUnavailable("invalid JSON Schema from the tool host: not an object")
    return cast("dict[str, Any]", schema)


def _check_error(reply: Mapping[str, Any]) -> None:
    """Raise the error of a reply, if it has one."""
    match reply:
        case {"error": {"message": str(message), **more}}:
            texts = {name: value for name, value in more.items() if isinstance(value, str)}
            raise ToolUnavailable(message, hint=texts.get("hint"), where=texts.get("where"))
        case _:
            return


def _is_description(tool: Any) -> bool:
    match tool:
        case {
            "name": str(name),
            "toolbox": str(),
            "description": str(),
            "input_schema": dict(),
            "capabilities": list(),
            "repeatable": bool(),
        }:
            given = cast("list[Any]", tool["capabilities"])
            return is_name(name) and all(isinstance(name, str) and name in CAPABILITIES for name in given)
        case _:
            return False


def _parse_result(data: Any) -> ToolResult:
    """Return the result of a call. Raise ValueError if it is invalid."""
    match data:
        case {"content": list(), "is_error": bool()} if data.get("file_before") in (None, *get_args(FileBefore)):
            for block in cast("list[Any]", data["content"]):
                match block:
                    case {"type": "text", "text": str()} | {"type": "blob", "data": str(), "media_type": str()}:
                        continue
                    case _:
                        raise ValueError("a block is neither text nor bytes")
            return ToolResult.from_dict(cast("dict[str, Any]", data))
        case _:
            raise ValueError("invalid result")


def _command(fd: int) -> list[str]:
    """Return the command. The interpreter runs without its site module, because it starts faster."""
    paths = json.dumps(import_paths())
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", "-u", "-c", _BOOT, str(fd), paths]


def _confinement(spec: HostSpec) -> Confinement:
    """Return the confinement of a host: only the folders that its capabilities permit."""
    view = spec.view
    if "fs.write" not in spec.capabilities:
        folders = tuple(replace(folder, is_writable=False) for folder in view.folders)
        view = replace(view, folders=folders if "fs.read" in spec.capabilities else ())
    return Confinement(
        # Built-in tools check protected paths themselves. Other code must be confined.
        view=replace(view, protected=view.protected if spec.toolboxes or spec.package else ()),
        network="net" in spec.capabilities,
        env=spec.env,
        memory_bytes=spec.memory_bytes,
    )


def _read_sources(spec: HostSpec) -> dict[str, str]:
    """Return the text of each toolbox file. Raise NotTrusted if it differs from its pin.

    The hall reads a file once, so that the host executes the compared bytes, even after a restart.
    """
    sources: dict[str, str] = {}
    for name, path in spec.toolboxes:
        data = read_source(path)
        if spec.pins.get(name, pinned := source_digest(data)) != pinned:
            hint = "The user must review the change and trust the file again."
            raise NotTrusted(f"the toolbox {name!r} has changed since it was trusted", where=str(path), hint=hint)
        sources[name] = decode_source(name, path, data)
    return sources


def decode_source(name: str, path: Path, content: bytes) -> str:
    """Decode the content of a toolbox file."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        problem = f"invalid toolbox {name!r}: not UTF-8 text"
        raise ToolUnavailable(problem, where=str(path), hint="Convert it to UTF-8.") from None


async def schema_of(reference: str, sources: Mapping[str, str], cwd: Path) -> Mapping[str, Any]:
    """Return the schema of `package.module:Model`, created in a host without capabilities.

    `sources` maps the path of each file of the package, relative to the project, to its text.
    """
    host = ToolHost(HostSpec(view=View(cwd=cwd), schema_of=reference), sources=sources)
    try:
        return await host.schema()
    finally:
        await host.close()
