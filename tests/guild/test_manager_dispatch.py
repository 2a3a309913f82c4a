"""The manager through the real command: its commissions, meetings, reviews and limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.projects.commissions.harness import submit, write
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, GuildWithHall
    from tests.projects.conftest import Repository

ID = "(?P<id>c-[a-z0-9]+)"
NEW = {"call": "create_commission", "with": {"title": "A key", "worker": "smith", "prompt": "Forge it."}}
DISPATCH = {"expect": f"{ID} is pending", "call": "dispatch_commission", "with": {"id": "${id}"}}
WAIT = {"call": "wait_for_commissions", "with": {"ids": ["${id}"]}}
REVIEW = {"call": "open_pull_request", "with": {"title": "A key", "body": "Forged."}}
KEY = [write("src/key.py", "key = 1\n"), submit("Forged."), {"say": "done"}]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a repository with a scripted worker."""
    repo = repository(tmp_path / "shop", {"README.md": "The shop\n"})
    (repo.path / "workers").mkdir()
    smith = {"name": "smith", "instructions": "You forge.", "model": "script:answers.yaml", "checkout": "full"}
    (repo.path / "workers" / "smith.yaml").write_text(json.dumps(smith))
    monkeypatch.chdir(repo.path)
    return repo


def write_answers(repo: Repository, *manager: dict[str, Any], smith: list[dict[str, Any]] | None = None) -> None:
    workers = {"manager": [[*manager, {"say": "managed"}]], "smith": [smith or KEY]}
    (repo.path / "answers.yaml").write_text(json.dumps({"workers": workers}))


def manage(guild: Guild, *more: str) -> Any:
    return guild("run", "manager", "A key, please.", "--model", "script:answers.yaml", "--output", "json", *more)


def list_commissions(guild: Guild) -> list[dict[str, Any]]:
    return guild("ls", "commissions", "--json").json["commissions"]


@pytest.mark.req("WKR-24", "WKR-25", "WKR-27")
def test_the_manager_dispatches_and_the_user_reviews(guild: Guild, shop: Repository) -> None:
    assert guild("project", "add", ".").code == 0
    write_answers(shop, NEW, DISPATCH, WAIT, REVIEW)
    before = shop.git("rev-parse", "main"), shop.git("status", "--porcelain")
    ran = manage(guild)
    assert (ran.code, ran.json["output"]) == (0, "managed"), ran
    (one,) = list_commissions(guild)
    assert (one["status"], one["by"]) == ("completed", "manager")
    assert one["made_by"].startswith(ran.json["run"])
    listed = guild("ls", "commissions").out
    assert "created by" in listed.splitlines()[0]
    assert " manager " in listed
    assert f"manager, in {ran.json['run']}\n" in guild("show", one["commission"]).out
    assert (shop.git("rev-parse", "main"), shop.git("status", "--porcelain")) == before
    (branch,) = shop.git("branch", "--list", "--format=%(refname:short)", "claude/review/*").split()
    assert shop.at(branch, "src/key.py") == "key = 1"
    again = manage(guild, "--override-model", f"replay:{ran.json['run']}")
    assert again.code == 0, again
    played = guild("replay", ran.json["run"])
    assert (played.code, len(list_commissions(guild))) == (0, 2), "a replay creates nothing"


@pytest.mark.req("WKR-27")
def test_a_commission_of_the_manager_can_be_edited_and_cancelled(guild_hall: GuildWithHall, shop: Repository) -> None:
    guild = guild_hall
    assert guild("project", "add", ".").code == 0
    write_answers(shop, NEW, DISPATCH, smith=[{"sleep": 60, "say": "late"}])
    assert manage(guild).code == 0
    (one,) = list_commissions(guild)
    assert one["status"] == "in_progress"
    edited = guild("edit", one["commission"], "--prompt", "Forge two.", "--json")
    assert edited.code == 0, edited
    (changed,) = list_commissions(guild)
    assert (changed["prompt"], changed["by"], changed["attempt"]) == ("Forge two.", "manager", 2)
    assert guild("stop", one["commission"], "--reason", "not now").code == 0
    (gone,) = list_commissions(guild)
    assert (gone["status"], gone["reason"]) == ("cancelled", "not now")
    shop.fsck()


@pytest.mark.req("WKR-27", "WKR-28")
@pytest.mark.parametrize(
    ("capability", "tool"), [("commission", "create_commission"), ("pull_request", REVIEW["call"])]
)
def test_asks_before_requires_approval_of_a_capability(
    guild: Guild, shop: Repository, capability: str, tool: str
) -> None:
    assert guild("project", "add", ".").code == 0
    (shop.path / "guildhall.yaml").write_text(json.dumps({"manager": {"asks_before": [capability]}}))
    write_answers(shop, NEW if capability == "commission" else REVIEW)
    ran = manage(guild)
    assert ran.code == 4, ran
    (ask,) = guild("ls", "--json").json["needs_you"]["asks"]
    assert ask["title"] == f"manager wants to call {tool}"
    assert ask["because"] == f"the rule {capability!r} of manager.asks_before in the settings requires approval"
    assert list_commissions(guild) == []
    assert guild("answer", ask["ask"], "no").code == 0
    assert list_commissions(guild) == []


def test_a_plan_lists_the_tools_of_the_manager(guild: Guild, shop: Repository) -> None:
    assert guild("project", "add", ".").code == 0
    write_answers(shop, NEW)
    plan = guild("plan", "manager", "--model", "script:answers.yaml")
    assert "git and gh, run by the hall for open_pull_request" in plan.out
    assert plan.code == 0, plan
    for tool in ("create_commission", "open_pull_request", "request_meeting"):
        assert tool in plan.out


@pytest.mark.req("WKR-25", "MTG-4")
def test_the_manager_requests_a_meeting_and_creates_a_commission_in_it(guild: Guild, shop: Repository) -> None:
    assert guild("project", "add", ".").code == 0
    topic = "Which lock?\nThe old one is cheaper, the new one is safer."
    write_answers(shop, {"call": "request_meeting", "with": {"topic": topic, "linked": [".lore/locks.md"]}})
    assert manage(guild).code == 0
    (meeting,) = guild("ls", "meetings", "--json").json["meetings"]
    assert (meeting["status"], meeting["by"], meeting["topic"]) == ("requested", "manager", "Which lock?")
    (ask,) = guild("ls", "--json").json["needs_you"]["asks"]
    assert "the new one is safer" in ask["body"]
    assert guild("answer", meeting["meeting"], "yes").code == 0
    write_answers(shop, NEW, {"say": "I have commissioned it."})
    met = guild("meet", meeting["meeting"], "The new one. Go on.", env={"GUILDHALL_MODEL": "script:answers.yaml"})
    assert met.code == 0, met
    (one,) = list_commissions(guild)
    assert (one["by"], one["status"]) == ("manager", "pending")


@pytest.mark.req("WKR-28", "MTG-4")
@pytest.mark.parametrize("place", ["run", "meeting"])
def test_the_manager_can_neither_merge_nor_close_a_meeting(guild: Guild, shop: Repository, place: str) -> None:
    """Try every way to merge and to close. Only the hall acts, and asks the user first."""
    assert guild("project", "add", ".").code == 0
    shop.git("switch", "-q", "-c", "claude/main")
    shop.commit({"src/key.py": "key = 1\n"}, "A key")
    shop.git("switch", "-q", "main")
    write_answers(shop)
    model = {"GUILDHALL_MODEL": "script:answers.yaml"}
    id = guild("meet", "manager", "Merge it.", "--output", "json", env=model).json["meeting"]
    before = shop.git("rev-parse", "main"), shop.git("status", "--porcelain")
    words = {"branch": "claude/main", "into": "main", "meeting": id, "id": id, "number": 1}
    names = ("merge", "merge_branch", "merge_pull_request", "git_merge", "squash", "close_meeting", "meeting_close")
    commands = ("git merge claude/main", f"guild meet {id} --close", "gh pr merge --squash")
    tries = [
        *({"call": name, "with": words} for name in names),
        *({"call": "Bash", "with": {"command": command}} for command in commands),
        {"call": "Write", "with": {"file_path": "src/key.py", "content": "key = 1\n"}},
        *(
            {"call": "artifact_write", "with": {"path": path, "title": "K", "status": "closed", "body": "y"}}
            for path in ("src/key.py", f".lore/meetings/{id}.md")
        ),
    ]
    # In a meeting the manager asks the user before it opens a review, and it may write in its own checkout.
    turns = [{"say": "managed"}, {"calls": tries}] if place == "meeting" else [{"calls": [*tries, REVIEW]}]
    write_answers(shop, *turns)
    ran = manage(guild) if place == "run" else guild("meet", id, "Do.", "--output", "json", env=model)
    assert ran.code == 0, ran
    run = ran.json["run"]
    entries = [json.loads(line) for line in guild("log", run, "--json").out.splitlines()]
    taken = [one["data"]["tool"] for one in entries if one["kind"] == "tool_started"]
    assert [name for name in taken if name != "artifact_write"] == ([REVIEW["call"]] if place == "run" else ["Write"])
    assert (shop.git("rev-parse", "main"), shop.git("status", "--porcelain")) == before
    assert not (shop.path / "src").exists()
    assert bool(shop.git("branch", "--list", "claude/review/*")) == (place == "run"), "the user merges it"
    assert guild("show", id, "--json").json["status"] == "open"


@pytest.mark.req("WKR-28", "WKR-24")
def test_the_instructions_of_the_manager_name_the_decisions_of_the_user(guild: Guild, project: Path) -> None:
    shown = guild("worker", "show", "manager")
    assert shown.code == 0, shown
    text = " ".join(shown.out.split())
    for words in (
        "Changes to the scope or direction of the project",
        "The user's own branch. You open pull requests. The user merges, releases and reverts.",
        "Decisions that need knowledge that you do not have",
        "Create and dispatch without asking, as long as the work is within the user's request",
        "Merging is up to the user",
    ):
        assert words in text
