"""Tool restriction: a worker has exactly its tools, and every other tool is unknown to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from guildhall.testing.scripted_server import ScriptedServer
from tests.guild.test_toolbox_resolution import ARTIFACTS, BASE, CONTEXT, FREE, MANAGER
from tests.guild.worker_contexts import IN_PROJECTS, PLAIN, WorkerContexts
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

ALL_TOOLS = sorted({*BASE, *ARTIFACTS, *MANAGER, *(tool for tools in CONTEXT.values() for tool in tools)})
BUILT_IN = ["Read", "Grep", "Glob", "Write", "Edit", "Bash", "WebFetch", "WebSearch"]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> WorkerContexts:
    folder = tmp_path_factory.mktemp("contexts")
    return WorkerContexts.create(folder, Home(folder / "home"))


@pytest.mark.req("WKR-16", "WKR-12")
@pytest.mark.parametrize("context", [*PLAIN, *IN_PROJECTS])
def test_tools_of_other_contexts_are_unknown(contexts: WorkerContexts, context: str) -> None:
    """Let the model call every tool. Tools that it did not get are refused as unknown."""
    contexts.write_workers(base=False)
    calls = [{"call": name, "with": {"unknown": 1}} for name in [*ALL_TOOLS, *BUILT_IN, "roll", "weigh", "worker_call"]]
    script = json.loads((contexts.repo.path / "script.yaml").read_text())
    script["workers"]["*"] = [[{"calls": calls}, {"say": "done"}]]
    (contexts.repo.path / "script.yaml").write_text(json.dumps(script))

    async def work(contexts: WorkerContexts) -> tuple[list[str], set[str]]:
        run = await getattr(contexts, f"_start_{context}")("smith", contexts.frame)
        entries = contexts.hall.history.entries(run)
        refusals = [entry.data for entry in entries if entry.kind == "tool_refused"]
        unknown = {one.tool for one in refusals if "Unknown tool" in str(one.result)}
        return contexts.recorded_tools(run), unknown

    shown, unknown = contexts.run_in_hall(work)
    free = FREE.get(context, [])
    assert shown == [*free, *(name for name in CONTEXT[context] if name != "store_memory")]
    assert unknown == {call["call"] for call in calls} - {*shown}


def tool_names(body: Any) -> list[str]:
    return [tool["name"] for tool in body.get("tools", [])]


@pytest.mark.req("WKR-16", "WKR-8", "WKR-10")
def test_a_provider_gets_exactly_the_tools_of_the_context(
    guild: Guild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the HTTP requests of a run, a commission and a meeting."""
    repo = repository(tmp_path / "shop", {"README.md": "The shop\n"})
    (repo.path / "workers").mkdir()
    scribe = {"name": "scribe", "instructions": "You write.", "model": "anthropic:claude-sonnet-4-5", "tools": ["Bash"]}
    (repo.path / "workers" / "scribe.yaml").write_text(json.dumps(scribe))
    monkeypatch.chdir(repo.path)
    script = tmp_path / "served.yaml"
    script.write_text(json.dumps({"workers": {"scribe": [[{"say": "seen"}]]}, "repeat": True}))
    commands = {
        "run": ["run", "scribe", "Go."],
        "commission": ["dispatch", "scribe", "--project", "shop", "Go.", "--wait"],
        "meeting": ["meet", "scribe", "Go."],
    }
    with ScriptedServer(script) as server:
        env = {"ANTHROPIC_API_KEY": "script-scribe", "ANTHROPIC_BASE_URL": server.anthropic_url}
        assert guild("project", "add", ".").code == 0
        for context, words in commands.items():
            before = len(server.requests)
            guild(*words, env=env)
            bodies = [exchange.body for exchange in server.requests[before:]]
            assert bodies, context
            free = FREE.get(context, [])
            for body in bodies:
                base = ["memory_write"] if context == "run" else ["memory_write", "record_decision"]
                assert tool_names(body) == [*free, "Bash", *CONTEXT[context], *ARTIFACTS, *base], context
