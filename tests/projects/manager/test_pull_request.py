"""Work that is done, put up for review: a pull request, or a branch beside a summary. The user's own is untouched."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, GuildError, MergeConflict, UsageError
from guildhall.core.redaction import Secrets
from guildhall.projects.git.integration_branch import Branches
from guildhall.projects.manager.pull_request import PullRequests, Review, UserPrograms
from guildhall.projects.model import INTEGRATION, Artifact, ProjectSettings

if TYPE_CHECKING:
    from guildhall.projects.git.repository import Git
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

GH = Path(__file__).parents[2] / "standins" / "gh"
TOKEN = "ghp_0123456789abcdef"
DONE, FAILED, BROKEN = "c-7k2m9x4qpw", "c-7k2m9x4qpx", "c-7k2m9x4qpy"


class Day:
    """A clock that stands."""

    def now(self) -> datetime:
        return datetime(2026, 11, 16, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


@dataclass
class Desk:
    """Create a repository with a remote, and a `gh` that records its calls."""

    repo: Repository
    project: Project
    git: Git
    branches: Branches
    remote: Path
    hub: Path
    environ: dict[str, str]

    def requests(self) -> PullRequests:
        outward = UserPrograms(self.project.path, self.environ)
        return PullRequests(self.project, git=self.git, branches=self.branches, programs=outward, clock=Day())

    def open(self, title: str = "A cart that adds up", body: str = "It adds up now.") -> Review:
        return self.requests().open(title, body)

    def work(self, files: dict[str, str], message: str = "Work") -> None:
        """Something that workers have done."""
        self.branches.write({path: text.encode() for path, text in files.items()}, message, "writer")

    @property
    def asked(self) -> list[dict[str, Any]]:
        file = self.hub / "asked.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def pulls(self) -> list[dict[str, Any]]:
        file = self.hub / "pulls.json"
        return json.loads(file.read_text()) if file.exists() else []

    def remote_tip(self, branch: str = INTEGRATION) -> str:
        return self.repo.git("--git-dir", str(self.remote), "rev-parse", "-q", "--verify", branch, check=False)

    def theirs(self) -> tuple[str, str, str, dict[str, bytes]]:
        """Return the user's branch, index, differences and files."""
        files = {str(path): path.read_bytes() for path in self.repo.path.rglob("*") if path.is_file()}
        own = {name: data for name, data in files.items() if "/.git/" not in name or name.endswith(("/index", "/HEAD"))}
        status = self.repo.git("--no-optional-locks", "status", "--porcelain")
        return self.repo.git("rev-parse", "main"), self.repo.git("symbolic-ref", "HEAD"), status, own


@pytest.fixture
def desk(repo: Repository, shop: Project, git: Git, branches: Branches, tmp_path: Path) -> Desk:
    remote, hub, programs = tmp_path / "remote.git", tmp_path / "hub", tmp_path / "programs"
    for folder in (hub, programs):
        folder.mkdir()
    (programs / "gh").symlink_to(GH)
    repo.git("init", "-q", "--bare", "-b", "main", str(remote))
    repo.git("remote", "add", "origin", str(remote))
    repo.git("push", "-q", "origin", "main")
    branches.update()
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": os.environ["HOME"],
        "GH_CONFIG_DIR": str(hub),
        "GH_TOKEN": TOKEN,
        "ANTHROPIC_API_KEY": "secret-secret",
        "GIT_DIR": "/nowhere",
        "LD_PRELOAD": "",
    }
    return Desk(repo, shop, git, branches, remote, hub, environ)


@pytest.fixture
def lone(desk: Desk) -> Desk:
    """Do the same without `gh`."""
    programs = Path(desk.environ["PATH"].partition(":")[0])
    (programs / "gh").unlink()
    (programs / "git").symlink_to(shutil.which("git") or "")
    return replace(desk, environ={**desk.environ, "PATH": str(programs)})


# Pull requests


@pytest.mark.req("WKR-25")
def test_the_integration_branch_is_pushed_and_a_request_is_made(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    before = desk.theirs()
    review = desk.open(body="It adds up now.\n\n@ada please look.")
    assert (review.url, review.is_updated, review.branch) == ("https://hub.example/shop/pull/1", False, None)
    assert "Opened the pull request https://hub.example/shop/pull/1 (1 file). Only the user merges it." in review.text()
    assert desk.remote_tip() == desk.branches.tip()
    changed = desk.repo.git("--git-dir", str(desk.remote), "diff", "--name-only", "main", INTEGRATION)
    assert changed == "src/cart.py"
    (pull,) = desk.pulls
    assert (pull["head"], pull["base"], pull["title"]) == (INTEGRATION, "main", "A cart that adds up")
    assert pull["body"].startswith("It adds up now.\n\n@ada please look.\n\n## Files\n\n    src/cart.py  +1 -1\n")
    assert "Nothing is merged until you merge it." in pull["body"]
    assert desk.theirs() == before
    assert desk.remote_tip("main") == before[0]


@pytest.mark.req("WKR-25")
def test_one_that_is_open_is_brought_up_to_date(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    desk.open()
    desk.work({"src/till.py": "pay = 3\n"})
    review = desk.open("A cart and a till", "Both.")
    assert (review.url, review.is_updated) == ("https://hub.example/shop/pull/1", True)
    (pull,) = desk.pulls
    assert pull["title"] == "A cart and a till"
    assert "src/till.py  +1 -0" in pull["body"]
    assert desk.remote_tip() == desk.branches.tip()
    assert desk.open("A cart and a till", "Both.").is_updated, "the same once more is the same"
    assert len(desk.pulls) == 1


def test_one_that_was_made_before_the_call_was_cut_off_is_found(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    (desk.hub / "fails").write_text("create-late")
    with pytest.raises(GuildError, match="`gh pr create` failed: HTTP 502"):
        desk.open()
    (desk.hub / "fails").unlink()
    assert desk.open().is_updated
    assert len(desk.pulls) == 1


def test_the_commissions_behind_the_work_are_named(desk: Desk, worktrees: Worktrees) -> None:
    done = Artifact(title="Add up", date="2026-11-16", status="completed", tags=(), extra={"worker": "coder"}, body="x")
    failed = replace(done, title="Pay", status="failed")
    broken = "---\nthis is: [no artifact\n"
    texts = {DONE: done.render(), FAILED: failed.render(), BROKEN: broken}
    records = {f".lore/commissions/{id}.md": text.encode() for id, text in texts.items()}
    desk.branches.write_records(records, "Records", "Guildhall")
    assert desk.open().files == 0, "a commission that changed no file is not in a review"
    for id in (DONE, BROKEN):
        branch = f"claude/commission/{id}-1"
        path = worktrees.check_out(desk.project, f"{id}-1", branch, "full")
        (path / f"{id}.py").write_text("total = 2\n")
        worktrees.commit(desk.project, f"{id}-1", "The work", "coder")
        desk.branches.squash(branch, "Add up", "coder")
    assert desk.open().files == 2
    body = desk.pulls[0]["body"]
    assert f"## Commissions\n\n- `{DONE}` Add up (coder)\n\n## Files" in body
    # A squash of the pull request, and further work: the commission is not listed again.
    desk.repo.git("merge", "-q", "--squash", INTEGRATION)
    desk.repo.git("commit", "-q", "-m", "Take over")
    desk.work({"src/till.py": "pay = 3\n"})
    assert desk.open().files == 1
    assert "## Commissions" not in desk.pulls[0]["body"]


@pytest.mark.parametrize("record", [".lore/reviews/2026-11-16-1.md", ".lore/commissions/c-one.md"])
def test_where_nothing_is_done_there_is_nothing_to_review(desk: Desk, record: str) -> None:
    assert desk.open().text() == "Nothing to review in shop: the user's branch contains all completed work."
    pending = Artifact(title="Add up", date="2026-11-16", status="pending", tags=(), extra={}, body="x")
    desk.branches.write_records({record: pending.render().encode()}, "Record", "Guildhall")
    review = desk.open()
    assert (review.url, review.branch) == (None, None)
    assert desk.asked == []
    assert desk.remote_tip() == ""


def test_a_rejected_push_is_told_and_nothing_is_forced(desk: Desk, tmp_path: Path) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    desk.open()
    other = tmp_path / "other"
    desk.repo.git("clone", "-q", "-b", INTEGRATION, str(desk.remote), str(other))
    desk.repo.git("commit", "-q", "--allow-empty", "-m", "Somebody else's", cwd=other)
    desk.repo.git("push", "-q", "origin", INTEGRATION, cwd=other)
    theirs = desk.remote_tip()
    desk.work({"src/till.py": "pay = 3\n"})
    with pytest.raises(Conflict, match="cannot push claude/main: origin has commits that are missing here") as caught:
        desk.open()
    assert "git fetch origin" in (caught.value.hint or "")
    assert desk.remote_tip() == theirs


def test_a_remote_that_is_gone_is_told(desk: Desk) -> None:
    shutil.rmtree(desk.remote)
    desk.work({"src/cart.py": "total = 2\n"})
    with pytest.raises(GuildError, match="`git push origin claude/main` failed"):
        desk.open()


def test_no_hook_runs_at_a_push(desk: Desk, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = desk.repo.path / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    hook.chmod(0o755)
    desk.work({"src/cart.py": "total = 2\n"})
    assert desk.open().url
    assert not ran.exists()


def test_the_programs_have_the_person_s_environment_and_no_more(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    desk.open()
    for asked in desk.asked:
        assert {"HOME", "PATH", "GH_TOKEN", "GH_PROMPT_DISABLED"} <= set(asked["env"])
        assert not {"ANTHROPIC_API_KEY", "GIT_DIR", "LD_PRELOAD", "PYTHONPATH"} & set(asked["env"])
        assert asked["cwd"] == str(desk.repo.path)


def test_the_programs_speak_english_in_every_locale(desk: Desk) -> None:
    """Recognise a rejected push in any language of git."""
    desk.environ |= {"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}
    said = UserPrograms(desk.project.path, desk.environ)._run("env")
    assert "LC_ALL=C.UTF-8" in said.stdout.splitlines()


def test_what_gh_says_is_told_without_the_person_s_secrets(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    (desk.hub / "fails").write_text("create")
    with pytest.raises(GuildError) as caught:
        desk.open()
    assert "HTTP 401: Bad credentials ([GH_TOKEN])" in caught.value.message
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("where", ["desk", "lone"])
def test_no_secret_is_put_up_for_review(request: pytest.FixtureRequest, where: str) -> None:
    desk: Desk = request.getfixturevalue(where)
    desk = replace(desk, branches=Branches(desk.project, desk.git, Secrets({"GH_TOKEN": TOKEN})))
    desk.work({"src/cart.py": "total = 2\n"}, f"With {TOKEN}")
    review = desk.open(title=f"Uses {TOKEN}", body=f"The token is {TOKEN}.")
    text = json.dumps(desk.pulls) if review.summary is None else desk.repo.at("guildhall/records", review.summary)
    assert "The token is [GH_TOKEN]." in text
    assert "Uses [GH_TOKEN]" in text
    assert TOKEN not in text
    assert TOKEN not in desk.repo.git("log", "-p", "claude/main")


def test_titles_and_bodies_that_cannot_be_are_refused(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    titles = ["", " \n", "a\nb", "a\x1b[2J", "a\0", "\ud800", "a" * 201]
    for title, body in [*((title, "x") for title in titles), ("a", ""), ("a", "\0"), ("a", "b" * 50_001)]:
        with pytest.raises(UsageError):
            desk.open(title, body)
    assert (desk.asked, desk.remote_tip()) == ([], "")


def test_a_title_is_never_read_as_anything_else(desk: Desk) -> None:
    desk.work({"src/cart.py": "total = 2\n"})
    for title in ("--repo=evil/evil", "-R $(touch x); `id`"):
        desk.open(title, "--body-file=/etc/passwd")
        (pull,) = desk.pulls
        assert pull["title"] == title
        assert pull["body"].startswith("--body-file=/etc/passwd\n")


# A branch of its own


def merged(desk: Desk, branch: str) -> None:
    desk.repo.git("merge", "-q", branch)


@pytest.mark.req("WKR-25", "WKR-28")
def test_without_gh_it_waits_on_a_branch_with_a_summary(lone: Desk) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    before = lone.theirs()
    review = lone.open(body="It adds up now.")
    assert (review.url, review.branch) == (None, "claude/review/2026-11-16-1")
    assert "A pull request is not possible: gh is not installed." in review.text()
    assert lone.theirs() == before, "the user's branch, index and files are as they were"
    assert lone.remote_tip() == "", "nothing was pushed"
    summary = Artifact.parse(lone.repo.at("guildhall/records", str(review.summary)))
    assert (summary.title, summary.status, summary.tags) == ("A cart that adds up", "open", ("review",))
    commands = ["git diff main...claude/review/2026-11-16-1", "git switch main", "git merge claude/review/2026-11-16-1"]
    for line in (
        *commands,
        "    src/cart.py  +1 -1",
        "It adds up now.",
        "A pull request is not possible: gh is not installed.",
    ):
        assert line in summary.body
    assert lone.repo.git("diff", "--name-only", "main", "claude/review/2026-11-16-1") == "src/cart.py"
    merged(lone, "claude/review/2026-11-16-1")
    assert (lone.repo.path / "src" / "cart.py").read_text() == "total = 2\n"
    assert not lone.open().branch, "the user has merged it: there is nothing to review"
    lone.repo.fsck()


def test_the_same_review_is_not_made_twice_and_a_new_one_is_the_next(lone: Desk) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    first = lone.open()
    tip = lone.branches.tip()
    assert lone.open("Another title", "Other words.") == first
    assert lone.branches.tip() == tip
    lone.work({"src/till.py": "pay = 3\n"})
    second = lone.open()
    assert second.branch == "claude/review/2026-11-16-2"
    assert lone.repo.at(str(second.branch), "src/till.py") == "pay = 3"
    assert lone.branches.exists(str(first.branch)), "the earlier one is left alone"


def test_one_that_was_cut_off_before_its_branch_was_there_is_finished(lone: Desk) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    first = lone.open()
    tip = lone.branches.tip()
    lone.repo.git("update-ref", "-d", f"refs/heads/{first.branch}")
    again = lone.open()
    assert again == first
    assert lone.branches.tip() == tip
    assert lone.branches.tip(str(first.branch)) == tip


def test_a_branch_of_that_name_is_never_moved(lone: Desk) -> None:
    base = lone.repo.git("rev-parse", "main")
    lone.repo.git("branch", "claude/review/2026-11-16-1", "main")
    lone.work({"src/cart.py": "total = 2\n"})
    assert lone.open().branch == "claude/review/2026-11-16-2"
    assert lone.branches.tip("claude/review/2026-11-16-1") == base


@pytest.mark.parametrize(
    "body",
    ["---\ncommit: zzz\n---\n", "---\ntitle: x\ndate: x\nstatus: open\ncommit: '" + "0" * 40 + "'\n---\n", "\xff"],
)
def test_a_record_that_somebody_has_spoilt_is_passed_by(lone: Desk, body: str) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    lone.branches.write_records({".lore/reviews/2026-11-16-1.md": body.encode()}, "Record", "manager")
    assert lone.open().branch == "claude/review/2026-11-16-2"


@pytest.mark.parametrize(
    ("remote", "why"),
    [("upstream", "the repository has no remote 'upstream'"), ("--upload-pack=x", "has no remote '--upload-pack=x'")],
)
def test_without_the_remote_it_is_a_branch_too(desk: Desk, remote: str, why: str) -> None:
    elsewhere = replace(desk, project=replace(desk.project, settings=ProjectSettings(remote=remote)))
    elsewhere.work({"src/cart.py": "total = 2\n"})
    review = elsewhere.open()
    assert review.branch
    assert why in str(review.reason)
    assert desk.asked == []


def test_where_gh_cannot_be_used_it_is_a_branch_and_nothing_is_pushed(desk: Desk) -> None:
    (desk.hub / "fails").write_text("list")
    desk.work({"src/cart.py": "total = 2\n"})
    review = desk.open()
    assert review.branch
    assert "gh cannot list pull requests: HTTP 401: Bad credentials ([GH_TOKEN])" in review.text()
    assert desk.remote_tip() == ""


def test_what_the_user_did_meanwhile_is_in_it(lone: Desk) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    lone.repo.commit({"README.md": "The shop, open\n"}, "Mine")
    review = lone.open()
    assert review.files == 1, "only the work is to be reviewed, not what the user did"
    assert lone.repo.at(str(review.branch), "README.md") == "The shop, open"
    lone.repo.git("merge", "-q", "--ff-only", str(review.branch))


def test_what_cannot_be_merged_is_told_before_anything_is_put_up(lone: Desk) -> None:
    lone.work({"src/cart.py": "total = 2\n"})
    lone.repo.commit({"src/cart.py": "total = 3\n"}, "Mine")
    with pytest.raises(MergeConflict) as caught:
        lone.open()
    assert tuple(caught.value.files) == ("src/cart.py",)
    assert lone.repo.git("branch", "--list", "claude/review/*") == ""


def test_odd_names_of_files_stay_in_their_place(lone: Desk) -> None:
    names = ["a `b` ```.md", "tab\there", "new\nline\n# heading", "ünïcode", "-n", "\x1b[31mred"]
    files = {f"src/{name}": b"x\n" for name in names}
    lone.branches.write(files, "Odd", "writer")
    review = lone.open()
    assert review.files == len(names)
    body = Artifact.parse(lone.repo.at("guildhall/records", str(review.summary))).body
    listed = body.partition("## Files\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(names)
    assert all(line.startswith("    src/") and line.isprintable() for line in listed)
