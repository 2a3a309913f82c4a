"""Plan text: renders a plan as a single line before a run, or as a table of labelled lines.

Does not compute a plan: `runs.plan.planner` does.

Invariant: a quoted text cannot pass for a line of the plan. It stays on its line, and invisible characters are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from guildhall.runs.assembly.attachments import format_size
from guildhall.runs.limits import LimitName, format_limit, format_number

if TYPE_CHECKING:
    from guildhall.core.errors import GuildError
    from guildhall.runs.plan.model import Plan, PlannedCallee, PlannedTool
    from guildhall.sandbox.view import Folder
    from guildhall.workers.definition import McpServer

LABEL_COLUMNS = 14
_MAX_DESCRIPTION_CHARS = 100
_MODES = {"approve_all": "approvals: all granted (--approve-all)", "strict": "approvals: all denied (--strict)"}
_CHOSEN_BY = {
    "override": "set by --override-model",
    "worker": "set in the worker file",
    "caller": "set by the caller",
    "frame": "set by --model or GUILDHALL_MODEL",
    "settings": "set in the settings",
}
_PRICES = {True: "priced", False: "no known price", None: "price unknown"}


def format_line(plan: Plan) -> str:
    calls = ["may call " + ", ".join(escape(callee.name) for callee in plan.calls)] if plan.calls else []
    files = ", ".join(f"{escape(file.name)} ({format_size(len(file.data))})" for file in plan.attached)
    attached = [f"attached: {files}"] if files else []
    return "; ".join([_runtime_and_model(plan), *_effects(plan), *attached, *calls, *_mode(plan), *_limits(plan)])


def format_rows(rows: Iterable[tuple[str, list[str]]]) -> str:
    """Return a table with the label of each row before its first line."""
    lines: list[str] = []
    for label, (first, *others) in rows:
        lines.append(f"{label:<{LABEL_COLUMNS}}{first}")
        lines += [f"{'':<{LABEL_COLUMNS}}{line}" for line in others]
    return "\n".join(lines)


def writable_folders(plan: Plan) -> list[Folder]:
    return [folder for folder in plan.folders if folder.is_writable] if "fs.write" in plan.capabilities else []


def plan_rows(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    yield "worker", [f"{plan.worker} ({escape(plan.place)}, {plan.status})"]
    if plan.runtime.program is not None:
        yield "runtime", [plan.runtime.summary, *plan.runtime.gaps]
    yield "model", [_model(plan), *([escape(str(plan.settings))] if plan.runtime.uses_model_door else [])]
    if plan.project_instructions:
        yield "prompt", [f"project instructions: {escape(plan.project_instructions)}"]
    yield "reads", [_reads(plan)]
    yield "writes", [_writes(plan, _format_writable)]
    yield "programs", [_programs(plan)]
    yield "network", [_network(plan)]
    yield "variables", [", ".join(plan.env) or "none"]
    yield "tools", _tools(plan) or ["none"]
    if plan.servers:
        yield "servers", [_server(name, server) for name, server in plan.servers.items()]
    if plan.member_lines:
        yield "members", [escape(line) for line in plan.member_lines]
    if plan.calls:
        yield "may call", [_callee(callee) for callee in plan.calls]
    yield "approvals", _approvals(plan)
    yield "limits", ["; ".join([*_limits(plan), *_at_budget(plan)])]
    if plan.schema_ref:
        yield "output", [f"must match {escape(plan.schema_ref)}"]
    yield "risk", _risk(plan)
    if files := plan.untrusted_files:
        yield (
            "not trusted",
            [f"{escape(f.display_path)} ({f.size:,} bytes, sha256 {f.digest[:16]}): {f.state_text}" for f in files],
        )
    if plan.problems:
        yield "cannot run", [*format_errors(problem.error for problem in plan.problems)]


def _model(plan: Plan) -> str:
    if plan.model is None:
        return "none set"
    if plan.chosen_by is None:
        return escape(plan.model)
    return f"{escape(plan.model)} ({_CHOSEN_BY[plan.chosen_by]}; {_PRICES[plan.priced]})"


def _runtime_and_model(plan: Plan) -> str:
    program = f"{plan.runtime.title}, " if plan.runtime.program is not None else ""
    return f"{program}model {escape(plan.model or 'not set')}"


def _effects(plan: Plan) -> list[str]:
    capabilities, parts = plan.capabilities, list[str]()
    if "fs.read" in capabilities:
        parts.append(f"reads {_reads(plan)}")
    if "fs.write" in capabilities:
        parts.append(f"writes {_writes(plan, _format_folder)}")
    if "proc.exec" in capabilities:
        parts.append("runs programs")
    if "net" in capabilities:
        parts.append("uses the network")
    return parts


def _reads(plan: Plan) -> str:
    if "fs.read" not in plan.capabilities:
        return "nothing"
    return ", ".join(dict.fromkeys(_format_folder(folder, plan) for folder in plan.folders)) or "nothing"


def _writes(plan: Plan, format_folder: Callable[[Folder, Plan], str]) -> str:
    if "fs.write" not in plan.capabilities:
        return "nothing"
    folders = (format_folder(folder, plan) for folder in writable_folders(plan))
    return ", ".join(dict.fromkeys(folders)) or "nothing (no sandbox has mode: rw)"


def _format_folder(folder: Folder, plan: Plan) -> str:
    try:
        return escape(f"./{folder.path.relative_to(plan.cwd)}".removesuffix("/."))
    except ValueError:
        return escape(str(folder.path))


def _format_writable(folder: Folder, plan: Plan) -> str:
    """Return a folder and the paths in it that the run cannot write."""
    paths = (path.relative_to(folder.path) for path in plan.protected if folder.path in path.parents)
    names = ", ".join(escape(f"{path}" if path.suffix else f"{path}/") for path in paths)
    return _format_folder(folder, plan) + (f" (not {names})" if names else "")


def _programs(plan: Plan) -> str:
    """Programs that the model chooses have no network. Servers in the worker file have it, unless a rule forbids it."""
    tools = [tool for tool in plan.tools if tool.decision != "refuse"]
    runners = [tool for tool in tools if "proc.exec" in tool.capabilities]
    has_network = any("net" in tool.capabilities for tool in runners)
    parts = ["any" if has_network else "any, without network access"] if runners else []
    parts += [f"git and gh, run by the hall for {t.name}" for t in tools if "pull_request" in t.capabilities]
    return "; ".join(parts) or "none"


def _network(plan: Plan) -> str:
    names = [tool.name for tool in plan.tools if "net" in tool.capabilities and tool.decision != "refuse"]
    names += [f"{plan.runtime.title} itself"] if plan.runtime.needs_network else []
    return f"used by {', '.join(names)}" if names else "none"


def _mode(plan: Plan) -> list[str]:
    return [_MODES[plan.mode]] if plan.mode != "ask" else []


def _limits(plan: Plan) -> list[str]:
    if plan.priced is False:
        called = "" if plan.max_cost_usd is None else f"; called workers at most {format_usd(plan.max_cost_usd)} USD"
        budget = f"no known price{called}"
    elif plan.max_cost_usd is not None:
        budget = f"at most {format_usd(plan.max_cost_usd)} USD"
    elif plan.is_in_workflow:
        budget = "shares the workflow's budget"
    else:
        budget = "shares the parent's budget" if plan.called else "no budget"
    names: tuple[LimitName, ...] = ("max_turns", "max_tokens", "timeout")
    return [budget, *(format_limit(name, value) for name in names if (value := getattr(plan.bounds, name)) is not None)]


def format_usd(amount: float) -> str:
    return f"{amount:.2f}" if round(amount, 2) == amount else format_number(amount)


def _at_budget(plan: Plan) -> list[str]:
    if plan.max_cost_usd is None:
        return []
    return ["then fails" if plan.max_cost_usd == plan.bounds.max_budget_usd else "then asks you"]


def _tools(plan: Plan) -> list[str]:
    permitted = [tool for tool in plan.tools if tool.decision != "refuse"]
    visible = [tool for tool in permitted if tool.name not in plan.team_tools]
    width = max((len(tool.name) for tool in visible), default=0)
    lines = [f"{tool.name:<{width}}  {_first_line(tool.description)}" for tool in visible]
    if of_team := [tool.name for tool in permitted if tool.name in plan.team_tools]:
        shown = len({*of_team} - plan.deferred_tools)
        lines.append(f"room tools ({len(of_team)}, {shown} shown at first)")
    for name in plan.unknown:
        code = next((code for code in plan.code if code.kind == "toolbox" and code.name == name), None)
        until = " until you trust it" if code is not None and not code.trusted else ""
        lines.append(f"and the tools of the toolbox {name}, which are unknown{until}")
    return lines


def _approvals(plan: Plan) -> list[str]:
    asked = [_with_rule(tool) for tool in plan.tools if tool.decision == "ask"]
    forbidden = [_with_rule(tool) for tool in plan.tools if tool.decision == "refuse"]
    lines = [f"before each call of {', '.join(asked)}"] if asked else []
    lines += [f"forbidden: {', '.join(forbidden)}"] if forbidden else []
    return [*lines, *_mode(plan)] or ["none"]


def _with_rule(tool: PlannedTool) -> str:
    return tool.name if tool.rule in (None, tool.name) else f"{tool.name} ({tool.rule})"


def _callee(callee: PlannedCallee) -> str:
    name = escape(callee.name) + (f" (through {callee.through})" if callee.through else "")
    if callee.plan is None or callee.problem:
        return f"{name}: cannot be called: {escape(callee.problem or '')}"
    plan = callee.plan
    asked = [tool.name for tool in plan.tools if tool.decision == "ask"]
    parts = [_runtime_and_model(plan), *_effects(plan)]
    parts += [f"asks before {', '.join(asked)}"] if asked else []
    parts += [f"the tools of {toolbox} are unknown" for toolbox in plan.unknown]
    parts += ["cannot run as it is"] if plan.problems else []
    return f"{name}: {'; '.join([*parts, *_limits(plan)])}"


def _server(name: str, server: McpServer) -> str:
    action = f"starts {' '.join(server.command)}" if server.command else f"connects to {server.url}"
    variables = f" with {', '.join(server.env)}" if server.env else ""
    return escape(f"{name}: {action}{variables}")


def _risk(plan: Plan) -> list[str]:
    unknown = [*plan.unknown, *(name for callee in plan.calls if callee.plan for name in callee.plan.unknown)]
    lines = [f"exfiltration: {plan.risk.text}"]
    if plan.calls and plan.risk_with_calls is not None:
        lines.append(f"with the workers that it may call: {plan.risk_with_calls.text}")
    if unknown:
        lines.append(f"not counted: the unknown tools of {', '.join(dict.fromkeys(unknown))}")
    return lines


def _first_line(description: str) -> str:
    line = " ".join(escape(description.strip().partition("\n")[0]).split())
    return line if len(line) <= _MAX_DESCRIPTION_CHARS else f"{line[: _MAX_DESCRIPTION_CHARS - 1]}…"


def format_errors(errors: Iterable[GuildError]) -> Iterator[str]:
    """Yield the message of each error, and its hint on the next line."""
    for error in errors:
        yield escape(error.message)
        if error.hint:
            yield f"  {escape(error.hint)}"


def escape(value: str) -> str:
    """Return a text on one line, with invisible characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in value)
