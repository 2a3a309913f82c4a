"""What the hall itself writes into a repository has none of the secrets that it knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.frame import Secrets
from guildhall.projects.artifact import Artifact, without_secrets
from guildhall.projects.branches import Branches
from guildhall.projects.commissions.model import Draft
from tests.projects.commissions.workshop import Workshop, call, say, submit

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.git import Git
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

KEY = "sk-ant-api03-VERYSECRETVALUE0123456789"


def test_a_commission_s_artifact_and_its_commits(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop.at(tmp_path, home)
    monkeypatch.chdir(shop.repo.path)
    decided = call("record_decision", question=f"Is {KEY} right?", decision=KEY, reasoning="It is the key.")
    shop.script([decided, submit(f"The key is {KEY}"), say()])

    async def work(shop: Workshop) -> str:
        brings = replace(shop.frame, keys={"ANTHROPIC_API_KEY": KEY})
        draft = Draft(title=KEY, worker="smith", prompt=f"Use {KEY}.")
        made = await shop.commissions.create(shop.hall.projects.get("shop"), draft, brings)
        await shop.commissions.dispatch(made.id, brings)
        assert (await shop.quiet(made.id)).status == "completed"
        return made.path

    path = shop.inside(work)
    text = shop.repo.at("claude/main", path)
    assert "The key is [ANTHROPIC_API_KEY]" in text
    assert Artifact.parse(text).title == "[ANTHROPIC_API_KEY]"
    assert KEY not in shop.repo.git("log", "--all", "-p", "--reflog")


def test_whatever_is_written_on_the_integration_branch(repo: Repository, shop: Project, git: Git) -> None:
    branches = Branches(shop, git, Secrets({"MY_TOKEN": KEY}))
    branches.write({".lore/a.md": f"Say {KEY}\n".encode(), "b.bin": b"\xff" + KEY.encode()}, f"Write {KEY}", "smith")
    assert repo.at("claude/main", ".lore/a.md") == "Say [MY_TOKEN]"
    assert branches.read("b.bin") == b"\xff[MY_TOKEN]"
    assert "Write [MY_TOKEN]" in repo.git("log", "-1", "--format=%B", "claude/main")


@pytest.mark.parametrize("value", ['a"secret\\with: #all', "'quoted' secret", "- secret: {x}", "secret-that-is-plain"])
def test_front_matter_stays_what_it_is(value: str) -> None:
    secrets = Secrets({"MY_TOKEN": value})
    before = Artifact(title=value, status="open", tags=(value,), extra={"deep": {"x": [value, 3]}}, body=f"{value}\n")
    after = Artifact.parse(without_secrets(before.render().encode(), secrets).decode())
    told = "[MY_TOKEN]"
    assert after == Artifact(
        title=told, status="open", tags=(told,), extra={"deep": {"x": [told, 3]}}, body=f"{told}\n"
    )


@pytest.mark.parametrize("text", ["---\n# mine\ntitle:   x\n---\nbody", "---\n- no fields\n---\n", "plain", ""])
def test_where_there_is_nothing_to_hide_not_a_byte_is_changed(text: str) -> None:
    assert without_secrets(text.encode(), Secrets({"MY_TOKEN": KEY})) == text.encode()
