"""CallRouter: routes each tool call of a run to its place of execution, and provides the built-in tools.

A call executes in the hall, in the run itself, on an MCP server or in a tool host. A run has a tool host for each set
of capabilities and each package, which starts with the first call. The process of a handler therefore has only the
capabilities of the handler. Does not check permissions (see `tools.gate`).

Invariant: the hall never loads the code of a toolbox file or package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.builtin.files import file_tools
from guildhall.tools.builtin.search import search_tools
from guildhall.tools.builtin.shell import shell_tools
from guildhall.tools.definition import KeyedHandler, TypedHandler, invoke, validate_arguments
from guildhall.tools.host.process import ToolHost, decode_source
from guildhall.tools.host.protocol import HostSpec
from guildhall.tools.mcp.client import ServerHandler
from guildhall.tools.model import Execute, Tool, Toolbox, ToolCall, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.sandbox.view import View


class CallRouter:
    """Executes the calls of one run."""

    def __init__(self, tools: Iterable[Tool], environment: ToolEnvironment, execute_in_run: Execute) -> None:
        """`execute_in_run` executes the tools with `runs_in="run"`."""
        self._tools = tuple(tools)
        self._environment = environment
        self._execute_in_run = execute_in_run
        self._hosts: dict[tuple[frozenset[str], str | None], ToolHost] = {}
        self._closed = False

    async def __call__(self, tool: Tool, call: ToolCall) -> ToolResult:
        if self._closed:
            return ToolResult.error("The run has ended; the call was not made.")
        arguments = call.arguments or {}
        if tool.runs_in == "run":
            return await self._execute_in_run(tool, call)
        if isinstance(tool.handler, ServerHandler):
            return await tool.handler.call(arguments)
        if tool.runs_in == "hall":
            if isinstance(handler := tool.handler, KeyedHandler):
                tool = replace(tool, handler=TypedHandler(handler.bind_key(call.key), handler.form))
            return await invoke(tool, arguments)
        if not isinstance(tool.handler, FileHandler | PackageHandler):  # hosts do not validate for built-in tools
            given = validate_arguments(tool, arguments)
            if isinstance(given, ToolResult):
                return given
            arguments = given
        return await self._host(tool).call(tool.name, arguments)

    async def close(self) -> None:
        """End the hosts and refuse all further calls."""
        self._closed = True
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()

    def _host(self, tool: Tool) -> ToolHost:
        """Return the host of a tool. Each package has its own host, because module names of packages can be equal."""
        package = tool.handler if isinstance(tool.handler, PackageHandler) else None
        key = (tool.capabilities, package.toolbox if package else None)
        if key not in self._hosts:
            create = partial(self._package_host, package) if package else self._shared_host
            self._hosts[key] = create(tool.capabilities)
        return self._hosts[key]

    def _shared_host(self, capabilities: frozenset[str]) -> ToolHost:
        alike = [tool for tool in self._tools if tool.runs_in == "host" and tool.capabilities == capabilities]
        files = {tool.handler for tool in alike if isinstance(tool.handler, FileHandler)}
        spec = HostSpec(
            view=self._environment.view,
            builtin=tuple(tool.name for tool in alike if not isinstance(tool.handler, FileHandler | PackageHandler)),
            toolboxes=tuple(sorted((file.toolbox, file.path) for file in files)),
            env=self._environment.env,
            capabilities=capabilities,
            pins={file.toolbox: file.pin for file in files if file.pin is not None},
        )
        return ToolHost(spec)

    def _package_host(self, package: PackageHandler, capabilities: frozenset[str]) -> ToolHost:
        spec = HostSpec(
            view=self._environment.view,
            package=(package.toolbox, package.export),
            env=self._environment.env,
            capabilities=capabilities,
        )
        return ToolHost(spec, sources=package.sources)


@dataclass(frozen=True)
class FileHandler:
    """Handler in a toolbox file. Only a tool host loads the file."""

    toolbox: str
    path: Path
    pin: str | None = None  # digest of the trusted content, if the user trusted the file

    def __call__(self, **_: Any) -> ToolResult:
        raise ToolUnavailable(f"cannot call a tool of {self.path} outside of a tool host")


@dataclass(frozen=True, eq=False)
class PackageHandler:
    """Handler in a toolbox package. Only a tool host loads the package, from the texts that the hall has read."""

    toolbox: str
    export: str
    sources: Mapping[str, str]

    def __call__(self, **_: Any) -> ToolResult:
        raise ToolUnavailable(f"cannot call a tool of the package {self.toolbox} outside of a tool host")


async def describe_toolbox(
    name: str, path: Path, environment: ToolEnvironment, pin: str | None = None, content: bytes | None = None
) -> Toolbox:
    """Return the tools of a toolbox file, loaded in a host without capabilities.

    `content` is the content of the file if the caller has read it.
    """
    spec = HostSpec(view=environment.view, toolboxes=((name, path),), pins={name: pin} if pin else {})
    sources = None if content is None else {name: decode_source(name, path, content)}
    return await _list_tools(name, ToolHost(spec, sources=sources), FileHandler(name, path, pin))


async def describe_package(name: str, export: str, sources: Mapping[str, str], environment: ToolEnvironment) -> Toolbox:
    """Return the tools of a toolbox package, loaded in a host without capabilities."""
    host = ToolHost(HostSpec(view=environment.view, package=(name, export)), sources=sources)
    return await _list_tools(name, host, PackageHandler(name, export, sources))


async def _list_tools(name: str, host: ToolHost, handler: FileHandler | PackageHandler) -> Toolbox:
    try:
        found = await host.describe()
    finally:
        await host.close()
    return Toolbox(name, *(Tool.from_described(tool, handler) for tool in found))


# The capabilities of each built-in tool.
BUILT_IN: Mapping[str, frozenset[str]] = {
    "Read": frozenset({"fs.read"}),
    "Grep": frozenset({"fs.read"}),
    "Glob": frozenset({"fs.read"}),
    "Write": frozenset({"fs.write"}),
    "Edit": frozenset({"fs.write"}),
    "Bash": frozenset({"proc.exec", "fs.read", "fs.write"}),
    "WebFetch": frozenset({"net"}),
    "WebSearch": frozenset({"net"}),
}


@dataclass(frozen=True, kw_only=True)
class ToolEnvironment:
    """The environment of a run's tools: its view of the disk, its variables, and secrets of the hall."""

    view: View
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    web_search: Mapping[str, Any] | None = None
    environ: Mapping[str, str] = field(default_factory=dict[str, str])  # of the hall, with the keys of search engines
    forbidden: frozenset[str] = frozenset()  # capabilities that the worker's rules forbid


def built_in_tools(names: Iterable[str], environment: ToolEnvironment) -> list[Tool]:
    """Return the named built-in tools, in the given order."""
    wanted = list(names)
    view = environment.view
    tools: list[Tool] = []
    if {"Read", "Write", "Edit"} & set(wanted):
        tools += file_tools(view)
    if {"Grep", "Glob"} & set(wanted):
        tools += search_tools(view)
    if "Bash" in wanted:
        tools += shell_tools(_reduce_view(view, environment.forbidden), environment.env)
    if "WebFetch" in wanted:
        from guildhall.tools.builtin.web_fetch import web_tools

        tools += web_tools()
    if "WebSearch" in wanted:
        from guildhall.tools.builtin.web_search import search_tool

        tools.append(search_tool(environment.web_search, environment.environ))
    by_name = {tool.name: tool for tool in tools}
    return [by_name[name] for name in wanted]


def _reduce_view(view: View, forbidden: frozenset[str]) -> View:
    """Return the view of a shell without folders or write access that the rules forbid."""
    if "fs.read" in forbidden:
        return replace(view, folders=())
    if "fs.write" in forbidden:
        return replace(view, folders=tuple(replace(folder, is_writable=False) for folder in view.folders))
    return view
