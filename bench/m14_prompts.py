"""Metric 14: the characters that a model receives before its first response, in each context.

Counts the system prompt, the first message and the tools as JSON. Compared with the last results. A token has about
four characters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.guild.worker_contexts import WorkerContexts

from bench.frame import Metric
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.memory.model import CHARS_PER_TOKEN

CONTEXTS = {
    "plain worker": ("run", []),
    "worker with Read": ("run", ["Read"]),
    "agent of a workflow": ("room", []),
    "job": ("job", []),
    "commission": ("commission", []),
    "meeting": ("meeting", []),
}
_RESULTS = Path(__file__).parent / "results" / "latest.json"


def metrics(scratch: Path) -> list[Metric]:
    contexts = WorkerContexts.create(scratch, Home(scratch / "home"))
    return [_metric(contexts, name, context, tools) for name, (context, tools) in CONTEXTS.items()]


def _metric(contexts: WorkerContexts, label: str, context: str, tools: list[str]) -> Metric:
    name = f"14 prompt and tools, {label}"
    contexts.write_workers(tools=tools)
    prompt, shown = contexts.run_in_hall(lambda place: _assembly(place, context))
    chars = len(prompt) + len(json.dumps(shown))
    before = _last_chars(name) or chars
    return Metric(
        name=name,
        floor_name="the last results",
        floor=lambda: before,
        measured=lambda: chars,
        target=None,
        rounds=1,
        unit="chars",
        note=f"about {chars // CHARS_PER_TOKEN:,} tokens, {len(shown)} tools",
    )


async def _assembly(contexts: WorkerContexts, context: str) -> tuple[str, list[Any]]:
    """Run the worker in a context, and return the texts and the tools that its model received."""
    place = contexts.elsewhere if context in ("run", "room", "job") else contexts.repo.path
    run = await contexts.start(context, "smith", Frame(cwd=place, root=place, model="script:script.yaml"))
    first = contexts.hall.history.journal(run).assembly
    return f"{first.system_prompt}\n{first.first_message}", list(first.tools)


def _last_chars(name: str) -> float | None:
    results = json.loads(_RESULTS.read_text(encoding="utf-8"))["results"]
    return next((row["measured_chars"] for row in results if row["name"] == name), None)
