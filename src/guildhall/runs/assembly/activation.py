"""Activation: calls the function of a worker package that sets prompt, tools and limits. Describes toolboxes.

The function runs once, when the run is created, in a confined child process. Does not check trust: `preflight` does.

Invariant: an activation can remove tools and tighten limits. It cannot add tools or raise limits.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import InvalidFile, ToolUnavailable
from guildhall.core.text import did_you_mean, is_text
from guildhall.core.yaml import shown
from guildhall.runs.model import Bounds, RunRequest
from guildhall.runs.purpose import CommissionPurpose, JobPurpose, MeetingPurpose
from guildhall.sandbox.view import View
from guildhall.tools.executor import Surroundings, describe_package, describe_toolbox
from guildhall.tools.host.process import ToolHost
from guildhall.tools.host.protocol import HostSpec
from guildhall.workers.code import Code, activation_code
from guildhall.workers.package import PROJECT_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from guildhall.tools.model import Tool, Toolbox
    from guildhall.workers.model import Worker

    Known = tuple[Code, tuple[Path, ...], tuple[Path, ...]]


TIMEOUT_S = 10.0  # that the function may take
LIMIT_NAMES = ("max_turns", "max_tokens", "max_budget_usd", "timeout")
_MOST = 400_000  # characters of a prompt


@dataclass(frozen=True, kw_only=True)
class Activation:
    """How a run begins. What is not set is as without it: posture, all tools, the worker's limits."""

    system_prompt: str | None = None  # in the place of the posture; what is remembered still comes last
    tools: tuple[str, ...] | None = None  # the names of those that the run has, of all that it could have
    limits: Bounds | None = None  # at most these

    def system_prompt_for(self, posture: str) -> str:
        return posture if self.system_prompt is None else self.system_prompt

    def select_tools(self, tools: Iterable[Tool], hook_tools: Iterable[Tool] = ()) -> tuple[Tool, ...]:
        """The tools of the run. Those of its `seat` always are: by them it says what came of it."""
        names = {*(self.tools or ()), *(tool.name for tool in hook_tools)}
        return tuple(tool for tool in tools if self.tools is None or tool.name in names)

    def tighten(self, bounds: Bounds) -> Bounds:
        """Bounds, no wider than they were."""
        if self.limits is None:
            return bounds
        both = {name: (getattr(bounds, name), getattr(self.limits, name)) for name in LIMIT_NAMES}
        tighter = {name: own if was is None else min(was, own) for name, (was, own) in both.items() if own is not None}
        return replace(bounds, **tighter)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Activation:
        return Activation(
            system_prompt=data["system_prompt"],
            tools=None if data["tools"] is None else tuple(data["tools"]),
            limits=None if data["limits"] is None else Bounds(**data["limits"]),
        )


DEFAULT = Activation()


def activation_context(request: RunRequest, project: str | None) -> dict[str, Any]:
    """Return what the function is told about the purpose of a run: a job, a commission, a meeting, or just the run."""
    about: dict[str, Any] = {"project": project, "context": "run", "input": request.input}
    if isinstance(request.purpose, JobPurpose | CommissionPurpose | MeetingPurpose):
        facts = asdict(request.purpose)
        kind, contract = facts.pop("kind"), facts.pop("contract", {})
        about |= {"context": kind, kind: {**facts, **({"review": True} if contract is None else contract)}}
    return about


async def activate_worker(worker: Worker, tools: Iterable[Tool], memory: str, context: Mapping[str, Any]) -> Activation:
    """Call the worker's function for a run that could have these tools, and return its result."""
    told = {
        "worker": {"name": worker.name, "description": worker.description, "identity": worker.identity},
        "posture": worker.instructions,
        "tools": [tool.as_shown() for tool in tools],
        "limits": worker.definition.limits.model_dump(mode="json"),
        "memory": memory,
        **context,
    }
    return await call_activation(worker, activation_code(worker), told)


async def call_activation(
    worker: Worker, code: Code, told: Mapping[str, Any], *, seconds: float = TIMEOUT_S
) -> Activation:
    """What the worker's function says; an error that names it where it says nothing that can be used."""
    said = await _said(code, worker.place, told, seconds)
    return parse_activation(said, code.entry or "", worker.place, [tool["name"] for tool in told["tools"]])


async def check_function(code: Code, place: str) -> None:
    """Raises where the function of a package cannot be loaded, or is none. It is not called."""
    await _said(code, place, None, TIMEOUT_S)


async def _said(code: Code, place: str, told: Mapping[str, Any] | None, seconds: float) -> Any:
    """What a confined child says in which the function is loaded."""
    reference = code.entry or ""
    host = ToolHost(
        HostSpec(view=View(cwd=code.root), activate=reference, context=told, memory_bytes=512 * 1024**2),
        sources=code.sources(),
    )
    try:
        async with asyncio.timeout(seconds):
            return await host.activation()
    except TimeoutError:
        message = f"activate: {reference} said nothing for {seconds:g} s and was ended"
        raise ToolUnavailable(message, where=place) from None
    except ToolUnavailable as error:
        where = str(code.root / error.where) if error.where else place
        raise ToolUnavailable(f"activate: {error.message}", where=where, hint=error.hint) from None
    finally:
        await host.close()


def parse_activation(said: Any, reference: str, place: str, tools: Sequence[str]) -> Activation:
    """What a function said, which may be anything; `tools` are those that there are."""

    def wrong(message: str, hint: str | None = None) -> InvalidFile:
        return InvalidFile(f"activate: {reference} gave {message}", where=place, hint=hint)

    if said is None:
        return DEFAULT
    if not isinstance(said, dict):
        raise wrong(f"{shown(said)}", "It gives fields: system_prompt, tools, limits; or nothing.")
    given = cast("dict[str, Any]", said)
    names = [field.name for field in fields(Activation)]
    for name in given:
        if name not in names:
            raise wrong(f"a field {shown(name)} that does not exist", did_you_mean(name, names))
    prompt, chosen = given.get("system_prompt"), given.get("tools")
    is_usable = isinstance(prompt, str) and prompt.strip() and is_text(prompt) and len(prompt) <= _MOST
    if prompt is not None and not is_usable:
        raise wrong(f"a system_prompt that is no text of at most {_MOST:,} characters")
    if chosen is not None:
        chosen = _chosen(chosen, tools, wrong)
    limits = given.get("limits")
    return Activation(system_prompt=prompt, tools=chosen, limits=None if limits is None else _limits(limits, wrong))


def _chosen(given: Any, tools: Sequence[str], wrong: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in cast("list[Any]", given)):
        raise wrong("tools that are no list of names")
    for name in (chosen := cast("list[str]", given)):
        if name not in tools:
            raise wrong(f"a tool {shown(name)} that the worker does not have", did_you_mean(name, tools))
    return tuple(dict.fromkeys(chosen))


def _limits(given: Any, wrong: Any) -> Bounds:
    if not isinstance(given, dict):
        raise wrong("limits that are no fields", f"They are {', '.join(LIMIT_NAMES)}.")
    found: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", given).items():
        if name not in LIMIT_NAMES:
            raise wrong(f"a limit {shown(name)} that does not exist", did_you_mean(name, LIMIT_NAMES))
        kinds = (int,) if name in ("max_turns", "max_tokens") else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
            raise wrong(f"{name} = {shown(value)}", "A limit is a number above 0.")
        found[name] = value
    return Bounds(**{"max_turns": None, **found})


_MAX_CACHED = 100


class ToolboxCache:
    """Describes toolboxes, and caches the descriptions.

    A description depends on the bytes of the code, on the folders that the code can see, and on the installed packages,
    which do not change while a hall runs.
    """

    def __init__(self) -> None:
        self._known: dict[Known, Toolbox] = {}

    async def describe(self, code: Code, surroundings: Surroundings) -> Toolbox:
        key = (code, surroundings.view.hidden, surroundings.view.shown)
        if key not in self._known:
            found = await describe_code(code, surroundings)
            while len(self._known) >= _MAX_CACHED:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return self._known[key]


async def describe_code(code: Code, surroundings: Surroundings) -> Toolbox:
    """Return the tools of this code. Their handlers are bound to the bytes that were read."""
    if code.entry is None:
        file = code.files[0]
        return await describe_toolbox(
            code.name, file.path, surroundings, None if code.is_own else file.digest, file.content
        )
    try:
        return await describe_package(code.name, code.entry, code.sources(), surroundings)
    except ToolUnavailable as error:
        if error.where is not None:
            raise ToolUnavailable(error.message, where=str(code.root / error.where), hint=error.hint) from error
        place = str((code.folder or code.root) / PROJECT_FILE)
        raise ToolUnavailable(f"export: {error.message}", where=place, hint=error.hint) from error
