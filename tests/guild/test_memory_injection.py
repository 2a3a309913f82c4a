"""Memory in the guild: commissions and meetings have the same memory block as runs, with the same limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from tests.guild.worker_contexts import WorkerContexts

if TYPE_CHECKING:
    from pathlib import Path

CONTEXTS = ["run", "commission", "meeting"]
SCOPES = ("global", "project", "worker")


@pytest.fixture
def contexts(tmp_path: Path) -> WorkerContexts:
    contexts = WorkerContexts.create(tmp_path, Home(tmp_path / "home"))
    contexts.write_workers()
    return contexts


def script_model(
    contexts: WorkerContexts, *steps: dict[str, Any], compactor: list[dict[str, Any]] | None = None
) -> None:
    workers = {"*": [[*steps, {"say": "done"}]], **({"memory-compactor": [compactor]} if compactor else {})}
    script = {"workers": workers, "repeat": True, "price": {"input": 3.0, "output": 15.0}}
    (contexts.repo.path / "script.yaml").write_text(json.dumps(script))


def memory_write(scope: str, key: str, content: str) -> dict[str, Any]:
    return {"call": "memory_write", "with": {"scope": scope, "key": key, "content": content}}


def assemble_run(contexts: WorkerContexts, context: str) -> dict[str, Any]:
    """Run the worker in a context and return the first journal entry: its prompt, tools and bounds."""

    async def work(contexts: WorkerContexts) -> dict[str, Any]:
        run = await getattr(contexts, f"_start_{context}")("smith", contexts.frame)
        await contexts.hall.wait_background_work()
        return contexts.hall.history.entries(run)[0].data.to_record()

    return contexts.run_in_hall(work)


@pytest.mark.req("WKR-22", "WKR-15")
def test_all_contexts_share_the_memory(contexts: WorkerContexts) -> None:
    for context in CONTEXTS:
        script_model(contexts, *(memory_write(scope, context, f"{context} in {scope}") for scope in SCOPES))
        assemble_run(contexts, context)
    script_model(contexts)
    for context in CONTEXTS:
        assembled = assemble_run(contexts, context)
        for scope in SCOPES:
            for written in CONTEXTS:
                assert f"| {written} in {scope}" in assembled["memory"], (context, scope, written)
        assert assembled["system_prompt"].endswith(assembled["memory"])


@pytest.mark.req("WKR-23")
def test_limit_of_the_project_holds_in_all_contexts(contexts: WorkerContexts) -> None:
    script_model(contexts, memory_write("project", "old", "o" * 1200), memory_write("project", "new", "n" * 300))
    assemble_run(contexts, "run")
    text = contexts.home.settings.read_text()
    contexts.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    script_model(contexts)
    for context in CONTEXTS:
        memory = assemble_run(contexts, context)["memory"]
        assert "n" * 300 in memory, "the newest entry is included"
        assert "o" * 1200 not in memory
        assert "old" in memory, "an omitted entry is named"


@pytest.mark.req("WKR-23")
def test_compaction_caused_by_a_commission_is_a_separate_run(contexts: WorkerContexts) -> None:
    text = contexts.home.settings.read_text()
    contexts.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    calls = [memory_write("worker", f"fact{n}", f"{n}" * 1000) for n in range(4)]
    script_model(contexts, *calls, compactor=[{"say": "All of it, in short."}])
    assert assemble_run(contexts, "commission")["memory"] == ""

    async def list_compactor_runs(contexts: WorkerContexts) -> list[Any]:
        return [run for run in contexts.hall.history.recent() if run.worker == "memory-compactor"]

    (compactor,) = contexts.run_in_hall(list_compactor_runs)
    assert (compactor.status, compactor.parent, compactor.kind) == ("completed", None, "plain")
    script_model(contexts)
    assert "All of it, in short." in assemble_run(contexts, "meeting")["memory"]


def test_worker_without_base_toolbox_has_no_memory(contexts: WorkerContexts) -> None:
    script_model(contexts, memory_write("global", "fact", "known"))
    assemble_run(contexts, "run")
    contexts.write_workers(base=False)
    for context in CONTEXTS:
        assert assemble_run(contexts, context)["memory"] == ""
