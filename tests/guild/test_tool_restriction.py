"""Tool restriction: an activated worker has exactly its tools. What it was not given does not exist for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from guildhall.testing.scripted_server import ScriptedServer
from tests.guild.house import IN_PROJECTS, PLAIN, House
from tests.guild.test_toolbox_resolution import ARTIFACTS, BASE, CONTEXT, FREE, MANAGER
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

EVERY = sorted({*BASE, *ARTIFACTS, *MANAGER, *(tool for tools in CONTEXT.values() for tool in tools)})
BUILT_IN = ["Read", "Grep", "Glob", "Write", "Edit", "Bash", "WebFetch", "WebSearch"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    folder = tmp_path_factory.mktemp("house")
    return House.built(folder, Home(folder / "home"))


@pytest.mark.req("WKR-16", "WKR-12")
@pytest.mark.parametrize("context", [*PLAIN, *IN_PROJECTS])
def test_what_it_was_not_given_it_cannot_call(house: House, context: str) -> None:
    """Call every known tool. The gate refuses each tool that the model was not shown, by name."""
    house.furnish(base=False)
    calls = [{"call": name, "with": {"unknown": 1}} for name in [*EVERY, *BUILT_IN, "roll", "weigh", "worker_call"]]
    script = json.loads((house.repo.path / "script.yaml").read_text())
    script["workers"]["*"] = [[{"calls": calls}, {"say": "done"}]]
    (house.repo.path / "script.yaml").write_text(json.dumps(script))

    async def work(house: House) -> tuple[list[str], set[str]]:
        run = await getattr(house, f"_{context}")("smith", house.frame)
        entries = house.hall.history.entries(run)
        told = [entry.data for entry in entries if entry.kind == "tool_refused"]
        unknown = {one.tool for one in told if "Unknown tool" in str(one.result)}
        return house.tools_of(run), unknown

    shown, unknown = house.inside(work)
    free = FREE.get(context, [])
    assert shown == [*(name for name in CONTEXT[context] if name != "store_memory"), *free]
    assert unknown == {call["call"] for call in calls} - {*shown}


def served(body: Any) -> list[str]:
    return [tool["name"] for tool in body.get("tools", [])]


@pytest.mark.req("WKR-16", "WKR-8", "WKR-10")
def test_at_the_model_s_end_it_is_the_same(guild: Guild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the HTTP requests that a provider receives from a run, a commission and a meeting."""
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
                assert served(body) == [*BASE, *ARTIFACTS, *CONTEXT[context], *free, "Bash"], context
