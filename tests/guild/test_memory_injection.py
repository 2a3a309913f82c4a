"""Memory injection in the guild: a commission and a meeting are shown what a run is shown, and no more than fits."""

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


def answers(house: House, *answers: dict[str, Any], compactor: list[dict[str, Any]] | None = None) -> None:
    workers = {"*": [[*answers, {"say": "done"}]], **({"memory-compactor": [compactor]} if compactor else {})}
    told = {"workers": workers, "repeat": True, "price": {"input": 3.0, "output": 15.0}}
    (house.repo.path / "script.yaml").write_text(json.dumps(told))


def remember(scope: str, key: str, content: str) -> dict[str, Any]:
    return {"call": "memory_write", "with": {"scope": scope, "key": key, "content": content}}


def began(house: House, context: str) -> dict[str, Any]:
    """What the run of the worker was made of in a context."""

    async def work(house: House) -> dict[str, Any]:
        run = await getattr(house, f"_{context}")("smith", house.frame)
        await house.hall.settle()
        return house.hall.history.entries(run)[0].data

    return house.inside(work)


@pytest.mark.req("WKR-22", "WKR-15")
def test_what_any_of_them_writes_all_of_them_are_shown(house: House) -> None:
    for context in CONTEXTS:
        answers(house, *(remember(scope, context, f"{context} in {scope}") for scope in SCOPES))
        began(house, context)
    answers(house)
    for context in CONTEXTS:
        frozen = began(house, context)
        for scope in SCOPES:
            for written in CONTEXTS:
                assert f"| {written} in {scope}" in frozen["memory"], (context, scope, written)
        assert frozen["system_prompt"].endswith(frozen["memory"]), "the memory is the last block"


@pytest.mark.req("WKR-23")
def test_the_limit_of_a_project_holds_in_all_of_them_and_what_is_left_out_is_named(house: House) -> None:
    answers(house, remember("project", "old", "o" * 1200), remember("project", "new", "n" * 300))
    began(house, "run")
    text = house.home.settings.read_text()
    house.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    answers(house)
    for context in CONTEXTS:
        memory = began(house, context)["memory"]
        assert "n" * 300 in memory, "the newest wins"
        assert "o" * 1200 not in memory
        assert "old" in memory, "what is left out is named"


@pytest.mark.req("WKR-23")
def test_a_commission_that_makes_it_grow_too_long_has_it_condensed_apart(house: House) -> None:
    text = house.home.settings.read_text()
    house.home.settings.write_text(text.replace("branch: main", "branch: main\n    memory_tokens: 400"))
    calls = [remember("worker", f"fact{n}", f"{n}" * 1000) for n in range(4)]
    answers(house, *calls, compactor=[{"say": "All of it, in short."}])
    run = began(house, "commission")
    assert run["memory"] == ""

    async def compactions(house: House) -> list[Any]:
        return [one for one in house.hall.history.recent() if one.worker == "memory-compactor"]

    (condensed,) = house.inside(compactions)
    assert (condensed.status, condensed.parent, condensed.request.get("commission")) == ("completed", None, None)
    answers(house)
    assert "All of it, in short." in began(house, "meeting")["memory"]


def test_without_the_base_toolbox_there_is_none(house: House) -> None:
    answers(house, remember("global", "fact", "known"))
    began(house, "run")
    house.furnish(base=False)
    for context in CONTEXTS:
        assert began(house, context)["memory"] == ""
