"""Memory in the guild: commissions and meetings have the same memory block as runs, with the same limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from tests.guild.house import House

if TYPE_CHECKING:
    from pathlib import Path

CONTEXTS = ["run", "commission", "meeting"]
SCOPES = ("global", "project", "worker")


@pytest.fixture
def house(tmp_path: Path) -> House:
    built = House.built(tmp_path, Home(tmp_path / "home"))
    built.furnish()
    return built


def script_model(house: House, *steps: dict[str, Any], compactor: list[dict[str, Any]] | None = None) -> None:
    workers = {"*": [[*steps, {"say": "done"}]], **({"memory-compactor": [compactor]} if compactor else {})}
    script = {"workers": workers, "repeat": True, "price": {"input": 3.0, "output": 15.0}}
    (house.repo.path / "script.yaml").write_text(json.dumps(script))


def memory_write(scope: str, key: str, content: str) -> dict[str, Any]:
    return {"call": "memory_write", "with": {"scope": scope, "key": key, "content": content}}


def assemble_run(house: House, context: str) -> dict[str, Any]:
    """Run the worker in a context and return the first journal entry: its prompt, tools and bounds."""

    async def work(house: House) -> dict[str, Any]:
        run = await getattr(house, f"_{context}")("smith", house.frame)
        await house.hall.wait_background_work()
        return house.hall.history.entries(run)[0].data.to_record()

    return house.inside(work)


@pytest.mark.req("WKR-22", "WKR-15")
def test_all_contexts_share_the_memory(house: House) -> None:
    for context in CONTEXTS:
        script_model(house, *(memory_write(scope, context, f"{context} in {scope}") for scope in SCOPES))
        assemble_run(house, context)
    script_model(house)
    for context in CONTEXTS:
        assembled = assemble_run(house, context)
        for scope in SCOPES:
            for written in CONTEXTS:
                assert f"| {written} in {scope}" in assembled["memory"], (context, scope, written)
        assert assembled["system_prompt"].endswith(assembled["memory"])


@pytest.mark.req("WKR-23")
def test_limit_of_the_project_holds_in_all_contexts(house: House) -> None:
    script_model(house, memory_write("project", "old", "o" * 1200), memory_write("project", "new", "n" * 300))
    assemble_run(house, "run")
    text = house.home.settings.read_text()
    house.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    script_model(house)
    for context in CONTEXTS:
        memory = assemble_run(house, context)["memory"]
        assert "n" * 300 in memory, "the newest entry is included"
        assert "o" * 1200 not in memory
        assert "old" in memory, "an omitted entry is named"


@pytest.mark.req("WKR-23")
def test_compaction_caused_by_a_commission_is_a_separate_run(house: House) -> None:
    text = house.home.settings.read_text()
    house.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    calls = [memory_write("worker", f"fact{n}", f"{n}" * 1000) for n in range(4)]
    script_model(house, *calls, compactor=[{"say": "All of it, in short."}])
    assert assemble_run(house, "commission")["memory"] == ""

    async def list_compactor_runs(house: House) -> list[Any]:
        return [run for run in house.hall.history.recent() if run.worker == "memory-compactor"]

    (compactor,) = house.inside(list_compactor_runs)
    assert (compactor.status, compactor.parent, compactor.kind) == ("completed", None, "plain")
    script_model(house)
    assert "All of it, in short." in assemble_run(house, "meeting")["memory"]


def test_worker_without_base_toolbox_has_no_memory(house: House) -> None:
    script_model(house, memory_write("global", "fact", "known"))
    assemble_run(house, "run")
    house.furnish(base=False)
    for context in CONTEXTS:
        assert assemble_run(house, context)["memory"] == ""
