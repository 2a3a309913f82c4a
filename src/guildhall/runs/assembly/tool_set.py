"""Tool set: determines the view of the disk, the tools in the model's order, and the bounds of a run.

Does not execute tools (`tools.executor`) and does not judge calls (`tools.gate`).

Invariant: a run cannot write the files that define permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.models.credentials import joined
from guildhall.policy.rules import Action, Mode, Rule, judge
from guildhall.runs.model import Bounds, RunRequest
from guildhall.sandbox.files import resolve_view
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import sandbox_tools
from guildhall.tools.definition import tool
from guildhall.tools.executor import BUILT_IN, Surroundings, built_in_tools
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, Toolbox

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.workers.definition import McpServer
    from guildhall.workers.model import Worker


# What the tools of a member can do to the world: it is a program of its own that may speak to others.
MEMBER_CAPABILITIES = frozenset({"net"})


def make_surroundings(
    worker: Worker, frame: Frame, view: View, settings: Settings, environ: Mapping[str, str]
) -> Surroundings:
    """Return what the tools of a run work with, apart from their arguments. `environ`: the variables of the hall."""
    return Surroundings(
        view=view,
        env=dict(frame.env),
        web_search=settings.web_search.model_dump() if settings.web_search else None,
        environ=joined(environ, frame.keys),
        forbidden=frozenset(rule.name for rule in worker.rules if not rule.allowed),
    )


def make_view(worker: Worker, folders: Iterable[Folder], frame: Frame, home: Home, locked: Iterable[Path] = ()) -> View:
    """Return the worker's sandboxes, its working folder, and the project for reading if it has tools that read files.

    The run cannot write the files that define permissions, nor the files of `locked` workers.
    """
    folders = tuple(folders)
    can = frozenset[str]().union(*(BUILT_IN[name] for name in worker.definition.tools))
    if not can.isdisjoint({"fs.read", "proc.exec"}):
        folders = (Folder(path=frame.sees), *folders)
    workdir = worker.workdir if frame.worktree is None else frame.worktree
    if workdir is not None and not can.isdisjoint({"fs.read", "fs.write", "proc.exec"}):
        others = tuple(folder for folder in folders if folder != Folder(path=workdir))
        folders = (Folder(path=workdir, is_writable="fs.write" in can), *others)
    if (own := frame.worktree) is not None:
        # A checkout is in the home, which is hidden otherwise, and so is the user's folder. Only the files in the
        # user's folder define permissions, so a run may change their copies in its checkout.
        kept = (own / ".git", *locked)
        return resolve_view(
            View(cwd=own, folders=folders, hidden=(home.path, frame.root), shown=(own,), protected=kept)
        )
    kept = (*worker.protected_paths(frame), *locked)
    return resolve_view(View(cwd=workdir or frame.cwd, folders=folders, hidden=(home.path,), protected=kept))


def protected_paths(view: View) -> tuple[Path, ...]:
    """What a run could write if it were not kept, without what lies below another such path."""
    writable = [folder.path for folder in view.folders if folder.is_writable]
    out = (*view.hidden, *writable)
    found = [path for path in view.protected if any(folder in path.parents for folder in writable) and path not in out]
    seen = [path for path in found if not any(one in path.parents for one in view.hidden)]
    return tuple(path for path in seen if not any(other in path.parents for other in seen))


def collect_tools(
    worker: Worker,
    surroundings: Surroundings,
    *,
    system: Sequence[Tool],
    toolboxes: Mapping[str, Sequence[Tool]],
    servers: Mapping[str, Sequence[Tool]] | None = None,
    without: Iterable[str] = (),
) -> tuple[Tool, ...]:
    """Exactly: system tools, sandbox tools, declared toolboxes, servers, declared built-ins (`without` some)."""
    tools = [*system]
    if worker.definition.sandboxes:
        tools += sandbox_tools(surroundings.view)
    for name in worker.definition.toolboxes:
        tools += toolboxes.get(name, ())
    for served in (servers or {}).values():
        tools += served
    declared = [name for name in worker.definition.tools if name not in without]
    return (*tools, *built_in_tools(declared, surroundings))


def check_native_rules(tools: Iterable[Tool], rules: Sequence[Rule], mode: Mode, place: str) -> None:
    """Refuses what the provider would do by itself although a rule demands that somebody is asked, or forbids it."""
    for one in tools:
        if not one.native:
            continue
        verdict = judge(Action(tool=one.name, capabilities=one.capabilities), rules, mode)
        if verdict.decision != "allow":
            raise ToolUnavailable(
                f"tools: {one.name} of the model's provider cannot be asked about: {verdict.reason}",
                where=place,
                hint="Name a search engine in the settings (`web_search: {searxng: URL}`), or take the tool out.",
            )


def server_capabilities(server: McpServer, forbidden: Collection[str], *, writes: bool) -> frozenset[str]:
    """Return the capabilities of the tools of a server. The rules limit a program, but not a remote server."""
    if server.url is not None:
        return frozenset({"net"})
    can = {"net", "fs.read", *(["fs.write"] if writes else ())}
    if "fs.read" in forbidden:  # a program sees what it may write to
        can -= {"fs.write"}
    return frozenset({"proc.exec", *(can - set(forbidden))})


def placeholder_tools(worker: Worker, surroundings: Surroundings) -> tuple[Tool, ...]:
    """What stands for the tools of the worker's servers while these are not started: the names are theirs to give."""
    writes = any(folder.is_writable for folder in surroundings.view.folders)
    return tuple(
        _expected(
            tool_name(name, tool) if tool else f"{tool_name(name, '')}*",
            f"Of the server {name}. What it does is known when it has started.",
            server_capabilities(server, surroundings.forbidden, writes=writes),
        )
        for name, server in worker.definition.mcp_servers.items()
        for tool in server.tools or ("",)
    )


def member_placeholder(name: str) -> Tool:
    """Return a placeholder for the tools of a member that is not started."""
    about = f"Of the member {name}. What it does is known when it has started."
    return _expected(f"{tool_name(name, '')}*", about, MEMBER_CAPABILITIES)


def _expected(name: str, description: str, capabilities: frozenset[str]) -> Tool:
    def not_started() -> None:
        raise AssertionError("this tool is only expected")

    return Tool(
        name=name,
        description=description,
        input_schema={"type": "object"},
        handler=not_started,
        capabilities=capabilities,
        runs_in="hall",
    )


def permitted_capabilities(tools: Iterable[Tool], forbidden: Collection[str]) -> dict[str, frozenset[str]]:
    """The tools that the `forbidden` names and capabilities leave, each with what it can do to the world."""
    left = (tool for tool in tools if tool.name not in forbidden and tool.capabilities.isdisjoint(forbidden))
    return {tool.name: tool.capabilities for tool in left}


def make_bounds(
    worker: Worker, settings: Settings, request: RunRequest | None = None, *, priced: bool = True, called: bool = False
) -> Bounds:
    """Return the limits of a run. The budget of the settings needs a price, and is not given to a `called` run."""
    limits = worker.definition.limits
    asked = {} if request is None else {name: value for name, value in vars(request).items() if value is not None}
    return Bounds(
        max_turns=asked.get("max_turns", limits.max_turns),
        max_tokens=asked.get("max_tokens", limits.max_tokens),
        max_budget_usd=asked.get("max_budget_usd", limits.max_budget_usd),
        timeout=limits.timeout,
        budget=asked.get("budget", settings.budget if priced and not called else None),
    )


def base_toolbox() -> Toolbox:
    return Toolbox("base", record_decision)


@tool(repeatable=True, runs_in="hall")
def record_decision(question: str, decision: str, reasoning: str) -> str:
    """Record a judgement call that you made on your own, so that a person can review it later.

    Args:
        question: What had to be decided.
        decision: What you decided.
        reasoning: Why.
    """
    return "Recorded."  # the journal holds the call with its arguments: there is nothing else to keep
