"""Whether a worker's runtime can be given the model that was chosen for it, and its tools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import ModelUnusable, ToolUnavailable
from guildhall.models.catalog import AUTO, AUTO_MODELS, REPLAY, SCRIPT
from guildhall.runtimes.catalog import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.tools.model import Tool
    from guildhall.workers.choose import Choice
    from guildhall.workers.model import Worker


def fitting(worker: Worker, choice: Choice) -> Choice:
    """The choice as the worker's runtime takes it: `auto` is a model of a provider of its own."""
    row = ROWS[worker.definition.runtime]
    if not row.providers or (row.routed and choice.model.startswith((SCRIPT, REPLAY))):
        return choice
    if choice.model == AUTO:
        return replace(choice, model=AUTO_MODELS.get(row.providers[0], f"{row.providers[0]}:{AUTO}"))
    if choice.model.partition(":")[0] in row.providers:
        return choice
    taken = " or ".join(f"`{provider}:...`" for provider in row.providers)
    raise ModelUnusable(
        f"runtime {row.name} cannot be given the model {choice.model}",
        where=worker.place,
        hint=f"It takes {taken}{' and scripts' if row.routed else ''}; any other model runs with `runtime: pydantic`.",
    )


def refuse_native(worker: Worker, tools: Iterable[Tool]) -> None:
    """Refuses tools that the provider would have to bring, where the runtime cannot ask for them."""
    row = ROWS[worker.definition.runtime]
    if row.program is not None and (native := next((tool.name for tool in tools if tool.native), None)):
        raise ToolUnavailable(
            f"tools: {native} of the provider is not to be had with runtime {row.name}",
            where=worker.place,
            hint="Name a search engine in `web_search:` of the settings: see docs/tools-exec.md.",
        )
