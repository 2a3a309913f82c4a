"""Tools and folders: determine the view of the disk, the tools in the model's order, and the bounds of a run.

Does not execute tools (`tools.call_router`) and does not judge calls (`tools.gate`).

Invariant: a run cannot write the files that define permissions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.models.credentials import merge_environ
from guildhall.policy.rules import Action, Mode, Rule, judge
from guildhall.runs.model import Bounds, RunRequest
from guildhall.sandbox.files import resolve_view
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import sandbox_tools
from guildhall.tools.call_router import BUILT_IN, ToolEnvironment, built_in_tools
from guildhall.tools.definition import tool
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.workers.definition import McpServer
    from guildhall.workers.model import Worker


MEMBER_CAPABILITIES = frozenset({"net"})  # a member is a separate program that may use the network


def make_tool_environment(
    worker: Worker, frame: Frame, view: View, settings: Settings, environ: Mapping[str, str]
) -> ToolEnvironment:
    """Return the environment of a run's tools. `environ`: the variables of the hall."""
    return ToolEnvironment(
        view=view,
        env=dict(frame.env),
        web_search=settings.web_search.model_dump() if settings.web_search else None,
        environ=merge_environ(environ, frame.keys),
        forbidden=frozenset(rule.name for rule in worker.rules if not rule.allowed),
    )


def make_view(worker: Worker, folders: Iterable[Folder], frame: Frame, home: Home, locked: Iterable[Path] = ()) -> View:
    """Return the worker's sandboxes, its working folder, and the project for reading if it has tools that read files.

    The run cannot write the files that define permissions, nor the files of `locked` workers.
    """
    folders = tuple(folders)
    capabilities = frozenset[str]().union(*(BUILT_IN[name] for name in worker.definition.tools))
    if not capabilities.isdisjoint({"fs.read", "proc.exec"}):
        folders = (Folder(path=frame.project_folder), *folders)
    workdir = worker.workdir if frame.worktree is None else frame.worktree
    if workdir is not None and not capabilities.isdisjoint({"fs.read", "fs.write", "proc.exec"}):
        others = tuple(folder for folder in folders if folder != Folder(path=workdir))
        folders = (Folder(path=workdir, is_writable="fs.write" in capabilities), *others)
    if (worktree := frame.worktree) is not None:
        # A checkout is in the home, which is hidden otherwise, and so is the user's folder. Only the files in the
        # user's folder define permissions, so a run may change their copies in its checkout.
        hidden, protected = (home.path, frame.root), (worktree / ".git", *locked)
        return resolve_view(View(cwd=worktree, folders=folders, hidden=hidden, shown=(worktree,), protected=protected))
    protected = (*worker.protected_paths(frame), *locked)
    return resolve_view(View(cwd=workdir or frame.cwd, folders=folders, hidden=(home.path,), protected=protected))


def protected_paths(view: View) -> tuple[Path, ...]:
    """Return the visible paths in writable folders that the run cannot write, without paths below another one."""
    writable = {folder.path for folder in view.folders if folder.is_writable}
    paths = [path for path in view.protected if writable & {*path.parents} and path not in writable | {*view.hidden}]
    visible = [path for path in paths if not {*view.hidden} & {*path.parents}]
    return tuple(path for path in visible if not {*visible} & {*path.parents})


def collect_tools(
    worker: Worker,
    environment: ToolEnvironment,
    *,
    system: Sequence[Tool],
    toolboxes: Mapping[str, Sequence[Tool]],
    servers: Mapping[str, Sequence[Tool]] | None = None,
    excluded: Iterable[str] = (),
) -> tuple[Tool, ...]:
    """Return built-in tools (except `excluded`), sandbox tools, toolboxes, servers and system tools.

    The tools that the worker file declares come first, because models prefer the first tools of a list.
    """
    tools = [*built_in_tools([name for name in worker.definition.tools if name not in excluded], environment)]
    if worker.definition.sandboxes:
        tools += sandbox_tools(environment.view)
    for name in worker.definition.toolboxes:
        tools += toolboxes.get(name, ())
    for served in (servers or {}).values():
        tools += served
    return (*tools, *system)


def visible_tools(worker: Worker, tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Return the tools that the model receives. A tool whose calls a rule always forbids is left out."""
    permitted = permitted_capabilities(tools := tuple(tools), {rule.name for rule in worker.rules if not rule.allowed})
    return tuple(tool for tool in tools if tool.name in permitted)


def check_native_rules(tools: Iterable[Tool], rules: Sequence[Rule], mode: Mode, place: str) -> None:
    """Raise ToolUnavailable if a rule restricts a tool that the provider executes, because the gate has no effect."""
    for item in tools:
        verdict = judge(Action(tool=item.name, capabilities=item.capabilities), rules, mode)
        if item.native and verdict.decision != "allow":
            raise ToolUnavailable(
                f"tools: {item.name} of the model provider cannot be forbidden or wait for approval: {verdict.reason}",
                where=place,
                hint="Set a search engine in config.yaml: `web_search: {searxng: URL}`. Or remove the tool.",
            )


def server_capabilities(server: McpServer, forbidden: Collection[str], *, writes: bool) -> frozenset[str]:
    """Return the capabilities of the tools of a server. The rules limit a program, but not a remote server."""
    if server.url is not None:
        return frozenset({"net"})
    can = {"net", "fs.read", *(["fs.write"] if writes else ())}
    if "fs.read" in forbidden:  # a program can read the folders that it can write
        can -= {"fs.write"}
    return frozenset({"proc.exec", *(can - set(forbidden))})


def placeholder_tools(worker: Worker, environment: ToolEnvironment) -> tuple[Tool, ...]:
    """Return placeholders for the tools of the worker's servers, which are unknown until the servers start."""
    writes = any(folder.is_writable for folder in environment.view.folders)
    return tuple(
        _placeholder(
            tool_name(name, tool) if tool else f"{tool_name(name, '')}*",
            f"A tool of the server {name}. Its description is known after the server has started.",
            server_capabilities(server, environment.forbidden, writes=writes),
        )
        for name, server in worker.definition.mcp_servers.items()
        for tool in server.tools or ("",)
    )


def member_placeholder(name: str) -> Tool:
    description = f"A tool of the member {name}. Its description is known after the member has started."
    return _placeholder(f"{tool_name(name, '')}*", description, MEMBER_CAPABILITIES)


def _placeholder(name: str, description: str, capabilities: frozenset[str]) -> Tool:
    def not_started() -> None:
        raise AssertionError("a placeholder cannot be called")

    return Tool(
        name=name,
        description=description,
        input_schema={"type": "object"},
        handler=not_started,
        capabilities=capabilities,
        runs_in="hall",
    )


def permitted_capabilities(tools: Iterable[Tool], forbidden: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the capabilities of each tool that no `forbidden` name or capability excludes."""
    allowed = (tool for tool in tools if tool.name not in forbidden and tool.capabilities.isdisjoint(forbidden))
    return {tool.name: tool.capabilities for tool in allowed}


def make_bounds(
    worker: Worker, settings: Settings, request: RunRequest | None = None, *, priced: bool = True, called: bool = False
) -> Bounds:
    """Return the limits of a run. The budget of the settings needs a price. A `called` run shares its caller's."""
    limits = worker.definition.limits
    requested = {} if request is None else {name: value for name, value in vars(request).items() if value is not None}
    return Bounds(
        max_turns=requested.get("max_turns", limits.max_turns),
        max_tokens=requested.get("max_tokens", limits.max_tokens),
        max_budget_usd=requested.get("max_budget_usd", limits.max_budget_usd),
        max_repeats=limits.max_repeats,
        timeout=limits.timeout,
        budget=requested.get("budget", settings.budget if priced and not called else None),
    )


@tool(repeatable=True, runs_in="hall")
def record_decision(question: str, decision: str, reasoning: str) -> str:
    """Record a decision that you made without the user, with its reason, for later review.

    Args:
        question: What had to be decided.
        decision: What you decided.
        reasoning: Why.
    """
    return "Recorded."  # the journal has the call with its arguments


BASE_TOOLS = (record_decision,)
