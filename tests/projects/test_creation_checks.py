"""Commissions and meetings are created only with workers that can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.projects.commissions.harness import CommissionProject, call, say
from tests.projects.manager.manager_runs import call_tools

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "boxed": ({"toolboxes": ["nosuchbox"]}, "nosuchbox"),
    "scriptless": ({"model": "script:missing.yaml"}, "missing.yaml"),
    "keyless": ({"model": "openai:gpt-5"}, "OPENAI_API_KEY"),
    "strange": ({"model": "nowhere:x"}, "nowhere"),
    "programless": ({"mcp_servers": {"x": {"command": "no-such-program"}}}, "no-such-program"),
    "schemaless": ({"output_schema_ref": "missing.json"}, "missing.json"),
    "broken": ({"instructions": 7}, "instructions"),
}


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    project = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(project.repo.path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name, (fields, _) in UNUSABLE.items():
        project.worker(name, **fields)
    project.worker("draft", status="draft")
    project.script([say()])
    return project


@pytest.mark.req("WKR-13")
def test_nothing_is_created_with_a_worker_that_cannot_run(guild: Guild, harness: CommissionProject) -> None:
    guild("trust", ".", "--yes")
    for name, (_, problem) in UNUSABLE.items():
        for words in (("meet", name, "hi"), ("dispatch", name, "go", "--project", "shop", "--wait")):
            refused = guild(*words)
            assert refused.code in (1, 2), (words, refused)
            assert problem in refused.err, (words, refused.err)
    for words in (("--model", "script:missing.yaml"), ("--model", "openai:gpt-5"), ("--reviewer", "boxed")):
        assert guild("dispatch", "smith", "go", "--project", "shop", "--wait", *words).code in (1, 2), words
    assert guild("dispatch", "draft", "go", "--project", "shop", "--wait").code == 4
    for words in (("commissions",), ("meetings", "--all"), ("jobs", "--all")):
        assert guild("ls", *words, "--json").json[words[0]] == [], words
    assert "claude/" not in harness.repo.git("for-each-ref", "--format=%(refname)")


@pytest.mark.req("WKR-13")
def test_the_manager_lists_only_workers_that_can_run(guild: Guild, harness: CommissionProject) -> None:
    guild("trust", ".", "--yes")

    async def work(shop: CommissionProject) -> None:
        (listing,) = await call_tools(shop, call("list_workers"))
        assert "smith" in listing
        assert [name for name in (*UNUSABLE, "draft") if f"- {name}:" in listing] == []

    harness.run_in_hall(work)
