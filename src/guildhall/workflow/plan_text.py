"""The plan of a workflow in words: one line before a start, or the whole of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runs.plan_text import LABEL, dollars, plain, rows
from guildhall.workflow.wakeup import in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guildhall.runtimes.catalog import Row
    from guildhall.workflow.plan import WorkflowPlan

_INDENT = "  "
_DOING = {"fs.read": "reads files", "fs.write": "writes files", "proc.exec": "runs programs", "net": "uses the network"}


def line(plan: WorkflowPlan) -> str:
    """What could happen, in one line, before it does."""
    reach = frozenset[str]().union(*(agent.plan.reach for agent in plan.agents))
    models = {titled(agent.name, agent.plan.runtime): agent.plan.model or "not named" for agent in plan.agents}
    return opening(models, commands=len(plan.setup), reach=reach, budget=plan.worst_usd)


def titled(agent: str, runtime: Row) -> str:
    """An agent, and the program of others that executes it, where it is one."""
    return agent if runtime.program is None else f"{agent} ({runtime.title})"


def opening(models: Mapping[str, str], *, commands: int, reach: frozenset[str], budget: float | None) -> str:
    """The line that is said at the start: the agents with their models, and what they can do to the world."""
    parts = [f"agents {', '.join(models)}", f"models {', '.join(dict.fromkeys(map(plain, models.values())))}"]
    parts += [f"runs {'a command' if commands == 1 else f'{commands} commands'} of its own first"] if commands else []
    parts += [said for capability, said in _DOING.items() if capability in reach]
    return "; ".join([*parts, _worst(budget)])


def text(plan: WorkflowPlan) -> str:
    """What could happen, whole: the workflow, then each of its agents."""
    said = [rows(_rows(plan))]
    for agent in plan.agents:
        wakes = [f"{_INDENT}{'wakes':<{LABEL}}{agent.wakeup}"] if agent.wakeup else []
        lines = [f"{_INDENT}{one}" for one in agent.plan.text().splitlines()]
        said.append("\n".join([f"agent {agent.name}", *wakes, *lines]))
    return "\n\n".join(said)


def _rows(plan: WorkflowPlan) -> Iterator[tuple[str, list[str]]]:
    yield "workflow", [f"{plan.workflow}:{plan.tag} ({plain(plan.place)})"]
    if plan.params:
        given = {name: "(to be given)" if value is None else plain(value) for name, value in plan.params.items()}
        yield "params", [f"{name} = {value}" for name, value in given.items()]
    yield "setup", [plain(one) for one in _setup(plan)] or ["none"]
    if plan.setup:
        yield "runs in", [plain(plan.folder)]
        yield "variables", [", ".join(plan.env) or "none"]
    yield "room", [_room(plan)]
    if plan.documents is not None:
        yield "documents", [plain(plan.documents)]
    if plan.database is not None:
        yield "database", [plain(plan.database)]
    yield "kickoff", [plain(one) for one in (plan.kickoff or "none").strip().splitlines()]
    yield "limits", [_worst(plan.worst_usd), *(f"{name}: {value}" for name, value in plan.limits.items())]
    if plan.untrusted:
        yield (
            "not trusted",
            [f"{plain(s.shown)} ({s.size:,} bytes, sha256 {s.digest[:16]}): {s.said}" for s in plan.untrusted],
        )
    if plan.doubts:
        yield "warning", [plain(doubt) for doubt in plan.doubts]
    if plan.problems:
        yield "cannot start", [plain(problem) for problem in plan.problems]


def _setup(plan: WorkflowPlan) -> Iterator[str]:
    """Every line of every command, and what becomes of it."""
    for number, step in enumerate(plan.setup, 1):
        kept = f", kept as {step.keeps}" if step.keeps else ""
        yield f"{number}. at most {in_words(step.timeout)}{kept}, outside every sandbox:"
        yield from (f"   $ {one}" for one in step.command.strip("\n").splitlines())


def _room(plan: WorkflowPlan) -> str:
    if plan.room is None:
        return "none: the agents share nothing"
    owner = {None: "everyone writes documents", "elected": "the agents elect who writes documents"}
    return f"{plan.room}; {owner.get(plan.owner, f'only {plan.owner} writes documents')}"


def _worst(budget: float | None) -> str:
    if budget is None:
        return "no limit in dollars"
    return f"at most {dollars(budget)} USD for all together, then you are asked for more"
