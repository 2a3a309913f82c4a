"""Tool sources of a run: connect the MCP servers that a worker names, and describe the tools of its toolboxes.

Servers are checked, confined, and connected for as long as the run lasts. Descriptions of toolboxes are cached.
Does not speak MCP (`tools.mcp.client`) and does not check the trust of toolboxes (`runs.assembly.preflight`).

Invariant: no program of a project starts without trust. A run with its own worktree starts no program from the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.runs.assembly.tools_and_folders import server_capabilities
from guildhall.sandbox.jail import Confinement
from guildhall.sandbox.view import Folder, View
from guildhall.tools.call_router import ToolEnvironment, describe_package, describe_toolbox
from guildhall.tools.mcp.client import Servers
from guildhall.tools.mcp.model import ServerSpec, tool_name
from guildhall.workers.code_trust import Code, readable_folders, server_program, server_variables
from guildhall.workers.package import PROJECT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.runs.assembly.preflight import Preflight
    from guildhall.tools.model import Tool, Toolbox
    from guildhall.workers.definition import McpServer
    from guildhall.workers.model import Worker

    CacheKey = tuple[Code, tuple[Path, ...], tuple[Path, ...]]

_MAX_CACHED = 100


async def connect_servers(
    worker: Worker, frame: Frame, environment: ToolEnvironment, preflight: Preflight, more: Iterable[ServerSpec] = ()
) -> Servers:
    """Connect the servers that a worker names and `more`. Raise NotTrusted before a program of a project starts."""
    declared = worker.definition.mcp_servers
    for name in declared:
        preflight.check_server(worker, name, frame)
    specs = [*more, *(_spec(worker, name, server, frame, environment) for name, server in declared.items())]
    return await Servers.connect(specs) if specs else Servers()


def unchanged_server_tools(
    worker: Worker, before: Worker, tools: Mapping[str, Iterable[Tool]]
) -> dict[str, tuple[Tool, ...]]:
    """Return the known tools of the servers that the worker still declares as `before`, the worker at that time."""
    kept: dict[str, tuple[Tool, ...]] = {}
    for name, server in worker.definition.mcp_servers.items():
        then = before.definition.mcp_servers.get(name)
        if then is None or server.model_copy(update={"tools": then.tools}) != then:
            continue
        expected = None if server.tools is None else {tool_name(name, tool) for tool in server.tools}
        kept[name] = tuple(tool for tool in tools.get(name, ()) if expected is None or tool.name in expected)
    for name in worker.definition.toolboxes:  # toolboxes that are members
        if name in tools and name in before.definition.toolboxes and name not in kept:
            kept[name] = tuple(tools[name])
    return kept


def _spec(worker: Worker, name: str, server: McpServer, frame: Frame, environment: ToolEnvironment) -> ServerSpec:
    variables = server_variables(worker, name, frame)
    writes = any(folder.is_writable for folder in environment.view.folders)
    spec = ServerSpec(
        name=name,
        tools=server.tools,
        capabilities=server_capabilities(server, environment.forbidden, writes=writes),
        worker_file=worker.place,
    )
    if server.url is not None:
        return replace(spec, url=server.url, token=next(iter(variables.values()), None))
    program = server_program(worker, name, frame)
    if frame.worktree is not None:
        _check_outside_project(worker, name, program, frame)
    confinement = Confinement(
        view=_view(worker, frame, environment.view, spec.capabilities),
        network="net" in spec.capabilities,
        env={**frame.harmless_env(), **variables},
        read_only=readable_folders(worker, name, program, frame),
    )
    return replace(spec, command=(str(program), *(server.command or ())[1:]), confinement=confinement)


def _check_outside_project(worker: Worker, name: str, program: Path, frame: Frame) -> None:
    """Raise if the program is in the project: its copy in the checkout is not trusted, and the original is hidden."""
    root = frame.root.resolve()
    words = (str(program), *(worker.definition.mcp_servers[name].command or ())[1:])
    for path in ((worker.project_root(frame) / word).resolve() for word in words):
        if path.is_relative_to(root) and path.is_file():
            raise ToolUnavailable(
                f"mcp_servers.{name}: {path} is in the project and cannot run in a worktree",
                where=worker.place,
                hint="Install the server outside of the project, and use its absolute path.",
            )


def _view(worker: Worker, frame: Frame, view: View, capabilities: frozenset[str]) -> View:
    """Return the view of a server: the worker's project for reading, and the folders of the run."""
    if "fs.read" not in capabilities:
        return replace(view, folders=())
    writes = "fs.write" in capabilities
    folders = tuple(replace(folder, is_writable=folder.is_writable and writes) for folder in view.folders)
    here = worker.project_root(frame)
    return replace(view, cwd=here, folders=(Folder(path=here), *folders))


class ToolboxCache:
    """Describes toolboxes, and caches the descriptions.

    A description depends on the bytes of the code, on the folders that the code can see, and on the installed packages,
    which do not change while a hall runs.
    """

    def __init__(self) -> None:
        self._cached: dict[CacheKey, Toolbox] = {}

    async def describe(self, code: Code, environment: ToolEnvironment) -> Toolbox:
        key = (code, environment.view.hidden, environment.view.shown)
        if key not in self._cached:
            toolbox = await describe_code(code, environment)
            while len(self._cached) >= _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = toolbox
        return self._cached[key]


async def describe_code(code: Code, environment: ToolEnvironment) -> Toolbox:
    """Return the tools of this code. Their handlers are bound to the bytes that were read."""
    if code.entry is None:
        file = code.files[0]
        pinned = None if code.is_own else file.digest
        return await describe_toolbox(code.name, file.path, environment, pinned, file.content)
    try:
        return await describe_package(code.name, code.entry, code.sources(), environment)
    except ToolUnavailable as error:
        if error.where is not None:
            raise ToolUnavailable(error.message, where=str(code.root / error.where), hint=error.hint) from error
        place = str((code.folder or code.root) / PROJECT_FILE)
        raise ToolUnavailable(f"export: {error.message}", where=place, hint=error.hint) from error
