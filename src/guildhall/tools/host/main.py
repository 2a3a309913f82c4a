"""Tool host program: runs confined, loads the requested tools, and answers calls over a socket.

`tools.host.process` starts it. The program imports only the modules that its tools need, because a run waits for its
start. A handler that ends the process does not harm the hall. Does not check permissions (see `tools.gate`).
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.text_checks import did_you_mean
from guildhall.tools.definition import invoke_here, perform
from guildhall.tools.host.protocol import LENGTH, MAX_FRAME_BYTES, HostSpec, to_frame
from guildhall.tools.model import Handler, Tool, Toolbox, ToolResult

if TYPE_CHECKING:
    from guildhall.sandbox.view import View


def main(fd: int) -> NoReturn:
    """Serve on an inherited socket until the hall closes the connection."""
    faulthandler.enable()
    with socket.socket(fileno=fd) as connection:
        Host(connection).serve()
    os._exit(0)  # do not wait for running handlers


class Host:
    """Serves the tools of the program over the connection to the hall."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._tools: dict[str, Callable[[Mapping[str, Any]], ToolResult]] = {}

    def serve(self) -> None:
        """Load the requested tools, then execute calls, each in its own thread."""
        start = self._receive()
        if start is None:
            return
        try:
            spec = HostSpec.from_dict(start["spec"])
            if (reply := _reply_without_tools(spec, start["sources"])) is not None:
                self._send(reply)
                return
            handlers, loaded = built_in(spec.builtin, spec.view), load_tools(spec, start["sources"])
            names = [*handlers, *(tool.name for _, tool in loaded)]
            if duplicates := sorted({name for name in names if names.count(name) > 1}):
                raise ToolUnavailable(f"two tools are named {duplicates[0]!r}", hint="Rename one of them.")
        except GuildError as error:
            self._send({"error": error.as_dict()})
            return
        self._tools = {name: partial(perform, handler) for name, handler in handlers.items()}
        self._tools |= {tool.name: partial(invoke_here, tool) for _, tool in loaded}
        self._send({"tools": [{"toolbox": toolbox, **tool.as_described()} for toolbox, tool in loaded]})
        while (request := self._receive()) is not None:
            try:
                threading.Thread(target=self._execute, args=(request,), daemon=True).start()
            except RuntimeError as error:  # out of threads or memory
                self._reply(request["id"], ToolResult.error(f"Cannot start the call: {error}."))

    def _execute(self, request: Mapping[str, Any]) -> None:
        name = request["tool"]
        tool = self._tools.get(name)
        if tool is None:
            result = ToolResult.error(f"Unknown tool {name!r}. {did_you_mean(name, self._tools) or ''}".strip())
        else:
            result = tool(request["arguments"])
        self._reply(request["id"], result)

    def _reply(self, call_id: int, result: ToolResult) -> None:
        try:
            self._send({"id": call_id, "result": result.as_dict()})
        except ValueError as error:
            self._send({"id": call_id, "result": ToolResult.error(str(error)).as_dict()})

    def _send(self, message: Mapping[str, Any]) -> None:
        data = to_frame(message)
        if len(data) > MAX_FRAME_BYTES:
            raise ValueError(f"The result is too large: {len(data):,} bytes, at most {MAX_FRAME_BYTES:,} are allowed.")
        with self._sending:
            self._connection.sendall(data)

    def _receive(self) -> dict[str, Any] | None:
        length = self._receive_bytes(LENGTH.size)
        body = self._receive_bytes(LENGTH.unpack(length)[0]) if length else None
        return json.loads(body) if body else None

    def _receive_bytes(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._connection.recv(min(size - len(data), 1_048_576))
            except ConnectionResetError:  # the hall died with unread data
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)


def load_tools(spec: HostSpec, sources: Mapping[str, str]) -> list[tuple[str, Tool]]:
    """Return the tools of the toolboxes, each with the name of its toolbox. `sources` has the source texts."""
    found: list[tuple[str, Tool]] = []
    if spec.package is not None:
        name, export = spec.package
        found += [(name, tool) for tool in load_package(name, export, sources).tools]
    for name, path in spec.toolboxes:
        found += [(name, tool) for tool in load_toolbox(name, str(path), sources[name]).tools]
    return found


def _reply_without_tools(spec: HostSpec, sources: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the JSON Schema or the activation that the spec requests, or None if the host loads tools."""
    if spec.schema_of is not None:
        from guildhall.tools.host.package_importer import json_schema

        return {"schema": json_schema(spec.schema_of, sources)}
    if spec.activate is not None:
        from guildhall.tools.host.package_importer import activation

        return {"activation": activation(spec.activate, sources, spec.context)}
    return None


def built_in(names: Iterable[str], view: View) -> dict[str, Handler]:
    """Return the handlers of built-in tools. The hall has validated their arguments."""
    wanted = set(names)
    found: dict[str, Handler] = {}
    if wanted & {"Read", "Write", "Edit"}:
        from guildhall.tools.builtin.files import file_handlers

        found |= file_handlers(view)
    if wanted & {"Grep", "Glob"}:
        from guildhall.tools.builtin.search import search_handlers

        found |= search_handlers(view)
    if any(name.startswith("sandbox_") for name in wanted):
        from guildhall.tools.builtin.files import sandbox_handlers

        found |= sandbox_handlers(view)
    if "WebFetch" in wanted:
        from guildhall.tools.builtin.web_fetch import web_handlers

        found |= web_handlers()
    for name in sorted(wanted - found.keys()):
        raise ToolUnavailable(f"unknown built-in tool {name!r}", hint=did_you_mean(name, found))
    return {name: found[name] for name in sorted(wanted)}


def load_toolbox(name: str, path: str, source: str) -> Toolbox:
    """Return the toolbox of a Python file: its variable `toolbox`, or its functions decorated with `tool`."""
    module = types.ModuleType(f"guildhall_toolbox_{name.replace('-', '_').replace('.', '_')}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        return _toolbox_in(module, name, path)
    except BaseException as error:  # noqa: BLE001 - foreign code can raise anything
        raise _load_error(path, error) from None


def load_package(name: str, export: str, sources: Mapping[str, str]) -> Toolbox:
    """Return the toolbox that a package exports: a module with tools, or a `Toolbox` in a module."""
    from guildhall.tools.host.package_importer import describe_type, load, load_error

    try:
        found = load(export, sources)
        if isinstance(found, types.ModuleType):
            return _toolbox_in(found, name, None)
        if isinstance(found, Toolbox):
            return found
        raise ToolUnavailable(
            f"{export} is not a toolbox: {describe_type(found)}", hint="Create it with Toolbox(name, ...)."
        )
    except BaseException as error:  # noqa: BLE001 - foreign code can raise anything
        raise load_error(export, error, sources) from None


def _toolbox_in(module: types.ModuleType, name: str, path: str | None) -> Toolbox:
    given: object = vars(module).get("toolbox")
    if isinstance(given, Toolbox):
        return given
    tools = {id(value): value for value in vars(module).values() if isinstance(value, Tool)}
    if not tools:
        hint = "Decorate functions with `@tool`, or set `toolbox = Toolbox(name, ...)`."
        raise ToolUnavailable("the file defines no tools", where=path, hint=hint)
    return Toolbox(name, *tools.values())


def _load_error(path: str, error: BaseException) -> ToolUnavailable:
    """Return an error that names the last line of the file in the traceback."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == path else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path and not isinstance(error, SyntaxError):
            line = frame.lineno
    where = f"{path}:{line}" if line else path
    if isinstance(error, GuildError):
        return ToolUnavailable(error.message, where=where, hint=error.hint)
    reason = error.msg if isinstance(error, SyntaxError) else error
    hint = (
        "While a toolbox is loaded, it can import the standard library and packages that are installed with Guildhall. "
        "It cannot read your files."
    )
    return ToolUnavailable(
        f"cannot load the toolbox: {type(error).__name__}: {reason}",
        where=where,
        hint=hint if isinstance(error, ImportError | OSError) else None,
    )
