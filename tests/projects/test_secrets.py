"""What the hall itself writes into a repository has none of the secrets that it knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.redaction import Secrets
from guildhall.projects.commissions.model import Draft
from guildhall.projects.git.integration_branch import Branches
from guildhall.projects.model import Artifact, redact_file
from tests.projects.commissions.harness import CommissionProject, call, say, submit, write
from tests.projects.meetings.harness import MeetingProject

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.git.repository import Git
    from guildhall.projects.model import Project
    from tests.conftest import Guild
    from tests.projects.conftest import Repository

KEY = "sk-ant-api03-VERYSECRETVALUE0123456789"
LINES = "-----BEGIN KEY-----\nVERYSECRETLINEONE1234567890\nVERYSECRETLINETWO1234567890\n-----END KEY-----"
BROUGHT = {"ANTHROPIC_API_KEY": KEY, "SSH_PRIVATE_KEY": LINES}


def test_a_commission_s_artifact_and_its_commits(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(shop.repo.path)
    decided = call("record_decision", question=f"Is {KEY} right?", decision=KEY, reasoning="It is the key.")
    shop.script([decided, submit(f"The key is {KEY}"), say()])

    async def work(shop: CommissionProject) -> str:
        brings = replace(shop.frame, keys={"ANTHROPIC_API_KEY": KEY})
        draft = Draft(title=KEY, worker="smith", prompt=f"Use {KEY}.")
        made = await shop.commissions.create(shop.hall.projects.get("shop"), draft, brings)
        await shop.commissions.dispatch(made.id, brings)
        assert (await shop.wait_ended(made.id)).status == "completed"
        return made.path

    path = shop.run_in_hall(work)
    text = shop.repo.at("guildhall/records", path)
    assert "The key is [ANTHROPIC_API_KEY]" in text
    assert Artifact.parse(text).title == "[ANTHROPIC_API_KEY]"
    assert KEY not in shop.repo.git("log", "--all", "-p", "--reflog")


def test_the_next_hall_that_knows_fewer_secrets_writes_none_of_them(
    tmp_path: Path, home: Home, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(shop.repo.path)
    decided = call("record_decision", question=f"Is it {KEY}?", decision=LINES, reasoning="x" * 1_990 + KEY)
    shop.script([decided, call("log_question", question=f"Is\n{LINES}\nright?"), write("src/key.py"), say()])
    words = ("--hold", "--title", f"Use {KEY}", f"Take {LINES}\nand {KEY}", "--json")
    id = guild("dispatch", "smith", *words, env=BROUGHT).json["commission"]
    # It ends with a question and without a result.
    assert guild("dispatch", id, "--wait", env=BROUGHT).code == 4
    assert KEY in guild("show", id, "--json").json["prompt"]
    assert "- Is [SSH_PRIVATE_KEY] right?" in shop.repo.at("guildhall/records", f".lore/commissions/{id}.md")

    assert guild("stop", "--abandon", id, "--reason", "Not now").code == 0
    text = shop.repo.at("guildhall/records", f".lore/commissions/{id}.md")
    artifact = Artifact.parse(text)
    assert (artifact.status, artifact.title) == ("abandoned", "Use [ANTHROPIC_API_KEY]")
    assert artifact.extra["prompt"] == "Take [SSH_PRIVATE_KEY]\nand [ANTHROPIC_API_KEY]"
    assert "decided: [SSH_PRIVATE_KEY]" in text
    told = shop.repo.git("log", "--all", "-p", "--reflog", "--format=%B")
    assert "src/key.py" in told  # its work is kept, with a message of its own
    assert "VERYSECRET" not in told
    assert "sk-ant" not in told  # nor half of one that was cut


def test_notes_that_a_hall_writes_which_knows_fewer(
    tmp_path: Path, home: Home, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting_harness = MeetingProject.at(home, tmp_path / "shop")
    monkeypatch.chdir(meeting_harness.repo.path)
    decided = call("record_decision", question=LINES, decision=KEY, reasoning=f"For {LINES}")
    followup = call("propose_followup", title=f"Use {KEY}", prompt=LINES)
    written = call("artifact_write", path=".lore/a.md", title="A", status="draft", body="b")
    meeting_harness.script([decided, followup, call("summarize_progress", summary=LINES), written, {"say": "Well."}])
    met = guild("meet", "architect", f"About {KEY}", "--output", "json", env=BROUGHT)
    assert met.code == 0, met.out
    assert guild("meet", "--close", met.json["meeting"], "--no-summary").code == 0
    text = meeting_harness.repo.at("guildhall/records", f".lore/meetings/{met.json['meeting']}.md")
    assert "### [SSH_PRIVATE_KEY]\n\n[ANTHROPIC_API_KEY]\n\nFor [SSH_PRIVATE_KEY]" in text
    assert "VERYSECRET" not in meeting_harness.repo.git("log", "--all", "-p", "--reflog", "--format=%B")


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
    after = Artifact.parse(redact_file(before.render().encode(), secrets).decode())
    told = "[MY_TOKEN]"
    assert after == Artifact(
        title=told, status="open", tags=(told,), extra={"deep": {"x": [told, 3]}}, body=f"{told}\n"
    )


@pytest.mark.parametrize("text", ["---\n# mine\ntitle:   x\n---\nbody", "---\n- no fields\n---\n", "plain", ""])
def test_where_there_is_nothing_to_hide_not_a_byte_is_changed(text: str) -> None:
    assert redact_file(text.encode(), Secrets({"MY_TOKEN": KEY})) == text.encode()
