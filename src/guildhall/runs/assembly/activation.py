"""Activation: calls the function of a worker package that sets the prompt, the tools and the limits of a run.

The function runs once, when the run is created, in a confined child process. Does not check trust: `preflight` does.

Invariant: an activation can remove tools and tighten limits. It cannot add tools or raise limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import InvalidFile, ToolUnavailable
from guildhall.core.text_checks import did_you_mean, is_text
from guildhall.core.yaml import format_value
from guildhall.runs.model import Bounds, RunRequest
from guildhall.runs.purpose import CommissionPurpose, JobPurpose, MeetingPurpose
from guildhall.sandbox.view import View
from guildhall.tools.host.process import ToolHost
from guildhall.tools.host.protocol import HostSpec
from guildhall.workers.code_trust import Code, activation_code

if TYPE_CHECKING:
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

TIMEOUT_S = 10.0
LIMIT_NAMES = ("max_turns", "max_tokens", "max_budget_usd", "timeout")
_MAX_PROMPT_CHARS = 400_000
_MAX_MEMORY_BYTES = 512 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Activation:
    """The result of an activation function. None keeps the instructions, tools or limits of the worker."""

    system_prompt: str | None = None  # without the memory block
    tools: tuple[str, ...] | None = None
    limits: Bounds | None = None

    def select_tools(self, tools: Iterable[Tool], required: Iterable[Tool] = ()) -> tuple[Tool, ...]:
        """Return the tools that the activation keeps. It cannot remove the `required` tools of the run's owner."""
        names = {*(self.tools or ()), *(tool.name for tool in required)}
        return tuple(tool for tool in tools if self.tools is None or tool.name in names)

    def tighten(self, bounds: Bounds) -> Bounds:
        """Return the lower one of each pair of limits."""
        if self.limits is None:
            return bounds
        for name in LIMIT_NAMES:
            current, limit = getattr(bounds, name), getattr(self.limits, name)
            if limit is not None:
                bounds = replace(bounds, **{name: limit if current is None else min(current, limit)})
        return bounds

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Activation:
        return Activation(
            system_prompt=data["system_prompt"],
            tools=None if data["tools"] is None else tuple(data["tools"]),
            limits=None if data["limits"] is None else Bounds(**data["limits"]),
        )


DEFAULT = Activation()


def activation_context(request: RunRequest, project: str | None) -> dict[str, Any]:
    """Return the part of the function's argument that describes the purpose of a run."""
    context: dict[str, Any] = {"project": project, "context": "run", "input": request.input}
    if isinstance(request.purpose, JobPurpose | CommissionPurpose | MeetingPurpose):
        purpose = asdict(request.purpose)
        kind, contract = purpose.pop("kind"), purpose.pop("contract", {})
        context |= {"context": kind, kind: {**purpose, **({"review": True} if contract is None else contract)}}
    return context


async def activate_worker(worker: Worker, tools: Iterable[Tool], memory: str, context: Mapping[str, Any]) -> Activation:
    """Call the worker's function for a run that could have these tools, and return its result."""
    argument = {
        "worker": {"name": worker.name, "description": worker.description, "identity": worker.identity},
        "posture": worker.instructions,
        "tools": [tool.as_shown() for tool in tools],
        "limits": worker.definition.limits.model_dump(mode="json"),
        "memory": memory,
        **context,
    }
    return await call_activation(worker, activation_code(worker), argument)


async def call_activation(
    worker: Worker, code: Code, argument: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S
) -> Activation:
    """Call the activation function of a worker. Raise InvalidFile if its result is invalid."""
    result = await _execute(code, worker.place, argument, timeout_s)
    return parse_activation(result, code.entry or "", worker.place, [tool["name"] for tool in argument["tools"]])


async def check_function(code: Code, place: str) -> None:
    """Load the function of a package without calling it. Raise if it is missing or not a function."""
    await _execute(code, place, None, TIMEOUT_S)


async def _execute(code: Code, place: str, argument: Mapping[str, Any] | None, timeout_s: float) -> Any:
    """Load the function in a confined child process, and call it if there is an argument."""
    reference = code.entry or ""
    view = View(cwd=code.root)
    spec = HostSpec(view=view, activate=reference, context=argument, memory_bytes=_MAX_MEMORY_BYTES)
    host = ToolHost(spec, sources=code.sources())
    try:
        async with asyncio.timeout(timeout_s):
            return await host.activation()
    except TimeoutError:
        message = f"activate: {reference} timed out after {timeout_s:g} s"
        raise ToolUnavailable(message, where=place, hint="Make the function faster.") from None
    except ToolUnavailable as error:
        where = str(code.root / error.where) if error.where else place
        raise ToolUnavailable(f"activate: {error.message}", where=where, hint=error.hint) from None
    finally:
        await host.close()


def parse_activation(result: Any, reference: str, place: str, tools: Sequence[str]) -> Activation:
    """Validate the result of a function, which can be any JSON value. `tools`: the names to choose from."""

    def error(message: str, hint: str | None = None) -> InvalidFile:
        return InvalidFile(f"activate: {reference} returned {message}", where=place, hint=hint)

    if result is None:
        return DEFAULT
    if not isinstance(result, dict):
        raise error(format_value(result), "Return nothing, or a mapping with system_prompt, tools or limits.")
    values = cast("dict[str, Any]", result)
    names = [field.name for field in fields(Activation)]
    if (unknown := next((name for name in values if name not in names), None)) is not None:
        raise error(f"an unknown field {format_value(unknown)}", did_you_mean(unknown, names))
    prompt, selected, limits = values.get("system_prompt"), values.get("tools"), values.get("limits")
    is_valid = isinstance(prompt, str) and prompt.strip() and is_text(prompt) and len(prompt) <= _MAX_PROMPT_CHARS
    if prompt is not None and not is_valid:
        raise error(f"an invalid system_prompt (expected text of 1 to {_MAX_PROMPT_CHARS:,} characters)")
    return Activation(
        system_prompt=prompt,
        tools=None if selected is None else _parse_tools(selected, tools, error),
        limits=None if limits is None else _parse_limits(limits, error),
    )


def _parse_tools(value: Any, tools: Sequence[str], error: Callable[..., InvalidFile]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[Any]", value)):
        raise error("invalid tools (expected a list of names)")
    names = cast("list[str]", value)
    if (unknown := next((name for name in names if name not in tools), None)) is not None:
        raise error(f"the tool {format_value(unknown)}, which the worker does not have", did_you_mean(unknown, tools))
    return tuple(dict.fromkeys(names))


def _parse_limits(value: Any, error: Callable[..., InvalidFile]) -> Bounds:
    if not isinstance(value, dict):
        raise error("invalid limits (expected a mapping)", f"Limits: {', '.join(LIMIT_NAMES)}.")
    limits = cast("dict[str, Any]", value)
    for name, limit in limits.items():
        if name not in LIMIT_NAMES:
            raise error(f"an unknown limit {format_value(name)}", did_you_mean(name, LIMIT_NAMES))
        is_count = name in ("max_turns", "max_tokens")
        types = (int,) if is_count else (int, float)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, types) or limit <= 0):
            hint = f"Return a {'whole number' if is_count else 'number'} above 0."
            raise error(f"an invalid limit {name} = {format_value(limit)}", hint)
    return Bounds(**{"max_turns": None, **limits})
