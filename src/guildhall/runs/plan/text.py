"""Plan text: renders a plan as a single line before a run, or as a table of labelled lines.

Does not compute a plan: `runs.plan.planner` does.

Invariant: a quoted text cannot pass for a line of the plan. It stays on its line, and invisible characters are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runs.assembly.attachments import size_in_words
from guildhall.runs.limits import LimitName, in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from guildhall.runs.plan.model import Called, Plan, PlannedTool
    from guildhall.sandbox.view import Folder
    from guildhall.workers.definition import McpServer

LABEL = 14  # columns
_LONGEST = 100  # characters of a description
_MODES = {
    "approve_all": "approves everything that would be asked about",
    "strict": "refuses everything that would be asked about",
}
_CHOSEN = {
    "override": "by --override-model",
    "worker": "by the worker",
    "caller": "by the caller",
    "frame": "by --model or GUILDHALL_MODEL",
    "settings": "by the settings",
}
_NO_LIMIT = {False: "no limit in dollars", True: "its caller's dollars"}


def line(plan: Plan) -> str:
    calls = ["may call " + ", ".join(plain(called.name) for called in plan.calls)] if plan.calls else []
    files = ", ".join(f"{plain(file.name)} ({size_in_words(len(file.data))})" for file in plan.attached)
    attached = [f"attached: {files}"] if files else []
    return "; ".join([_executed(plan), *_doing(plan), *attached, *calls, *_mode(plan), *_limits(plan)])


def text(plan: Plan) -> str:
    """What could happen, whole: a label, then what there is to say about it."""
    return rows(_rows(plan))


def rows(labelled: Iterable[tuple[str, list[str]]]) -> str:
    lines: list[str] = []
    for label, said in labelled:
        first, *more = said
        lines.append(f"{label:<{LABEL}}{first}")
        lines += [f"{'':<{LABEL}}{one}" for one in more]
    return "\n".join(lines)


def written(plan: Plan) -> list[Folder]:
    return [folder for folder in plan.folders if folder.writable] if "fs.write" in plan.capabilities else []


def _rows(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    yield "worker", [f"{plan.worker} ({plain(plan.place)}, {plan.status})"]
    if plan.runtime.program is not None:
        yield "runtime", [plan.runtime.line, *plan.runtime.gaps]
    yield "model", [_model(plan)]
    yield "reads", [_reads(plan)]
    yield "writes", [_writes(plan, whole=True)]
    yield "programs", [_programs(plan)]
    yield "network", [_network(plan)]
    yield "variables", [", ".join(plan.env) or "none"]
    yield "tools", _tools(plan) or ["none"]
    if plan.servers:
        yield "servers", [_server(name, server) for name, server in plan.servers.items()]
    if plan.member_lines:
        yield "members", [plain(line) for line in plan.member_lines]
    if plan.calls:
        yield "may call", [_called(called) for called in plan.calls]
    yield "approval", _approval(plan)
    yield "limits", ["; ".join([*_limits(plan), *_then(plan)])]
    if plan.schema_ref:
        yield "output", [f"must fit {plain(plan.schema_ref)}"]
    yield "risk", _risk(plan)
    if plan.untrusted:
        files = [
            f"{plain(s.display_path)} ({s.size:,} bytes, sha256 {s.digest[:16]}): {s.state_text}"
            for s in plan.untrusted
        ]
        yield "not trusted", files
    if plan.problems:
        yield "cannot run", [plain(problem.text) for problem in plan.problems]


def _model(plan: Plan) -> str:
    if plan.model is None:
        return "none is named"
    price = {True: "price known", False: "no price known", None: "whether it has a price is not known"}[plan.priced]
    return f"{plain(plan.model)}, chosen {_CHOSEN[plan.chosen_by]}; {price}" if plan.chosen_by else plain(plan.model)


def _executed(plan: Plan) -> str:
    """The model, and before it the program of others that executes the run, where it is one."""
    program = f"{plan.runtime.title}, " if plan.runtime.program is not None else ""
    return f"{program}model {plain(plan.model or 'not named')}"


def _doing(plan: Plan) -> list[str]:
    capabilities, parts = plan.capabilities, list[str]()
    if "fs.read" in capabilities:
        parts.append(f"reads {_reads(plan)}")
    if "fs.write" in capabilities:
        parts.append(f"writes {_writes(plan)}")
    if "proc.exec" in capabilities:
        parts.append("runs programs")
    if "net" in capabilities:
        parts.append("uses the network")
    return parts


def _reads(plan: Plan) -> str:
    if "fs.read" not in plan.capabilities:
        return "nothing"
    return ", ".join(dict.fromkeys(_short(folder, plan) for folder in plan.folders)) or "nothing"


def _writes(plan: Plan, *, whole: bool = False) -> str:
    """The folders that it writes to; `whole`: and what is kept in them."""
    if "fs.write" not in plan.capabilities:
        return "nothing"
    said = (f"{_short(one, plan)}{_but(one, plan) if whole else ''}" for one in written(plan))
    return ", ".join(dict.fromkeys(said)) or "nothing (no sandbox has mode: rw)"


def _but(folder: Folder, plan: Plan) -> str:
    names = (path.relative_to(folder.path) for path in plan.kept if folder.path in path.parents)
    shown = [plain(f"{name}" if name.suffix else f"{name}/") for name in names]
    return f" (not {', '.join(shown)})" if shown else ""


def _programs(plan: Plan) -> str:
    """Programs that the model chooses have no network; servers that the file names have, unless a rule forbids it."""
    given = [tool for tool in plan.tools if tool.decision != "refuse"]
    runs = [tool for tool in given if "proc.exec" in tool.capabilities]
    online = any("net" in tool.capabilities for tool in runs)
    said = ["runs programs" if online else "runs programs, without the network"] if runs else []
    for tool in given:
        if "pull_request" in tool.capabilities:
            said.append(f"git and gh, which the hall runs for {tool.name}")
    return "; ".join(said) or "none"


def _network(plan: Plan) -> str:
    outward = [tool.name for tool in plan.tools if "net" in tool.capabilities and tool.decision != "refuse"]
    outward += [f"{plan.runtime.title} itself"] if plan.runtime.network else []
    return f"reached by {', '.join(outward)}" if outward else "none"


def _mode(plan: Plan) -> list[str]:
    return [_MODES[plan.mode]] if plan.mode != "ask" else []


def _limits(plan: Plan) -> list[str]:
    bounds = plan.bounds
    whose = "the team's dollars" if plan.seated else _NO_LIMIT[plan.called]
    unlimited = "no price known" if plan.priced is False else whose
    parts = [unlimited if plan.worst_usd is None else f"at most {dollars(plan.worst_usd)} USD"]
    names: tuple[LimitName, ...] = ("max_turns", "max_tokens", "timeout")
    return parts + [in_words(name, value) for name in names if (value := getattr(bounds, name)) is not None]


def dollars(amount: float) -> str:
    return f"{amount:.2f}" if amount >= 0.01 else f"{amount:g}"


def _then(plan: Plan) -> list[str]:
    """What happens when the dollars are spent."""
    if plan.worst_usd is None:
        return []
    return ["then it ends" if plan.worst_usd == plan.bounds.max_budget_usd else "then you are asked for more"]


def _tools(plan: Plan) -> list[str]:
    width = max((len(tool.name) for tool in plan.tools), default=0)
    shown = [f"{tool.name:<{width}}  {_cut(tool.description)}" for tool in plan.tools]
    for name in plan.unknown:
        code = next((code for code in plan.code if code.kind == "toolbox" and code.name == name), None)
        why = "until it is trusted" if code is not None and not code.trusted else "here"
        shown.append(f"and those of the toolbox {name}, which are not known {why}")
    return shown


def _approval(plan: Plan) -> list[str]:
    asked = [_why(tool) for tool in plan.tools if tool.decision == "ask"]
    refused = [_why(tool) for tool in plan.tools if tool.decision == "refuse"]
    said = [f"you are asked before each call of {', '.join(asked)}"] if asked else []
    said += [f"refused: {', '.join(refused)}"] if refused else []
    return [*said, *_mode(plan)] or ["none is needed"]


def _why(tool: PlannedTool) -> str:
    return tool.name if tool.rule in (None, tool.name) else f"{tool.name} ({tool.rule})"


def _called(called: Called) -> str:
    through = f" (through {called.through})" if called.through else ""
    if called.plan is None or called.problem:
        return f"{plain(called.name)}{through}: cannot be called: {plain(called.problem or '')}"
    own = called.plan
    asked = [tool.name for tool in own.tools if tool.decision == "ask"]
    parts = [_executed(own), *_doing(own)]
    parts += [f"you are asked before {', '.join(asked)}"] if asked else []
    parts += [f"the tools of {name} are not known" for name in own.unknown]
    parts += ["cannot run as it is"] if own.problems else []
    return f"{plain(called.name)}{through}: {'; '.join([*parts, *_limits(own)])}"


def _server(name: str, server: McpServer) -> str:
    what = f"start {' '.join(server.command)}" if server.command else f"reach {server.url}"
    names = f" with {', '.join(server.env)}" if server.env else ""
    return plain(f"{name}: would {what}{names}")


def _risk(plan: Plan) -> list[str]:
    unknown = [*plan.unknown, *(name for called in plan.calls if called.plan for name in called.plan.unknown)]
    said = [f"the three together: {plan.risk.text}"]
    if plan.calls and plan.risk_with_calls is not None:
        said.append(f"with all that it may call: {plan.risk_with_calls.text}")
    if unknown:
        said.append(f"without the tools that are not known: those of {', '.join(dict.fromkeys(unknown))}")
    return said


def _short(folder: Folder, plan: Plan) -> str:
    try:
        return plain(f"./{folder.path.relative_to(plan.cwd)}".removesuffix("/."))
    except ValueError:
        return plain(str(folder.path))


def _cut(description: str) -> str:
    """The first line of a description."""
    shown = " ".join(plain(description.strip().partition("\n")[0]).split())
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def plain(value: str) -> str:
    """A text of others on one line, with every character spelled out that cannot be seen."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in value)
